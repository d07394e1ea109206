// The right to read a reader, which one thread has at a time: a mutex whose waiters call their thread's wait hook
// (wait_hook.h), since its holder may wait for data indefinitely.
#pragma once

#include <chrono>
#include <functional>

#include "framework/thread_annotations.h"
#include "framework/wait_hook.h"

namespace headrace {

// Thread-safety: any thread may call anything.
class HR_THREAD_ATTRIBUTE(capability("mutex")) ReadTurn {
 public:
  // Calls the thread's wait hook meanwhile, if it has one; if that throws, the thread does not get the turn.
  void LockWithHook() HR_THREAD_ATTRIBUTE(acquire_capability()) { Take(ScopedWaitHook::Current()); }
  void Lock() HR_THREAD_ATTRIBUTE(acquire_capability()) { Take(nullptr); }
  void Unlock() HR_THREAD_ATTRIBUTE(release_capability()) {
    {
      const MutexLock lock(mutex_);
      taken_ = false;
    }
    free_.NotifyOne();
  }

 private:
  void Take(const std::function<void()>* hook) {
    MutexLock lock(mutex_);
    while (taken_) {
      if (hook == nullptr) {
        free_.Wait(lock);
      } else if (!free_.WaitUntil(lock, std::chrono::steady_clock::now() + ScopedWaitHook::kPeriod) && taken_) {
        lock.Unlock();
        (*hook)();
        lock.Lock();
      }
    }
    taken_ = true;
  }

  Mutex mutex_;
  Condition free_;
  bool taken_ HR_GUARDED_BY(mutex_) = false;
};

// Has the turn for its scope.
class HR_THREAD_ATTRIBUTE(scoped_lockable) ReadTurnLock {
 public:
  enum class Hook { kNone, kOfThread };

  explicit ReadTurnLock(ReadTurn& turn, Hook hook = Hook::kNone) HR_THREAD_ATTRIBUTE(acquire_capability(turn))
      : turn_(turn) {
    if (hook == Hook::kOfThread) {
      turn.LockWithHook();
    } else {
      turn.Lock();
    }
  }
  ~ReadTurnLock() HR_THREAD_ATTRIBUTE(release_capability()) { turn_.Unlock(); }
  ReadTurnLock(const ReadTurnLock&) = delete;
  ReadTurnLock& operator=(const ReadTurnLock&) = delete;

 private:
  ReadTurn& turn_;
};

}  // namespace headrace
