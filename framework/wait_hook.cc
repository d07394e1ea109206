#include "framework/wait_hook.h"

#include <utility>

#include "framework/errors.h"

namespace headrace {
namespace {

thread_local const std::function<void()>* current_hook = nullptr;

}  // namespace

ScopedWaitHook::ScopedWaitHook(std::function<void()> hook) : hook_(std::move(hook)), outer_(current_hook) {
  HR_ENFORCE(hook_ != nullptr, InvalidArgument, "a wait hook needs a function");
  current_hook = &hook_;
}

ScopedWaitHook::~ScopedWaitHook() { current_hook = outer_; }

const std::function<void()>* ScopedWaitHook::Current() { return current_hook; }

void ScopedWaitHook::CallIfDue() {
  thread_local std::chrono::steady_clock::time_point due;
  if (current_hook == nullptr) {
    return;
  }
  if (const auto now = std::chrono::steady_clock::now(); now >= due) {
    due = now + kPeriod;
    (*current_hook)();
  }
}

}  // namespace headrace
