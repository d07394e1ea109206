// How the consumer sleeps and wakes: through an eventfd that producers write when they complete a batch, and through
// the descriptor that reports the end of a producer.
//
// Each side announces before it looks: the consumer announces that it is about to sleep and then checks once more; a
// producer marks its chunk done and then checks whether the consumer sleeps. So no wake-up is lost, and nobody makes a
// system call while the consumer is awake.
//
// Thread-safety: Announce, Sleep and Awake belong to the consumer's thread, Wake to any.
#pragma once

#include <atomic>
#include <cstdint>

#include "framework/export.h"

namespace headrace::shared_memory {

class HEADRACE_API ConsumerSleep {
 public:
  // `sleeps`: a word in shared memory, 1 while the consumer sleeps; must outlive this object. Throws IoError if the
  // system gives no eventfd.
  explicit ConsumerSleep(std::atomic<uint32_t>& sleeps);
  ~ConsumerSleep();
  ConsumerSleep(const ConsumerSleep&) = delete;
  ConsumerSleep& operator=(const ConsumerSleep&) = delete;

  // The eventfd that producers write to.
  int fd() const { return fd_; }

  enum class Result {
    kWoken,     // or for no reason
    kReadable,  // `also` is
    kSignal,    // a signal handler ran
  };
  // After this, check once more, then Sleep.
  void Announce() { sleeps_.exchange(1); }
  // Sleeps until woken or until `also` is readable, for at most `timeout_ns`. Throws IoError if poll fails.
  Result Sleep(int also, int64_t timeout_ns);
  void Awake() { sleeps_.store(0, std::memory_order_relaxed); }

  // Wakes the consumer if it sleeps or is about to.
  void Wake();

 private:
  std::atomic<uint32_t>& sleeps_;
  int fd_ = -1;
};

}  // namespace headrace::shared_memory
