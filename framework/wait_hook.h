// Lets a thread look up from a long wait. While a ScopedWaitHook exists, every blocking wait of a reader, and every
// loop of a program, on the same thread calls its function about every 50 ms and goes on unless it throws. A language
// binding uses it to notice Ctrl-C while a queue is empty:
//
//   ScopedWaitHook hook([] { ThrowIfInterrupted(); });
//   executor.Run(*prepared, &scope);
//
// The function is called without any lock of the library but with the reader occupied, so it must not use readers
// itself. What it throws leaves the wait and whatever waited; nothing is taken from or added to a queue then.
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

  explicit ScopedWaitHook(std::function<void()> hook);
  ~ScopedWaitHook();
  ScopedWaitHook(const ScopedWaitHook&) = delete;
  ScopedWaitHook& operator=(const ScopedWaitHook&) = delete;

  // This thread's innermost hook; nullptr if it has none.
  static const std::function<void()>* Current();

  // For loops that a program decides the end of: calls this thread's innermost hook, if it has one and kPeriod has
  // passed since this last did so. Throws what the hook throws.
  static void CallIfDue();

 private:
  std::function<void()> hook_;
  const std::function<void()>* outer_;
};

}  // namespace headrace
