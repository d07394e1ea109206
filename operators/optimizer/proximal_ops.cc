// proximal_gd, proximal_adagrad, lars_momentum: steps that the parameter's own size limits.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/row_merge.h"
#include "operators/optimizer/optimizer.h"

namespace headrace::ops {
namespace {

// The proximal step from x: shrunk by the L1 term towards 0, then by the L2 term.
template <typename T>
T Proximal(T x, T rate, T l1, T l2) {
  const T shrunk = std::max(std::abs(x) - rate * l1, T(0)) / (1 + rate * l2);
  return x < 0 ? -shrunk : shrunk;
}

template <typename T>
void ProximalGdKernel(const ExecutionContext& ctx) {
  const auto l1 = static_cast<T>(ctx.Attr<double>("l1"));
  const auto l2 = static_cast<T>(ctx.Attr<double>("l2"));
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  T* param_out = Mutable<T>(ctx, "ParamOut");
  const T* param = Elements<T>(ctx, "Param");
  ForEachGradient<T>(ctx, OtherRows::kGetZeroGradient, {{"ParamOut", "Param"}},
                     [=](int64_t i, T g) { param_out[i] = Proximal(param[i] - rate * g, rate, l1, l2); });
}

template <typename T>
void ProximalAdagradKernel(const ExecutionContext& ctx) {
  const auto l1 = static_cast<T>(ctx.Attr<double>("l1"));
  const auto l2 = static_cast<T>(ctx.Attr<double>("l2"));
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* moment_out = Mutable<T>(ctx, "MomentOut");
  const T* param = Elements<T>(ctx, "Param");
  const T* moment = Elements<T>(ctx, "Moment");
  ForEachGradient<T>(ctx, OtherRows::kGetZeroGradient, {{"ParamOut", "Param"}, {"MomentOut", "Moment"}},
                     [=](int64_t i, T g) {
                       const T m = moment[i] + g * g;
                       const T step = m > 0 ? rate * g / std::sqrt(m) : T(0);
                       moment_out[i] = m;
                       param_out[i] = Proximal(param[i] - step, rate, l1, l2);
                     });
}

template <typename T>
void LarsMomentumKernel(const ExecutionContext& ctx) {
  const auto mu = static_cast<T>(ctx.Attr<double>("mu"));
  const auto coefficient = static_cast<T>(ctx.Attr<double>("lars_coeff"));
  const auto decay = static_cast<T>(ctx.Attr<double>("lars_weight_decay"));
  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* velocity_out = Mutable<T>(ctx, "VelocityOut");
  const T* param = Elements<T>(ctx, "Param");
  const T* velocity = Elements<T>(ctx, "Velocity");
  const auto squares = [](const T* x, int64_t n) { return SumOf<T>(n, [x](int64_t i) { return x[i] * x[i]; }); };
  const T param_norm = std::sqrt(squares(param, ctx.Input("Param").numel()));
  T grad_squares = 0;
  if (ctx.IsSelectedRows("Grad")) {
    const int64_t width = RowWidth(ctx.InputRows("Grad"));
    ForEachMergedRow<T>(ctx.InputRows("Grad"), [&](int64_t, const T* g) { grad_squares += squares(g, width); });
  } else {
    grad_squares = squares(Elements<T>(ctx, "Grad"), ctx.Input("Grad").numel());
  }
  const T grad_norm = std::sqrt(grad_squares);
  auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  if (param_norm > 0 && grad_norm > 0) {
    rate *= coefficient * param_norm / (grad_norm + decay * param_norm);
  }
  const auto update = [=](int64_t i, T g) {
    const T v = mu * velocity[i] + rate * (g + decay * param[i]);
    velocity_out[i] = v;
    param_out[i] = param[i] - v;
  };
  ForEachGradient<T>(ctx, OtherRows::kGetZeroGradient, {{"ParamOut", "Param"}, {"VelocityOut", "Velocity"}}, update);
}

}  // namespace

HEADRACE_REGISTER_OP(proximal_gd)
    .Comment("Gradient descent, then a proximal step (J. Duchi and Y. Singer, 2009).")
    .With(CommonSlots)
    .With(LearningRate)
    .With(RegularisationAttrs)
    .InferShape([](InferShapeContext& ctx) { InferUpdates(ctx, {{"ParamOut", "Param"}}); })
    .Kernel<float>(ProximalGdKernel<float>)
    .Kernel<double>(ProximalGdKernel<double>);

HEADRACE_REGISTER_OP(proximal_adagrad)
    .Comment("Adagrad, then a proximal step (J. Duchi and Y. Singer, 2009).")
    .With(CommonSlots)
    .With(LearningRate)
    .With(State, "Moment", "MomentOut", "sum of the squares")
    .With(RegularisationAttrs)
    .InferShape([](InferShapeContext& ctx) { InferUpdates(ctx, {{"ParamOut", "Param"}, {"MomentOut", "Moment"}}); })
    .Kernel<float>(ProximalAdagradKernel<float>)
    .Kernel<double>(ProximalAdagradKernel<double>);

HEADRACE_REGISTER_OP(lars_momentum)
    .Comment("Momentum with a rate for each parameter that follows from its norm (Y. You et al., 2017).")
    .With(CommonSlots)
    .With(LearningRate)
    .With(State, "Velocity", "VelocityOut", "the velocity")
    .Attr<double>("mu", "how much of the velocity stays")
    .Attr<double>("lars_coeff", "factor on the rate", 0.001)
    .Attr<double>("lars_weight_decay", "weight decay", 0.0005)
    .InferShape([](InferShapeContext& ctx) { InferUpdates(ctx, {{"ParamOut", "Param"}, {"VelocityOut", "Velocity"}}); })
    .Kernel<float>(LarsMomentumKernel<float>)
    .Kernel<double>(LarsMomentumKernel<double>);

}  // namespace headrace::ops
