#include "reader/shared_memory/cuda/device_fence.h"

#include <algorithm>
#include <utility>

#include "reader/shared_memory/arena/process_id.h"

namespace headrace::shared_memory {
namespace {

// A stream is being captured into a graph, and the driver refuses whatever would disturb that, for now.
// (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
bool IsCapturing(int result) { return result >= 900 && result <= 908; }

// Makes a context current in this thread.
class CurrentContext {
 public:
  CurrentContext(const CudaDriver& driver, CudaDriver::Context context)
      : driver_(driver), pushed_(driver.push_current(context) == 0) {}
  ~CurrentContext() {
    if (pushed_) {
      CudaDriver::Context popped = nullptr;
      driver_.pop_current(&popped);
    }
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  explicit operator bool() const { return pushed_; }

 private:
  const CudaDriver& driver_;
  const bool pushed_;
};

}  // namespace

DeviceFence::DeviceFence(const char* library)
    : owner_(ProcessId()), driver_(library), can_mark_(driver_.record_context != nullptr) {}

DeviceFence::~DeviceFence() {
  if (ProcessId() != owner_ || !driver_.problem.empty()) {
    return;
  }
  const MutexLock lock(mutex_);
  if (!entries_.empty()) {
    SynchronizeContexts();
  }
  for (const Entry& entry : entries_) {
    for (const Mark& mark : entry.marks) {
      Recycle(mark);
    }
  }
  for (const auto& [context, events] : spare_) {
    for (const CudaDriver::Event event : events) {
      driver_.event_destroy(event);
    }
  }
  for (const auto& [device, context] : primaries_) {
    driver_.primary_release(device);
  }
}

void DeviceFence::Hold(uint32_t slot) {
  const MutexLock lock(mutex_);
  Entry entry{slot, false, {}};
  if (ProcessId() == owner_ && driver_.problem.empty()) {
    IsMarked(entry);
  }
  entries_.push_back(std::move(entry));
  held_.store(entries_.size(), std::memory_order_relaxed);
}

std::vector<uint32_t> DeviceFence::TakeEnded(bool urgent) {
  std::vector<uint32_t> ended;
  if (held() == 0) {
    return ended;
  }
  const MutexLock lock(mutex_);
  // A later entry's work includes that of earlier ones, so the search stops at the first that has not ended.
  while (!entries_.empty() && HasEnded(entries_.front())) {
    ended.push_back(entries_.front().slot);
    entries_.pop_front();
  }
  const bool due = entries_.size() >= kSynchronizeAt || (urgent && !entries_.empty());
  if (!can_mark_ && due && SynchronizeContexts()) {
    for (const Entry& entry : entries_) {
      ended.push_back(entry.slot);
    }
    entries_.clear();
  }
  held_.store(entries_.size(), std::memory_order_relaxed);
  return ended;
}

void DeviceFence::AddContext(CudaDriver::Context context) {
  if (context != nullptr && std::find(contexts_.begin(), contexts_.end(), context) == contexts_.end()) {
    contexts_.push_back(context);
  }
}

void DeviceFence::FindContexts() {
  CudaDriver::Context current = nullptr;
  if (driver_.get_current(&current) == 0) {
    AddContext(current);
  }
  int devices = 0;
  driver_.device_count(&devices);
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    int device = 0;
    unsigned flags = 0;
    int active = 0;
    if (driver_.device_get(&device, ordinal) != 0 || primaries_.count(device) != 0 ||
        driver_.primary_state(device, &flags, &active) != 0 || active == 0) {
      continue;
    }
    CudaDriver::Context primary = nullptr;
    if (driver_.primary_retain(&primary, device) == 0) {
      primaries_[device] = primary;
      AddContext(primary);
    }
  }
}

// Whether the work before the release is marked. It cannot be while a stream is being captured into a graph; an entry
// marked later waits for more than necessary.
bool DeviceFence::IsMarked(Entry& entry) {
  if (entry.marked || !can_mark_) {
    return entry.marked;
  }
  FindContexts();
  std::vector<Mark> marks;
  int result = 0;
  for (const CudaDriver::Context context : contexts_) {
    const CurrentContext current(driver_, context);
    if (!current) {
      continue;  // it was destroyed, and its work with it
    }
    std::vector<CudaDriver::Event>& spare = spare_[context];
    CudaDriver::Event event = nullptr;
    if (!spare.empty()) {
      event = spare.back();
      spare.pop_back();
    } else {
      result = driver_.event_create(&event, CudaDriver::kDisableTiming);
      if (result != 0) {
        break;
      }
    }
    marks.push_back({context, event});
    result = driver_.record_context(context, event);
    if (result != 0) {
      break;
    }
  }
  if (result != 0) {
    can_mark_ = IsCapturing(result);
    for (const Mark& mark : marks) {
      Recycle(mark);
    }
    return false;
  }
  entry.marks = std::move(marks);
  entry.marked = true;
  return true;
}

bool DeviceFence::HasEnded(Entry& entry) {
  if (ProcessId() != owner_ || !driver_.problem.empty()) {
    return true;
  }
  if (!IsMarked(entry)) {
    return false;
  }
  while (!entry.marks.empty()) {
    // Any other error concerns the context itself, whose work is over then.
    if (driver_.event_query(entry.marks.back().event) == CudaDriver::kNotReady) {
      return false;
    }
    Recycle(entry.marks.back());
    entry.marks.pop_back();
  }
  return true;
}

bool DeviceFence::SynchronizeContexts() {
  FindContexts();
  bool all = true;
  for (const CudaDriver::Context context : contexts_) {
    const CurrentContext current(driver_, context);
    // An error of the context itself also ends its work.
    all = all && (!current || !IsCapturing(driver_.synchronize()));
  }
  return all;
}

}  // namespace headrace::shared_memory
