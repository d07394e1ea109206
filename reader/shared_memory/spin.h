// Waiting awake, where it pays.
//
// To sleep and be woken costs two processors some ten microseconds each in a virtual machine, a few elsewhere; whoever
// is waited for pays its part out of its own work. Waiting awake costs nothing of the kind, but only as long as the
// wait is short and nobody else wants the processor.
//
// Thread-safety: one thread per object.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headrace::shared_memory {

// A moment's rest for a processor that waits awake.
inline void SpinPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Decides for each wait how long it may be spent awake: up to a limit, but after waits that went beyond it, for ever
// more waits not at all. On a crowded machine it so ends up at one trial in a thousand waits.
class SpinBudget {
 public:
  // For the wait that begins now.
  int64_t Start(int64_t limit_ns) {
    if (skip_ > 0) {
      --skip_;
      limit_ns = 0;
    }
    limit_ns_ = limit_ns;
    return limit_ns;
  }

  // The wait took so long.
  void Finish(int64_t waited_ns) {
    if (limit_ns_ == 0) {
      return;
    }
    // A trial that fails loses several times what one that succeeds gains.
    penalty_ = waited_ns <= limit_ns_ ? penalty_ / 2 : std::min(4 * penalty_ + 3, 1000U);
    skip_ = penalty_;
  }

 private:
  int64_t limit_ns_ = 0;
  uint32_t penalty_ = 0;
  uint32_t skip_ = 0;
};

}  // namespace headrace::shared_memory
