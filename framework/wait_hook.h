// Lets a thread look up from a long wait. While a ScopedWaitHook exists, every blocking wait of a reader, and a program
// between its operators and in its loops, on the same thread calls its function about every 50 ms and continues unless
// it throws. A language binding uses it to notice Ctrl-C while a queue is empty:
//
//   ScopedWaitHook hook([] { ThrowIfInterrupted(); });
//   executor.Run(*prepared, &scope);
//
// The function is called without any lock of the library but with the reader occupied, so it must not use readers
// itself. Its exceptions leave the wait and the waiting function; nothing is taken from or added to a queue then.
//
// Thread-safety: a hook belongs to the thread that created it. Hooks nest: the innermost one is called.
#pragma once

#include <chrono>
#include <functional>

#include "framework/export.h"

namespace headrace {

class HEADRACE_API ScopedWaitHook {
 public:
  static constexpr std::chrono::milliseconds kPeriod{50};

  // Programs call the hook once per `loop_period`, first when that has passed; 0: before every operator and at every
  // step of a loop.
  explicit ScopedWaitHook(std::function<void()> hook, std::chrono::milliseconds loop_period = kPeriod);
  ~ScopedWaitHook();
  ScopedWaitHook(const ScopedWaitHook&) = delete;
  ScopedWaitHook& operator=(const ScopedWaitHook&) = delete;

  // This thread's innermost hook; nullptr if it has none.
  static const std::function<void()>* Current();

  // For a program at work: calls this thread's innermost hook if it has one whose loop_period is over.
  // Throws the exceptions of the hook.
  static void CallIfDue();

 private:
  const std::function<void()> hook_;
  const std::chrono::milliseconds loop_period_;
  mutable std::chrono::steady_clock::time_point due_;
  const ScopedWaitHook* const outer_;
};

}  // namespace headrace
