// decayed_adagrad, adadelta, adamax, ftrl: each element has a rate of its own.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/optimizer/optimizer.h"

namespace headrace::ops {
namespace {

template <typename T>
void DecayedAdagradKernel(const ExecutionContext& ctx) {
  const auto decay = static_cast<T>(ctx.Attr<double>("decay"));
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* moment_out = Mutable<T>(ctx, "MomentOut");
  const T* param = Elements<T>(ctx, "Param");
  const T* moment = Elements<T>(ctx, "Moment");
  ForEachGradient<T>(ctx, OtherRows::kGetZeroGradient, {{"ParamOut", "Param"}, {"MomentOut", "Moment"}},
                     [=](int64_t i, T g) {
                       const T m = decay * moment[i] + (1 - decay) * g * g;
                       moment_out[i] = m;
                       param_out[i] = param[i] - rate * g / (std::sqrt(m) + epsilon);
                     });
}

template <typename T>
void AdadeltaKernel(const ExecutionContext& ctx) {
  const auto rho = static_cast<T>(ctx.Attr<double>("rho"));
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* gradient_out = Mutable<T>(ctx, "AvgSquaredGradOut");
  T* update_out = Mutable<T>(ctx, "AvgSquaredUpdateOut");
  const T* param = Elements<T>(ctx, "Param");
  const T* gradient = Elements<T>(ctx, "AvgSquaredGrad");
  const T* update = Elements<T>(ctx, "AvgSquaredUpdate");
  ForEachGradient<T>(
      ctx, OtherRows::kGetZeroGradient,
      {{"ParamOut", "Param"}, {"AvgSquaredGradOut", "AvgSquaredGrad"}, {"AvgSquaredUpdateOut", "AvgSquaredUpdate"}},
      [=](int64_t i, T g) {
        const T square = rho * gradient[i] + (1 - rho) * g * g;
        const T change = -std::sqrt((update[i] + epsilon) / (square + epsilon)) * g;
        gradient_out[i] = square;
        update_out[i] = rho * update[i] + (1 - rho) * change * change;
        param_out[i] = param[i] + change;
      });
}

template <typename T>
void AdamaxKernel(const ExecutionContext& ctx) {
  const auto beta1 = static_cast<T>(ctx.Attr<double>("beta1"));
  const auto beta2 = static_cast<T>(ctx.Attr<double>("beta2"));
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate") / (1 - ScalarInput(ctx, "Beta1Pow")));
  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* moment_out = Mutable<T>(ctx, "MomentOut");
  T* norm_out = Mutable<T>(ctx, "InfNormOut");
  const T* param = Elements<T>(ctx, "Param");
  const T* moment = Elements<T>(ctx, "Moment");
  const T* norm = Elements<T>(ctx, "InfNorm");
  ForEachGradient<T>(ctx, OtherRows::kGetZeroGradient,
                     {{"ParamOut", "Param"}, {"MomentOut", "Moment"}, {"InfNormOut", "InfNorm"}}, [=](int64_t i, T g) {
                       const T m = beta1 * moment[i] + (1 - beta1) * g;
                       const T u = std::max(std::abs(g), beta2 * norm[i] + epsilon);
                       moment_out[i] = m;
                       norm_out[i] = u;
                       param_out[i] = param[i] - rate * m / u;
                     });
}

template <typename T>
void FtrlKernel(const ExecutionContext& ctx) {
  const auto l1 = static_cast<T>(ctx.Attr<double>("l1"));
  const auto l2 = static_cast<T>(ctx.Attr<double>("l2"));
  const auto power = static_cast<T>(-ctx.Attr<double>("lr_power"));
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  const auto raised = [power](T x) { return power == T(0.5) ? std::sqrt(x) : std::pow(x, power); };
  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* squared_out = Mutable<T>(ctx, "SquaredAccumOut");
  T* linear_out = Mutable<T>(ctx, "LinearAccumOut");
  const T* param = Elements<T>(ctx, "Param");
  const T* squared = Elements<T>(ctx, "SquaredAccumulator");
  const T* linear = Elements<T>(ctx, "LinearAccumulator");
  ForEachGradient<T>(
      ctx, OtherRows::kStay,
      {{"ParamOut", "Param"}, {"SquaredAccumOut", "SquaredAccumulator"}, {"LinearAccumOut", "LinearAccumulator"}},
      [=](int64_t i, T g) {
        const T s = squared[i] + g * g;
        const T l = linear[i] + g - (raised(s) - raised(squared[i])) / rate * param[i];
        squared_out[i] = s;
        linear_out[i] = l;
        const T shrunk = (l > 0 ? l1 : -l1) - l;
        param_out[i] = std::abs(l) > l1 ? shrunk / (raised(s) / rate + 2 * l2) : T(0);
      });
}

}  // namespace

HEADRACE_REGISTER_OP(decayed_adagrad)
    .Comment(
        "Moment becomes decay * Moment + (1 - decay) Grad^2; Param loses LearningRate * Grad / (sqrt(Moment) + "
        "epsilon).")
    .With(CommonSlots)
    .With(LearningRate)
    .With(State, "Moment", "MomentOut", "mean of the squares")
    .Attr<double>("decay", "decay of the mean", 0.95, CheckDecay)
    .Attr<double>("epsilon", "keeps the divisor from 0", 1e-6)
    .InferShape([](InferShapeContext& ctx) { InferUpdates(ctx, {{"ParamOut", "Param"}, {"MomentOut", "Moment"}}); })
    .Kernel<float>(DecayedAdagradKernel<float>)
    .Kernel<double>(DecayedAdagradKernel<double>);

HEADRACE_REGISTER_OP(adadelta)
    .Comment("M. D. Zeiler, ADADELTA: an adaptive learning rate method, 2012.")
    .With(CommonSlots)
    .With(State, "AvgSquaredGrad", "AvgSquaredGradOut", "mean of the squares of the gradients")
    .With(State, "AvgSquaredUpdate", "AvgSquaredUpdateOut", "mean of the squares of the updates")
    .Attr<double>("rho", "decay of the means", 0.95, CheckDecay)
    .Attr<double>("epsilon", "keeps the divisor from 0", 1e-6)
    .InferShape([](InferShapeContext& ctx) {
      InferUpdates(ctx, {{"ParamOut", "Param"},
                         {"AvgSquaredGradOut", "AvgSquaredGrad"},
                         {"AvgSquaredUpdateOut", "AvgSquaredUpdate"}});
    })
    .Kernel<float>(AdadeltaKernel<float>)
    .Kernel<double>(AdadeltaKernel<double>);

HEADRACE_REGISTER_OP(adamax)
    .Comment("Adam with the greatest gradient, decayed, in place of the second moment (D. P. Kingma and J. Ba, 2015).")
    .With(CommonSlots)
    .With(LearningRate)
    .With(State, "Moment", "MomentOut", "mean of the gradient")
    .With(State, "InfNorm", "InfNormOut", "the greatest gradient")
    .Input("Beta1Pow", "float32 or float64 [1]: beta1 to the number of this step, which starts with 1")
    .Attr<double>("beta1", "decay of the mean", 0.9, CheckDecay)
    .Attr<double>("beta2", "decay of the greatest gradient", 0.999, CheckDecay)
    .Attr<double>("epsilon", "keeps the divisor from 0", 1e-8)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Beta1Pow", {1});
      EnforceScalar(ctx, "Beta1Pow");
      InferUpdates(ctx, {{"ParamOut", "Param"}, {"MomentOut", "Moment"}, {"InfNormOut", "InfNorm"}});
    })
    .Kernel<float>(AdamaxKernel<float>)
    .Kernel<double>(AdamaxKernel<double>);

HEADRACE_REGISTER_OP(ftrl)
    .Comment("Follow the regularised leader (H. B. McMahan et al., Ad click prediction, 2013).")
    .With(CommonSlots)
    .With(LearningRate)
    .With(State, "SquaredAccumulator", "SquaredAccumOut", "sum of the squares of the gradients")
    .With(State, "LinearAccumulator", "LinearAccumOut", "the linear term")
    .With(RegularisationAttrs)
    .Attr<double>("lr_power", "the power of the sum of squares by which the rate falls", -0.5)
    .InferShape([](InferShapeContext& ctx) {
      InferUpdates(
          ctx,
          {{"ParamOut", "Param"}, {"SquaredAccumOut", "SquaredAccumulator"}, {"LinearAccumOut", "LinearAccumulator"}});
    })
    .Kernel<float>(FtrlKernel<float>)
    .Kernel<double>(FtrlKernel<double>);

}  // namespace headrace::ops
