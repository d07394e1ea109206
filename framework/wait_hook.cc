#include "reader/wait_hook.h"

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

}  // namespace headrace
