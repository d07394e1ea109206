// Annotations for Clang's thread-safety analysis, and a mutex that carries them. `make lint` has Clang check that data
// guarded by a mutex is touched only under it, and that functions that need it held are called so; GCC ignores them.
//
//   Mutex mutex_;
//   int count_ HR_GUARDED_BY(mutex_);
//   void Add() HR_REQUIRES(mutex_);
//   …
//   const MutexLock lock(mutex_);
//   Add();
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define HR_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define HR_THREAD_ATTRIBUTE(x)
#endif

#define HR_GUARDED_BY(mutex) HR_THREAD_ATTRIBUTE(guarded_by(mutex))
#define HR_REQUIRES(...) HR_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define HR_EXCLUDES(...) HR_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// Where the analysis cannot follow; say why next to it.
#define HR_NO_THREAD_SAFETY_ANALYSIS HR_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace headrace {

// std::mutex.
class HR_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() HR_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() HR_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex for its scope, as std::unique_lock.
class HR_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HR_THREAD_ATTRIBUTE(acquire_capability(mutex)) : lock_(mutex.mutex_) {}
  ~MutexLock() HR_THREAD_ATTRIBUTE(release_capability()) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() HR_THREAD_ATTRIBUTE(release_capability()) { lock_.unlock(); }
  void Lock() HR_THREAD_ATTRIBUTE(acquire_capability()) { lock_.lock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

// std::condition_variable, to be waited for with a MutexLock.
class Condition {
 public:
  void Wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  // False if the time has come.
  bool WaitUntil(MutexLock& lock, std::chrono::steady_clock::time_point time) {
    return condition_.wait_until(lock.lock_, time) == std::cv_status::no_timeout;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace headrace
