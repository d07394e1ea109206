// A callable that is borrowed for the length of a call, where std::function would copy it, perhaps to the heap.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace headrace {

template <typename Signature>
class FunctionRef;

// Refers to a callable, which must outlive it. As cheap to copy as two pointers.
template <typename Result, typename... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <typename Function>
    requires(!std::is_same_v<std::remove_cvref_t<Function>, FunctionRef> &&
             std::is_invocable_r_v<Result, const Function&, Args...>)
  FunctionRef(const Function& function)  // NOLINT(google-explicit-constructor): a parameter, mostly
      : function_(std::addressof(function)), call_([](const void* callable, Args... args) -> Result {
          return (*static_cast<const Function*>(callable))(std::forward<Args>(args)...);
        }) {}

  Result operator()(Args... args) const { return call_(function_, std::forward<Args>(args)...); }

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  const void* function_;
  Result (*call_)(const void*, Args...);
};

}  // namespace headrace
