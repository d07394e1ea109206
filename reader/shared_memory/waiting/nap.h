// Nap: the consumer sleeps through several batches, where that pays.
//
// Where the producers leave no processor to spare, each wake-up of the consumer costs them: one of them asks the kernel
// for it, and gives up its processor, with what the caches hold. While batches come fast, the consumer therefore sleeps
// for a moment in which nobody wakes it, and then finds several.
//
// Thread-safety: one thread per object.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headrace::shared_memory {

// Decides for each wait how long to sleep unasked: up to a limit; half as long once a producer has run out of work
// meanwhile, longer while none has, twice as long if no batch came. Where that gains nothing, since no batch comes even
// then or the producers would always run out, it skips ever more waits. On batches of a millisecond it ends up trying
// once in a thousand waits.
class NapLength {
 public:
  static constexpr int64_t kShortestNs = 25'000;
  static constexpr int64_t kLongestNs = 200'000;

  // How long to sleep in the wait that begins now; 0: not at all.
  int64_t Start() {
    if (skip_ > 0) {
      --skip_;
      return 0;
    }
    return length_ns_;
  }

  // Reports how a sleep as long as Start() said has ended: whether a batch had come, and whether a producer had no
  // work.
  void Finish(bool came, bool idle) {
    if (!came && !idle && length_ns_ < kLongestNs) {
      length_ns_ = std::min(2 * length_ns_, kLongestNs);
      return;
    }
    const bool too_long = idle && length_ns_ == kShortestNs;
    penalty_ = came && !too_long ? 0 : std::min(2 * penalty_ + 1, 1000U);
    skip_ = penalty_;
    length_ns_ = idle ? std::max(length_ns_ / 2, kShortestNs) : std::min(length_ns_ + length_ns_ / 16, kLongestNs);
  }

 private:
  int64_t length_ns_ = kLongestNs;
  uint32_t penalty_ = 0;
  uint32_t skip_ = 0;
};

}  // namespace headrace::shared_memory
