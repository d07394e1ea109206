// The consumer's sleep, and how it is woken: by whoever completes a batch, through an eventfd, and by the descriptor
// that says that a producer has ended.
//
// Both sides announce what they do before they look: the consumer says that it is about to sleep and looks once more;
// whoever has something for it says so and then looks whether it sleeps. So no wake-up is lost, and no system call is
// made while it is awake.
//
// Thread-safety: Announce, Sleep and Awake belong to the consumer's thread, Wake to any.
#pragma once

#include <atomic>
#include <cstdint>

#include "framework/export.h"

namespace headrace::shared_memory {

class HEADRACE_API ConsumerSleep {
 public:
  // `sleeps`: in shared memory, 1 while the consumer sleeps; must outlive this. Throws IoError if the system gives no
  // eventfd.
  explicit ConsumerSleep(std::atomic<uint32_t>& sleeps);
  ~ConsumerSleep();
  ConsumerSleep(const ConsumerSleep&) = delete;
  ConsumerSleep& operator=(const ConsumerSleep&) = delete;

  // What producers write to.
  int fd() const { return fd_; }

  enum class Result {
    kWoken,     // or for no reason
    kReadable,  // `also` is
    kSignal,    // a signal handler ran
  };
  // After it, look once more, then Sleep.
  void Announce() { sleeps_.exchange(1); }
  // Sleeps until somebody wakes it or `also` is readable, at most `timeout_ns`. Throws IoError if the system
  // refuses.
  Result Sleep(int also, int64_t timeout_ns);
  void Awake() { sleeps_.store(0, std::memory_order_relaxed); }

  // If it sleeps, or is about to.
  void Wake();

 private:
  std::atomic<uint32_t>& sleeps_;
  int fd_ = -1;
};

}  // namespace headrace::shared_memory
