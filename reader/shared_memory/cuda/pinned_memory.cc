#include "reader/shared_memory/cuda/pinned_memory.h"

#include <algorithm>

#include "reader/shared_memory/arena/process_id.h"

namespace headrace::shared_memory {
namespace {

constexpr size_t kUnit = size_t{64} << 10;

}  // namespace

PinnedMemory::PinnedMemory(const char* library) : owner_(ProcessId()), driver_(library), problem_(driver_.problem) {}

PinnedMemory::~PinnedMemory() {
  if (ProcessId() != owner_) {
    return;
  }
  while (!pinned_.empty()) {
    UnpinLocked(pinned_.begin()->first);
  }
  if (primary_ != nullptr) {
    driver_.primary_release(device_);
  }
}

bool PinnedMemory::Call(const char* name, int result) {
  if (result == 0) {
    return true;
  }
  problem_ = driver_.Explain(name, result);
  return false;
}

bool PinnedMemory::Begin() {
  if (!begun_) {
    begun_ = true;
    if (!Call("cuInit", driver_.init(0))) {
      return false;
    }
  }
  CudaDriver::Context current = nullptr;
  if (!Call("cuCtxGetCurrent", driver_.get_current(&current))) {
    return false;
  }
  if (current == nullptr) {
    if (primary_ == nullptr && (!Call("cuDeviceGet", driver_.device_get(&device_, 0)) ||
                                !Call("cuDevicePrimaryCtxRetain", driver_.primary_retain(&primary_, device_)))) {
      return false;
    }
    current = primary_;
  }
  return Call("cuCtxPushCurrent", driver_.push_current(current));
}

void PinnedMemory::End() {
  CudaDriver::Context popped = nullptr;
  driver_.pop_current(&popped);
}

void PinnedMemory::Pin(std::byte* begin, size_t bytes, size_t limit) {
  const MutexLock lock(mutex_);
  const auto found = pinned_.find(begin);
  const size_t before = found == pinned_.end() ? 0 : found->second;
  if (bytes <= before || !problem_.empty() || ProcessId() != owner_) {
    return;
  }
  // Lock some more, so that slowly growing batches do not cause a new registration each time.
  const size_t wanted = before == 0 ? bytes : std::max(bytes, before + before / 4);
  const size_t rounded = std::min((wanted + kUnit - 1) / kUnit * kUnit, limit);
  if (before != 0) {
    UnpinLocked(begin);
  }
  if (!problem_.empty() || !Begin()) {
    return;
  }
  if (Call("cuMemHostRegister", driver_.host_register(begin, rounded, CudaDriver::kPortableMemory))) {
    pinned_[begin] = rounded;
    pinned_bytes_ += rounded;
  }
  End();
}

void PinnedMemory::Unpin(std::byte* begin) {
  const MutexLock lock(mutex_);
  if (ProcessId() == owner_ && pinned_.count(begin) != 0) {
    UnpinLocked(begin);
  }
}

void PinnedMemory::UnpinLocked(std::byte* begin) {
  const auto found = pinned_.find(begin);
  pinned_bytes_ -= found->second;
  pinned_.erase(found);
  // When the process exits, the driver may already be gone, and the registrations with it.
  if (Begin()) {
    Call("cuMemHostUnregister", driver_.host_unregister(begin));
    End();
  }
}

std::string PinnedMemory::problem() const {
  const MutexLock lock(mutex_);
  return problem_;
}

size_t PinnedMemory::PinnedBytes(std::byte* begin) const {
  const MutexLock lock(mutex_);
  const auto found = pinned_.find(begin);
  return found == pinned_.end() ? 0 : found->second;
}

size_t PinnedMemory::pinned_bytes() const {
  const MutexLock lock(mutex_);
  return pinned_bytes_;
}

}  // namespace headrace::shared_memory
