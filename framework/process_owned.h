// An object that a forked child leaves alone.
//
// A fork copies the memory of all threads but only the thread that forks. Objects that the others were using stay as
// they were in that instant: mutexes locked, condition variables with waiters (for which their destructor would wait),
// a container in the middle of a change, a std::thread that cannot be joined. The child therefore must not even destroy
// it: it leaks it, which costs a process that is about to exit or exec nothing.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

namespace headrace {

// Holds a T, which is destroyed with this object in the process that made it, and never in another.
// Thread-safety: that of T.
template <typename T>
class ProcessOwned {
 public:
  template <typename... Args>
  explicit ProcessOwned(Args&&... args) : object_(std::make_unique<T>(std::forward<Args>(args)...)) {}
  ~ProcessOwned() {
    if (!InOwner()) {
      static_cast<void>(object_.release());
    }
  }
  ProcessOwned(const ProcessOwned&) = delete;
  ProcessOwned& operator=(const ProcessOwned&) = delete;

  // Whether this is the process that made it.
  bool InOwner() const { return getpid() == owner_; }

  T* operator->() { return object_.get(); }
  const T* operator->() const { return object_.get(); }
  T& operator*() { return *object_; }
  const T& operator*() const { return *object_; }

 private:
  const pid_t owner_ = getpid();
  std::unique_ptr<T> object_;
};

}  // namespace headrace
