#include "framework/wait_hook.h"

#include <ctime>
#include <utility>

#include "framework/errors.h"

namespace headrace {
namespace {

thread_local const ScopedWaitHook* innermost = nullptr;

// The steady clock to a few milliseconds, for a fraction of what reading it exactly takes: operators may be as short.
std::chrono::steady_clock::time_point CoarseNow() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::chrono::steady_clock::time_point(std::chrono::seconds(now.tv_sec) +
                                               std::chrono::nanoseconds(now.tv_nsec));
}

}  // namespace

ScopedWaitHook::ScopedWaitHook(std::function<void()> hook, std::chrono::milliseconds loop_period)
    : hook_(std::move(hook)), loop_period_(loop_period), due_(CoarseNow() + loop_period), outer_(innermost) {
  HR_ENFORCE(hook_ != nullptr, InvalidArgument, "a wait hook needs a function");
  innermost = this;
}

ScopedWaitHook::~ScopedWaitHook() { innermost = outer_; }

const std::function<void()>* ScopedWaitHook::Current() { return innermost == nullptr ? nullptr : &innermost->hook_; }

void ScopedWaitHook::CallIfDue() {
  if (innermost == nullptr) {
    return;
  }
  if (const auto now = CoarseNow(); now >= innermost->due_) {
    innermost->due_ = now + innermost->loop_period_;
    innermost->hook_();
  }
}

}  // namespace headrace
