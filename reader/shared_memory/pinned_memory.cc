#include "reader/shared_memory/pinned_memory.h"

#include <dlfcn.h>

#include <algorithm>

#include "reader/shared_memory/process_id.h"

namespace headrace::shared_memory {
namespace {

constexpr size_t kUnit = size_t{64} << 10;
constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE

}  // namespace

// The driver's functions, as its documentation declares them: a result of 0 is success, contexts are opaque.
struct PinnedMemory::Driver {
  using Context = void*;

  explicit Driver(const char* name) : library(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (library == nullptr) {
      const char* error = dlerror();
      problem = std::string("the CUDA driver could not be loaded: ") + (error == nullptr ? name : error);
      return;
    }
    Find("cuInit", &init);
    Find("cuGetErrorString", &get_error_string);
    Find("cuDeviceGet", &device_get);
    Find("cuDevicePrimaryCtxRetain", &primary_retain);
    Find("cuDevicePrimaryCtxRelease_v2", &primary_release);
    Find("cuCtxGetCurrent", &get_current);
    Find("cuCtxPushCurrent_v2", &push_current);
    Find("cuCtxPopCurrent_v2", &pop_current);
    Find("cuMemHostRegister_v2", &host_register);
    Find("cuMemHostUnregister", &host_unregister);
  }
  // The library stays: CUDA does not come back after it was unloaded.

  template <typename Function>
  void Find(const char* symbol, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, symbol));
    if (*function == nullptr) {
      problem = std::string("the CUDA driver is too old: it has no ") + symbol;
    }
  }

  void* library;
  std::string problem;
  Context primary = nullptr;  // of `device`, retained once it was needed
  int device = 0;
  int (*init)(unsigned) = nullptr;
  int (*get_error_string)(int, const char**) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*primary_retain)(Context*, int) = nullptr;
  int (*primary_release)(int) = nullptr;
  int (*get_current)(Context*) = nullptr;
  int (*push_current)(Context) = nullptr;
  int (*pop_current)(Context*) = nullptr;
  int (*host_register)(void*, size_t, unsigned) = nullptr;
  int (*host_unregister)(void*) = nullptr;
};

PinnedMemory::PinnedMemory(const char* library)
    : owner_(ProcessId()), driver_(std::make_unique<Driver>(library)), problem_(driver_->problem) {}

PinnedMemory::~PinnedMemory() {
  if (ProcessId() != owner_) {
    return;
  }
  while (!pinned_.empty()) {
    UnpinLocked(pinned_.begin()->first);
  }
  if (driver_->primary != nullptr) {
    driver_->primary_release(driver_->device);
  }
}

bool PinnedMemory::Call(const char* name, int result) {
  if (result == 0) {
    return true;
  }
  const char* text = nullptr;
  driver_->get_error_string(result, &text);
  problem_ = std::string("CUDA's ") + name + " failed: " + (text == nullptr ? "unknown error" : text) + " (" +
             std::to_string(result) + ")";
  return false;
}

bool PinnedMemory::Begin() {
  if (!begun_) {
    begun_ = true;
    if (!Call("cuInit", driver_->init(0))) {
      return false;
    }
  }
  Driver::Context current = nullptr;
  if (!Call("cuCtxGetCurrent", driver_->get_current(&current))) {
    return false;
  }
  if (current == nullptr) {
    if (driver_->primary == nullptr &&
        (!Call("cuDeviceGet", driver_->device_get(&driver_->device, 0)) ||
         !Call("cuDevicePrimaryCtxRetain", driver_->primary_retain(&driver_->primary, driver_->device)))) {
      return false;
    }
    current = driver_->primary;
  }
  return Call("cuCtxPushCurrent", driver_->push_current(current));
}

void PinnedMemory::End() {
  Driver::Context popped = nullptr;
  driver_->pop_current(&popped);
}

void PinnedMemory::Pin(std::byte* begin, size_t bytes, size_t limit) {
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(begin);
  const size_t before = found == pinned_.end() ? 0 : found->second;
  if (bytes <= before || !problem_.empty() || ProcessId() != owner_) {
    return;
  }
  // Room to grow, so that batches of slowly rising sizes do not have it locked anew each time.
  const size_t wanted = before == 0 ? bytes : std::max(bytes, before + before / 4);
  const size_t rounded = std::min((wanted + kUnit - 1) / kUnit * kUnit, limit);
  if (before != 0) {
    UnpinLocked(begin);
  }
  if (!problem_.empty() || !Begin()) {
    return;
  }
  if (Call("cuMemHostRegister", driver_->host_register(begin, rounded, kPortable))) {
    pinned_[begin] = rounded;
    pinned_bytes_ += rounded;
  }
  End();
}

void PinnedMemory::Unpin(std::byte* begin) {
  const std::lock_guard lock(mutex_);
  if (ProcessId() == owner_ && pinned_.count(begin) != 0) {
    UnpinLocked(begin);
  }
}

void PinnedMemory::UnpinLocked(std::byte* begin) {
  const auto found = pinned_.find(begin);
  pinned_bytes_ -= found->second;
  pinned_.erase(found);
  // At the process's end the driver may have gone first, and all of this with it.
  if (Begin()) {
    Call("cuMemHostUnregister", driver_->host_unregister(begin));
    End();
  }
}

std::string PinnedMemory::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

size_t PinnedMemory::PinnedBytes(std::byte* begin) const {
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(begin);
  return found == pinned_.end() ? 0 : found->second;
}

size_t PinnedMemory::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  return pinned_bytes_;
}

}  // namespace headrace::shared_memory
