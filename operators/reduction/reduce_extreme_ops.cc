// reduce_max, reduce_min: the greatest and the least element along some dimensions.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>

#include "framework/op_registry.h"
#include "operators/math/element_loop.h"
#include "operators/reduction/reduce.h"

namespace headrace::ops {
namespace {

// `Beats` is std::greater or std::less. NaN beats everything.
template <typename T, typename Beats>
void ReduceExtremeKernel(const ExecutionContext& ctx) {
  using Limits = std::numeric_limits<T>;
  constexpr T kGreatest = std::is_floating_point_v<T> ? Limits::infinity() : Limits::max();
  constexpr T kLeast = std::is_floating_point_v<T> ? -Limits::infinity() : Limits::lowest();
  // Without a branch, so that the compiler can vectorise the loops.
  ReduceWith<T>(ctx, Beats()(kGreatest, kLeast) ? kLeast : kGreatest,
                [](T a, T b) { return (static_cast<int>(Beats()(a, b)) | static_cast<int>(IsNaN(a))) != 0 ? a : b; });
}

// Elements that are equally extreme get the gradient each.
template <typename T>
void ReduceExtremeGradKernel(const ExecutionContext& ctx) {
  const T* x = ctx.Input("X").data<T>();
  const T* out = ctx.Input("Out").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  SpreadGradient<T>(ctx, [=](int64_t element, int64_t result) { return x[element] == out[result] ? d[result] : T(0); });
}

template <typename Beats>
OpRegistrar&& ReduceExtreme(OpRegistrar&& op, const char* which) {
  return std::move(op)
      .Comment(std::string("The ") + which + " element along some dimensions; NaN if there is one.")
      .With(ReduceSlots)
      .InferShape(InferReduceOfSome)
      .template Kernel<float>(ReduceExtremeKernel<float, Beats>)
      .template Kernel<double>(ReduceExtremeKernel<double, Beats>)
      .template Kernel<int32_t>(ReduceExtremeKernel<int32_t, Beats>)
      .template Kernel<int64_t>(ReduceExtremeKernel<int64_t, Beats>)
      .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Out"}, .no_gradient = {}}));
}

OpRegistrar&& ReduceExtremeGrad(OpRegistrar&& op, const char* type) {
  return std::move(op)
      .Comment(std::string("Gradient of ") + type + ". Elements that are equally extreme get the gradient each.")
      .With(ReduceGradSlots, kPlain)
      .Input("Out", "as in the operator")
      .Kernel<float>(ReduceExtremeGradKernel<float>)
      .Kernel<double>(ReduceExtremeGradKernel<double>);
}

}  // namespace

HEADRACE_REGISTER_OP(reduce_max).With(ReduceExtreme<std::greater<>>, "greatest");
HEADRACE_REGISTER_OP(reduce_max_grad).With(ReduceExtremeGrad, "reduce_max");
HEADRACE_REGISTER_OP(reduce_min).With(ReduceExtreme<std::less<>>, "least");
HEADRACE_REGISTER_OP(reduce_min_grad).With(ReduceExtremeGrad, "reduce_min");

}  // namespace headrace::ops
