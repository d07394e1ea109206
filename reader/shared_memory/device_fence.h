// Holds released slots back until CUDA devices can no longer read them.
//
// An asynchronous copy from pinned memory has only been submitted when the call returns; the consumer may drop its last
// view of the batch long before the copy runs. A slot that was freed then would be overwritten by a producer while the
// device reads it. So a released slot waits here for all work that was submitted, to any stream of any device that the
// process uses, before the release.
//
// With a driver of CUDA 12.5 or later an event that captures the whole context (cuCtxRecordEvent) marks that work; a
// look at it costs about a microsecond and never waits. An older driver has no such mark, since the streams of others
// cannot be listed. There the fence lets kSynchronizeAt slots come together, or as many as there are when no other is
// left, and then waits once until the devices have nothing left to do (cuCtxSynchronize).
//
// Thread-safety: any thread; one mutex, which is held while the driver works. In a forked child nothing is done.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "framework/export.h"
#include "reader/shared_memory/cuda_driver.h"

namespace headrace::shared_memory {

class HEADRACE_API DeviceFence {
 public:
  static constexpr size_t kSynchronizeAt = 4;

  // Uses the driver from the first Hold on; by then somebody has initialised it.
  explicit DeviceFence(const char* library = CudaDriver::kLibrary);
  // Waits for the work on the slots that it still holds.
  ~DeviceFence();
  DeviceFence(const DeviceFence&) = delete;
  DeviceFence& operator=(const DeviceFence&) = delete;

  // The consumer has released the slot now.
  void Hold(uint32_t slot);
  // The slots that no device reads any more, which are the caller's from then on. `urgent`: nothing goes on without
  // one.
  std::vector<uint32_t> TakeEnded(bool urgent);
  // How many slots it holds.
  size_t held() const { return held_.load(std::memory_order_relaxed); }

 private:
  struct Mark {
    CudaDriver::Context context;
    CudaDriver::Event event;
  };
  struct Entry {
    uint32_t slot;
    bool marked;
    std::vector<Mark> marks;  // of the contexts whose work may not have ended
  };

  // With mutex_ held.
  void FindContexts();
  bool IsMarked(Entry& entry);
  bool HasEnded(Entry& entry);
  bool SynchronizeContexts();
  void Recycle(const Mark& mark) { spare_[mark.context].push_back(mark.event); }

  const pid_t owner_;
  const CudaDriver driver_;
  std::atomic<size_t> held_{0};
  std::mutex mutex_;
  bool can_mark_;
  std::deque<Entry> entries_;                                            // in the order of their release
  std::map<int, CudaDriver::Context> primaries_;                         // retained, by device
  std::vector<CudaDriver::Context> contexts_;                            // whatever was ever seen
  std::map<CudaDriver::Context, std::vector<CudaDriver::Event>> spare_;  // events that mark nothing now
};

}  // namespace headrace::shared_memory
