// Page-locks memory for CUDA, so that copies from it to a GPU need no staging copy and run asynchronously. The copies
// are made by the user, or by python/headrace/data/_samples/device_copies.py.
//
// Without a driver or a GPU, nothing is locked and `problem` says why. The first Pin makes the first call to the
// driver, because a process that has called it cannot fork children that use it. Memory is locked for every context of
// the process; the calls are made in the calling thread's current context, or in the primary context of the first
// device.
//
// Thread-safety: any thread; one mutex, held during driver calls. In a forked child all calls do nothing.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "framework/export.h"
#include "framework/thread_annotations.h"
#include "reader/shared_memory/cuda/cuda_driver.h"

namespace headrace::shared_memory {

class HEADRACE_API PinnedMemory {
 public:
  explicit PinnedMemory(const char* library = CudaDriver::kLibrary);
  // Unlocks all of it.
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Locks at least the first `bytes` bytes from `begin` on, but no more than `limit` bytes. `begin` must be aligned to
  // a page and stay mapped until Unpin. The locked range grows with demand. After a failed call no further one is
  // tried.
  void Pin(std::byte* begin, size_t bytes, size_t limit);
  // Unlocks what Pin has locked from `begin` on.
  void Unpin(std::byte* begin);

  // Why nothing (more) is locked; empty if nothing prevents it.
  std::string problem() const;
  // Bytes locked from `begin` on, and in total.
  size_t PinnedBytes(std::byte* begin) const;
  size_t pinned_bytes() const;

 private:
  // Begin makes a context current, or returns false; call End after true.
  bool Begin() HR_REQUIRES(mutex_);
  void End();
  void UnpinLocked(std::byte* begin) HR_REQUIRES(mutex_);
  // Whether the call succeeded; records the problem if not.
  bool Call(const char* name, int result) HR_REQUIRES(mutex_);

  const pid_t owner_;
  mutable Mutex mutex_;
  const CudaDriver driver_;
  CudaDriver::Context primary_ HR_GUARDED_BY(mutex_) = nullptr;  // of device_, retained once it was needed
  int device_ HR_GUARDED_BY(mutex_) = 0;
  std::string problem_ HR_GUARDED_BY(mutex_);
  bool begun_ HR_GUARDED_BY(mutex_) = false;
  std::map<std::byte*, size_t> pinned_ HR_GUARDED_BY(mutex_);
  size_t pinned_bytes_ HR_GUARDED_BY(mutex_) = 0;
};

}  // namespace headrace::shared_memory
