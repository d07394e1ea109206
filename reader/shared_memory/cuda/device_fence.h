// Keeps released slots until CUDA devices can no longer read them.
//
// When the call that starts an asynchronous copy from pinned memory returns, the copy has only been submitted; the
// consumer may drop its last view of the batch long before it runs. If the slot were freed at that point, a producer
// would overwrite it while the device reads it. So a released slot waits here for all work submitted, to any stream of
// any device that the process uses, before the release.
//
// With a driver of CUDA 12.5 or later, an event that captures the whole context (cuCtxRecordEvent) marks that work;
// querying it takes about a microsecond and never waits. Older drivers have no such event, and nobody can list the
// streams of others. There the fence collects kSynchronizeAt slots, or fewer if no other slot is left, and then waits
// once until the devices are idle (cuCtxSynchronize).
//
// Thread-safety: any thread; one mutex, held during driver calls. In a forked child all calls do nothing.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "framework/export.h"
#include "framework/thread_annotations.h"
#include "reader/shared_memory/cuda/cuda_driver.h"

namespace headrace::shared_memory {

class HEADRACE_API DeviceFence {
 public:
  static constexpr size_t kSynchronizeAt = 4;

  // Calls the driver from the first Hold on, when it is already initialized.
  explicit DeviceFence(const char* library = CudaDriver::kLibrary);
  // Waits for the work on the slots still held.
  ~DeviceFence();
  DeviceFence(const DeviceFence&) = delete;
  DeviceFence& operator=(const DeviceFence&) = delete;

  // The consumer has just released the slot.
  void Hold(uint32_t slot);
  // Hands over the slots that no device reads any more. `urgent`: nothing can go on without one.
  std::vector<uint32_t> TakeEnded(bool urgent);
  // The number of slots held.
  size_t held() const { return held_.load(std::memory_order_relaxed); }

 private:
  struct Mark {
    CudaDriver::Context context;
    CudaDriver::Event event;
  };
  struct Entry {
    uint32_t slot;
    bool marked;
    std::vector<Mark> marks;  // one per context whose work may not have ended
  };

  void AddContext(CudaDriver::Context context) HR_REQUIRES(mutex_);
  void FindContexts() HR_REQUIRES(mutex_);
  bool IsMarked(Entry& entry) HR_REQUIRES(mutex_);
  bool HasEnded(Entry& entry) HR_REQUIRES(mutex_);
  bool SynchronizeContexts() HR_REQUIRES(mutex_);
  void Recycle(const Mark& mark) HR_REQUIRES(mutex_) { spare_[mark.context].push_back(mark.event); }

  const pid_t owner_;
  const CudaDriver driver_;
  std::atomic<size_t> held_{0};
  Mutex mutex_;
  bool can_mark_ HR_GUARDED_BY(mutex_);
  std::deque<Entry> entries_ HR_GUARDED_BY(mutex_);                     // in the order of their release
  std::map<int, CudaDriver::Context> primaries_ HR_GUARDED_BY(mutex_);  // retained, by device
  std::vector<CudaDriver::Context> contexts_ HR_GUARDED_BY(mutex_);     // all seen so far
  std::map<CudaDriver::Context, std::vector<CudaDriver::Event>> spare_
      HR_GUARDED_BY(mutex_);  // events that mark nothing now
};

}  // namespace headrace::shared_memory
