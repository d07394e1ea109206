// Spin: the consumer, or a producer, spins for a moment before it sleeps, where that pays.
//
// Sleeping and waking costs two processors about ten microseconds each in a virtual machine, a few elsewhere, and the
// side that wakes the other pays its part out of its own work. Spinning avoids that cost, but only while the wait is
// short and nobody else wants the processor.
//
// Thread-safety: one thread per object.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headrace::shared_memory {

// Decides for each wait how long to spin: up to a limit; but each wait that exceeds the limit makes it skip ever more
// waits without spinning at all. On a crowded machine it ends up trying once in a thousand waits.
class SpinBudget {
 public:
  // The spin limit of the wait that begins now.
  int64_t Start(int64_t limit_ns) {
    if (skip_ > 0) {
      --skip_;
      limit_ns = 0;
    }
    limit_ns_ = limit_ns;
    return limit_ns;
  }

  // Reports how long the wait took.
  void Finish(int64_t waited_ns) {
    if (limit_ns_ == 0) {
      return;
    }
    // A failed trial costs several times what a successful one gains.
    penalty_ = waited_ns <= limit_ns_ ? penalty_ / 2 : std::min(4 * penalty_ + 3, 1000U);
    skip_ = penalty_;
  }

 private:
  int64_t limit_ns_ = 0;
  uint32_t penalty_ = 0;
  uint32_t skip_ = 0;
};

}  // namespace headrace::shared_memory
