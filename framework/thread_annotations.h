// Annotations for Clang's thread-safety analysis, and a mutex that carries them. `make lint` has Clang check that what
// a mutex guards is touched under it, and that what needs it held is called so; to GCC they mean nothing.
//
//   Mutex mutex_;
//   int count_ HR_GUARDED_BY(mutex_);
//   void Add() HR_REQUIRES(mutex_);
//   …
//   const MutexLock lock(mutex_);
//   Add();
#pragma once

#include <mutex>

#if defined(__clang__)
#define HR_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define HR_THREAD_ATTRIBUTE(x)
#endif

#define HR_GUARDED_BY(mutex) HR_THREAD_ATTRIBUTE(guarded_by(mutex))
#define HR_REQUIRES(...) HR_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define HR_EXCLUDES(...) HR_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// Where the analysis cannot follow; say why beside it.
#define HR_NO_THREAD_SAFETY_ANALYSIS HR_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace headrace {

// std::mutex. Works with std::condition_variable_any.
class HR_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() HR_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() HR_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  bool try_lock() HR_THREAD_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

// Holds a mutex for its scope.
class HR_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HR_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() HR_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace headrace
