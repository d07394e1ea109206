// A bounded first-in-first-out queue between threads. Its three ends can be told apart:
//
//   closed   The normal end. Accepted items are still delivered, then Receive returns kClosed, until ReOpen.
//   failed   An error ended the pass. Items accepted before it are still delivered, in order; then Receive throws
//            the error, every time, until ReOpen. The first error is kept, and wins over any Close.
//   killed   The permanent end. Queued items are dropped, Receive returns kKilled (or throws the error if there is
//            one), ReOpen throws.
//
// The time between two ReOpens is an epoch. A producer asks for epoch() when it starts and passes it along: once the
// queue has been reopened, a producer of an older epoch can neither send nor close nor fail the queue, and a Receive or
// Send that was waiting then returns as if the queue had been closed. So nothing of an old pass leaks into a new one,
// however slow the old producer is to notice.
//
// Thread-safety: any method from any thread. One mutex guards everything but the two wait counters; waiting is on two
// condition variables. An item that becomes available wakes one waiter, an end or a new epoch wakes all. Items and
// errors are destroyed outside the lock, since their destructors may be arbitrary code (a buffer's deleter, a Python
// exception). Lifetime: must outlive every call.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "framework/errors.h"
#include "framework/thread_annotations.h"
#include "framework/wait_hook.h"

namespace headrace {

enum class SendResult { kTaken, kRefused, kAfterEnd, kTimedOut };
enum class ReceiveResult { kItem, kClosed, kKilled, kTimedOut };

// Totals since the queue was made, over all epochs, except depth and epoch.
struct QueueStats {
  uint64_t sent = 0;              // items accepted
  uint64_t received = 0;          // items delivered
  uint64_t producer_wait_ns = 0;  // time that finished Sends have spent blocked, summed over threads
  uint64_t consumer_wait_ns = 0;  // time that finished Receives have spent blocked, summed over threads
  size_t depth = 0;               // items queued now
  size_t capacity = 0;
  uint64_t epoch = 0;
};

template <typename T>
class BlockingQueue {
 public:
  using Clock = std::chrono::steady_clock;
  // Stands for the epoch at the time of the call. Epochs count from 1.
  static constexpr uint64_t kCurrentEpoch = 0;

  // At most `capacity` items are queued; 0 is an InvalidArgument. In speed-test mode Receive copies the front item and
  // leaves it where it is, so that a consumer can be measured without producers: then only Kill, Fail and ReOpen end
  // the pass.
  explicit BlockingQueue(size_t capacity, bool speed_test_mode = false)
      : capacity_(capacity), speed_test_mode_(speed_test_mode) {
    HR_ENFORCE(capacity > 0, InvalidArgument, "the capacity of a queue must be positive, got 0");
    HR_ENFORCE(!speed_test_mode || std::copy_constructible<T>, InvalidArgument,
               "speed-test mode needs items that can be copied");
  }
  BlockingQueue(const BlockingQueue&) = delete;
  BlockingQueue& operator=(const BlockingQueue&) = delete;

  // Blocks while the queue is full. kAfterEnd if the senders themselves had ended the pass (Close, Fail) before this
  // call: a mistake of theirs, since the item would be lost. kRefused if the pass ends meanwhile, if the consumer has
  // ended it (Interrupt, Kill) or if `epoch` is over: a request to stop. `item` is untouched unless kTaken.
  SendResult Send(T&& item, uint64_t epoch = kCurrentEpoch) { return SendUntil(std::move(item), std::nullopt, epoch); }
  // As Send, but gives up after `timeout`; `item` is untouched unless kTaken.
  SendResult SendFor(T&& item, Clock::duration timeout, uint64_t epoch = kCurrentEpoch) {
    return SendUntil(std::move(item), After(timeout), epoch);
  }

  // Blocks while the queue is empty and open. Fills `*out` only if kItem. Throws the error of a failed queue.
  ReceiveResult Receive(T* out) { return ReceiveUntil(out, std::nullopt); }
  ReceiveResult ReceiveFor(T* out, Clock::duration timeout) { return ReceiveUntil(out, After(timeout)); }

  // Ends the pass normally. False, and nothing happens, if `epoch` is over.
  bool Close(uint64_t epoch = kCurrentEpoch) {
    {
      const MutexLock lock(mutex_);
      if (IsOver(epoch)) return false;
      closed_ = true;
    }
    WakeAll();
    return true;
  }

  // The consumer's way to end the pass: as Close, but a Send that comes later is kRefused, not kAfterEnd.
  void Interrupt() {
    {
      const MutexLock lock(mutex_);
      closed_ = true;
      interrupted_ = true;
    }
    WakeAll();
  }

  // Ends the pass with an error. False, and nothing happens, if `epoch` is over or there is an error already.
  bool Fail(std::exception_ptr error, uint64_t epoch = kCurrentEpoch) {
    HR_ENFORCE(error != nullptr, InvalidArgument, "a queue fails with an error, got none");
    {
      const MutexLock lock(mutex_);
      if (IsOver(epoch) || error_ != nullptr) return false;
      error_ = std::move(error);
      closed_ = true;
    }
    WakeAll();
    return true;
  }

  // Drops queued items and any error, opens the queue and begins an epoch, which it returns. Throws
  // FailedPrecondition if killed.
  uint64_t ReOpen() {
    std::deque<T> dropped;
    std::exception_ptr forgotten;
    uint64_t epoch = 0;
    {
      const MutexLock lock(mutex_);
      HR_ENFORCE(!killed_, FailedPrecondition, "the queue was killed and cannot be opened again");
      dropped.swap(items_);
      forgotten.swap(error_);
      closed_ = false;
      interrupted_ = false;
      sent_in_epoch_ = 0;
      epoch = ++epoch_;
    }
    WakeAll();
    return epoch;
  }

  void Kill() {
    std::deque<T> dropped;
    {
      const MutexLock lock(mutex_);
      dropped.swap(items_);
      killed_ = true;
      closed_ = true;
      interrupted_ = true;
    }
    WakeAll();
  }

  size_t Cap() const { return capacity_; }
  size_t Size() const {
    const MutexLock lock(mutex_);
    return items_.size();
  }
  // Whether Send would be refused: closed, failed or killed.
  bool IsClosed() const {
    const MutexLock lock(mutex_);
    return closed_;
  }
  bool IsKilled() const {
    const MutexLock lock(mutex_);
    return killed_;
  }
  uint64_t epoch() const {
    const MutexLock lock(mutex_);
    return epoch_;
  }
  // Items accepted in this epoch.
  uint64_t SentInEpoch() const {
    const MutexLock lock(mutex_);
    return sent_in_epoch_;
  }
  QueueStats stats() const {
    const MutexLock lock(mutex_);
    return {.sent = sent_,
            .received = received_,
            .producer_wait_ns = producer_wait_ns_.load(std::memory_order_relaxed),
            .consumer_wait_ns = consumer_wait_ns_.load(std::memory_order_relaxed),
            .depth = items_.size(),
            .capacity = capacity_,
            .epoch = epoch_};
  }

 private:
  using Deadline = std::optional<Clock::time_point>;

  // None if the time is further away than the clock counts.
  static Deadline After(Clock::duration timeout) {
    const Clock::time_point now = Clock::now();
    return timeout < Clock::time_point::max() - now ? Deadline(now + timeout) : std::nullopt;
  }

  SendResult SendUntil(T&& item, Deadline deadline, uint64_t epoch) {
    MutexLock lock(mutex_);
    if (epoch == kCurrentEpoch) epoch = epoch_;
    if (closed_ && !interrupted_ && epoch == epoch_) return SendResult::kAfterEnd;
    if (!WaitUntil(lock, not_full_, &BlockingQueue::SendNeedNotWait, epoch, deadline, producer_wait_ns_)) {
      return SendResult::kTimedOut;
    }
    if (closed_ || epoch != epoch_) return SendResult::kRefused;
    items_.push_back(std::move(item));
    ++sent_;
    ++sent_in_epoch_;
    lock.Unlock();
    not_empty_.NotifyOne();
    return SendResult::kTaken;
  }

  ReceiveResult ReceiveUntil(T* out, Deadline deadline) {
    MutexLock lock(mutex_);
    const uint64_t epoch = epoch_;
    if (!WaitUntil(lock, not_empty_, &BlockingQueue::ReceiveNeedNotWait, epoch, deadline, consumer_wait_ns_)) {
      return ReceiveResult::kTimedOut;
    }
    if (epoch != epoch_) return ReceiveResult::kClosed;
    // In speed-test mode items never run out, so an error would never be seen if it had to wait for that.
    const bool failed = error_ != nullptr && (items_.empty() || speed_test_mode_);
    if (failed) {
      const std::exception_ptr error = error_;
      lock.Unlock();
      RethrowCopy(error);
    }
    if (items_.empty()) return killed_ ? ReceiveResult::kKilled : ReceiveResult::kClosed;
    T item = TakeFront();
    ++received_;
    lock.Unlock();
    // In speed-test mode the item is still there, for the next consumer.
    (speed_test_mode_ ? not_empty_ : not_full_).NotifyOne();
    *out = std::move(item);
    return ReceiveResult::kItem;
  }

  T TakeFront() HR_REQUIRES(mutex_) {
    if constexpr (std::copy_constructible<T>) {
      if (speed_test_mode_) return items_.front();
    }
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  bool SendNeedNotWait(uint64_t epoch) const HR_REQUIRES(mutex_) {
    return closed_ || epoch != epoch_ || items_.size() < capacity_;
  }
  bool ReceiveNeedNotWait(uint64_t epoch) const HR_REQUIRES(mutex_) {
    return closed_ || epoch != epoch_ || !items_.empty();
  }

  // Waits until ready(epoch) holds, in slices if the thread has a wait hook; false if the deadline came first. If the
  // hook throws, the lock is not held. Not analysed: the lock is the caller's.
  bool WaitUntil(MutexLock& lock, Condition& condition, bool (BlockingQueue::*ready)(uint64_t) const, uint64_t epoch,
                 const Deadline& deadline, std::atomic<uint64_t>& blocked_ns)
      HR_REQUIRES(mutex_) HR_NO_THREAD_SAFETY_ANALYSIS {
    if ((this->*ready)(epoch)) return true;
    struct BlockedTime {
      std::atomic<uint64_t>& total_ns;
      Clock::time_point begin = Clock::now();
      ~BlockedTime() {
        const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
        total_ns.fetch_add(static_cast<uint64_t>(spent.count()), std::memory_order_relaxed);
      }
    } const blocked{blocked_ns};
    const std::function<void()>* hook = ScopedWaitHook::Current();
    for (;;) {
      Deadline until = deadline;
      if (hook != nullptr) {
        const Clock::time_point slice = Clock::now() + ScopedWaitHook::kPeriod;
        until = deadline ? std::min(*deadline, slice) : slice;
      }
      bool in_time = true;
      while (in_time && !(this->*ready)(epoch)) {
        if (until) {
          in_time = condition.WaitUntil(lock, *until);
        } else {
          condition.Wait(lock);
        }
      }
      if ((this->*ready)(epoch)) return true;
      if (deadline && Clock::now() >= *deadline) return false;
      if (hook != nullptr) {
        lock.Unlock();
        (*hook)();
        lock.Lock();
      }
    }
  }

  bool IsOver(uint64_t epoch) const HR_REQUIRES(mutex_) { return epoch != kCurrentEpoch && epoch != epoch_; }

  void WakeAll() {
    not_empty_.NotifyAll();
    not_full_.NotifyAll();
  }

  const size_t capacity_;
  const bool speed_test_mode_;

  mutable Mutex mutex_;
  Condition not_empty_;
  Condition not_full_;
  std::deque<T> items_ HR_GUARDED_BY(mutex_);
  bool closed_ HR_GUARDED_BY(mutex_) = false;       // Send is refused: closed, failed, interrupted or killed
  bool interrupted_ HR_GUARDED_BY(mutex_) = false;  // by the consumer
  bool killed_ HR_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ HR_GUARDED_BY(mutex_);
  uint64_t epoch_ HR_GUARDED_BY(mutex_) = 1;
  uint64_t sent_ HR_GUARDED_BY(mutex_) = 0;
  uint64_t sent_in_epoch_ HR_GUARDED_BY(mutex_) = 0;
  uint64_t received_ HR_GUARDED_BY(mutex_) = 0;

  std::atomic<uint64_t> producer_wait_ns_{0};
  std::atomic<uint64_t> consumer_wait_ns_{0};
};

}  // namespace headrace
