#include "framework/wait_hook.h"

#include <utility>

#include "framework/errors.h"

namespace headrace {
namespace {

thread_local const ScopedWaitHook* innermost = nullptr;

}  // namespace

ScopedWaitHook::ScopedWaitHook(std::function<void()> hook, std::chrono::milliseconds loop_period)
    : hook_(std::move(hook)),
      loop_period_(loop_period),
      due_(std::chrono::steady_clock::now() + loop_period),
      outer_(innermost) {
  HR_ENFORCE(hook_ != nullptr, InvalidArgument, "a wait hook needs a function");
  innermost = this;
}

ScopedWaitHook::~ScopedWaitHook() { innermost = outer_; }

const std::function<void()>* ScopedWaitHook::Current() { return innermost == nullptr ? nullptr : &innermost->hook_; }

void ScopedWaitHook::CallIfDue() {
  if (innermost == nullptr) {
    return;
  }
  if (const auto now = std::chrono::steady_clock::now(); now >= innermost->due_) {
    innermost->due_ = now + innermost->loop_period_;
    innermost->hook_();
  }
}

}  // namespace headrace
