// Locks memory into physical pages for CUDA, so that copies from it to a GPU need no copy in between and run beside
// everything else.
//
// Where there is no driver or no GPU, nothing is locked and `problem` says why. The driver is first called by the first
// Pin, since a process that has called it cannot fork children that use it. Memory is locked for every context of the
// process; the calls are made in the calling thread's current context, or in the primary one of the first device.
//
// Thread-safety: any thread; one mutex, which is held while the driver works. In a forked child nothing is done.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "framework/export.h"
#include "reader/shared_memory/cuda_driver.h"

namespace headrace::shared_memory {

class HEADRACE_API PinnedMemory {
 public:
  explicit PinnedMemory(const char* library = CudaDriver::kLibrary);
  // Unlocks all of it.
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Has at least the first `bytes` bytes from `begin` on locked, but not beyond `limit` bytes. `begin` is at a page's
  // begin, and stays mapped until Unpin. What is locked grows with the demand. After a call that has failed no further
  // one is tried.
  void Pin(std::byte* begin, size_t bytes, size_t limit);
  // Unlocks what Pin has locked from `begin` on.
  void Unpin(std::byte* begin);

  // Why nothing (more) is locked; empty if nothing keeps it from that.
  std::string problem() const;
  // Bytes locked from `begin` on, and in all.
  size_t PinnedBytes(std::byte* begin) const;
  size_t pinned_bytes() const;

 private:
  // With mutex_ held. Begin makes a context current, or says false; End is due after true.
  bool Begin();
  void End();
  void UnpinLocked(std::byte* begin);
  // Whether a call has succeeded; notes the problem if not.
  bool Call(const char* name, int result);

  const pid_t owner_;
  mutable std::mutex mutex_;
  const CudaDriver driver_;
  CudaDriver::Context primary_ = nullptr;  // of device_, retained once it was needed
  int device_ = 0;
  std::string problem_;
  bool begun_ = false;
  std::map<std::byte*, size_t> pinned_;
  size_t pinned_bytes_ = 0;
};

}  // namespace headrace::shared_memory
