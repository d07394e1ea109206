// lamb: adam with a rate for each parameter.
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"
#include "operators/optimizer/optimizer.h"

namespace headrace::ops {
namespace {

template <typename T>
void LambKernel(const ExecutionContext& ctx) {
  const auto beta1 = static_cast<T>(Decay(ctx, "Beta1Tensor", "beta1"));
  const auto beta2 = static_cast<T>(Decay(ctx, "Beta2Tensor", "beta2"));
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  const auto decay = static_cast<T>(ctx.Attr<double>("weight_decay"));
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* moment1_out = Mutable<T>(ctx, "Moment1Out");
  T* moment2_out = Mutable<T>(ctx, "Moment2Out");
  const T* param = Elements<T>(ctx, "Param");
  const T* moment1 = Elements<T>(ctx, "Moment1");
  const T* moment2 = Elements<T>(ctx, "Moment2");
  const int64_t numel = ctx.Input("Param").numel();
  Tensor memory;
  T* step = Scratch<T>(&memory, numel);
  ForEachGradient<T>(ctx, OtherRows::kGetZeroGradient, {{"Moment1Out", "Moment1"}, {"Moment2Out", "Moment2"}},
                     [=](int64_t i, T g) {
                       const T m = beta1 * moment1[i] + (1 - beta1) * g;
                       const T v = beta2 * moment2[i] + (1 - beta2) * g * g;
                       moment1_out[i] = m;
                       moment2_out[i] = v;
                       step[i] = m / (std::sqrt(v) + epsilon) + decay * param[i];
                     });
  const auto norm = [numel](const T* x) {
    return std::sqrt(ParallelSumOf<T>(numel, [x](int64_t i) { return x[i] * x[i]; }));
  };
  const T param_norm = norm(param);
  const T step_norm = norm(step);
  const T trust = rate * (param_norm > 0 && step_norm > 0 ? param_norm / step_norm : T(1));
  ParallelFor(numel, kElementsPerBlock, [=](int64_t begin, int64_t end) {
    HEADRACE_INDEPENDENT_ITERATIONS
    for (int64_t i = begin; i < end; ++i) {
      param_out[i] = param[i] - trust * step[i];
    }
  });
  UpdateAdamPowers<T>(ctx);
}

}  // namespace

HEADRACE_REGISTER_OP(lamb)
    .Comment(
        "adam without the correction of the moments, with weight decay, and with steps as long as the parameter is "
        "(Y. You et al., Large batch optimization for deep learning, 2019).")
    .With(AdamSlots)
    .Attr<double>("weight_decay", "strength of the weight decay")
    .Attr<double>("epsilon", "keeps the divisor from 0", 1e-6)
    .Kernel<float>(LambKernel<float>)
    .Kernel<double>(LambKernel<double>);

}  // namespace headrace::ops
