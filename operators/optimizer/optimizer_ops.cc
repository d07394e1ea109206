// sgd, momentum, adam, adamw, adagrad, rmsprop: one pass over the parameter each, in place where an output is its
// input.
#include <algorithm>
#include <cmath>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/math/row_merge.h"
#include "operators/math/table_rows.h"
#include "operators/optimizer/optimizer.h"

namespace headrace::ops {
namespace {

// The parameter is SelectedRows, which have all rows of the gradient.
template <typename T>
void SgdOfTable(const ExecutionContext& ctx) {
  const SelectedRows& param = ctx.InputRows("Param");
  const SelectedRows& grad = ctx.InputRows("Grad");
  const TableRows place_of(param, "Param");
  for (const int64_t row : grad.rows()) {  // before anything is changed
    (void)place_of(row);
  }
  SelectedRows* out = ctx.OutputRows("ParamOut");
  if (out == &param) {
    out->mutable_value()->Unshare();
  } else {
    *out->mutable_rows() = param.rows();
    out->set_height(param.height());
    out->mutable_value()->CopyFrom(param.value());
  }
  T* values = static_cast<T*>(out->mutable_value()->raw_mutable_data());
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  const int64_t width = RowWidth(param);
  ForEachMergedRowInParallel<T>(grad, [=, &place_of](int64_t row, const T* g) {
    T* to = values + place_of(row) * width;
    for (int64_t c = 0; c < width; ++c) {
      to[c] -= rate * g[c];
    }
  });
}

template <typename T>
void SgdKernel(const ExecutionContext& ctx) {
  if (ctx.IsSelectedRows("Param")) {
    SgdOfTable<T>(ctx);
    return;
  }
  T* param_out = Mutable<T>(ctx, "ParamOut");
  const T* param = Elements<T>(ctx, "Param");
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  ForEachGradient<T>(ctx, OtherRows::kStay, {{"ParamOut", "Param"}},
                     [=](int64_t i, T g) { param_out[i] = param[i] - rate * g; });
}

template <typename T>
void MomentumKernel(const ExecutionContext& ctx) {
  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* velocity_out = Mutable<T>(ctx, "VelocityOut");
  const T* param = Elements<T>(ctx, "Param");
  const T* velocity = Elements<T>(ctx, "Velocity");
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  const auto mu = static_cast<T>(ctx.Attr<double>("mu"));
  const T nesterov = ctx.Attr<bool>("use_nesterov") ? T(1) : T(0);
  ForEachGradient<T>(ctx, OtherRows::kGetZeroGradient, {{"ParamOut", "Param"}, {"VelocityOut", "Velocity"}},
                     [=](int64_t i, T g) {
                       const T v = mu * velocity[i] + g;
                       velocity_out[i] = v;
                       param_out[i] = param[i] - rate * (nesterov != 0 ? g + mu * v : v);
                     });
}

template <typename T, bool kDecaysWeights>
void AdamKernel(const ExecutionContext& ctx) {
  const double learning_rate = ScalarInput(ctx, "LearningRate");
  const double beta1_pow = ScalarInput(ctx, "Beta1Pow");
  const double beta2_pow = ScalarInput(ctx, "Beta2Pow");
  const auto beta1 = static_cast<T>(Decay(ctx, "Beta1Tensor", "beta1"));
  const auto beta2 = static_cast<T>(Decay(ctx, "Beta2Tensor", "beta2"));
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  const auto rate = static_cast<T>(learning_rate * std::sqrt(1 - beta2_pow) / (1 - beta1_pow));
  T kept = 1;
  if constexpr (kDecaysWeights) {
    kept = static_cast<T>(1 - learning_rate * ctx.Attr<double>("coeff"));
  }

  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* moment1_out = Mutable<T>(ctx, "Moment1Out");
  T* moment2_out = Mutable<T>(ctx, "Moment2Out");
  const T* param = Elements<T>(ctx, "Param");
  const T* moment1 = Elements<T>(ctx, "Moment1");
  const T* moment2 = Elements<T>(ctx, "Moment2");
  const auto update = [=](int64_t i, T g) {
    const T m = beta1 * moment1[i] + (1 - beta1) * g;
    const T v = beta2 * moment2[i] + (1 - beta2) * g * g;
    moment1_out[i] = m;
    moment2_out[i] = v;
    const T before = kDecaysWeights ? kept * param[i] : param[i];
    param_out[i] = before - rate * (m / (std::sqrt(v) + epsilon));
  };
  const auto others = ctx.Attr<bool>("lazy_mode") ? OtherRows::kStay : OtherRows::kGetZeroGradient;
  ForEachGradient<T>(ctx, others, {{"ParamOut", "Param"}, {"Moment1Out", "Moment1"}, {"Moment2Out", "Moment2"}},
                     update);
  UpdateAdamPowers<T>(ctx);
}

template <typename T>
void AdagradKernel(const ExecutionContext& ctx) {
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* moment_out = Mutable<T>(ctx, "MomentOut");
  const T* param = Elements<T>(ctx, "Param");
  const T* moment = Elements<T>(ctx, "Moment");
  ForEachGradient<T>(ctx, OtherRows::kStay, {{"ParamOut", "Param"}, {"MomentOut", "Moment"}}, [=](int64_t i, T g) {
    const T m = moment[i] + g * g;
    moment_out[i] = m;
    param_out[i] = param[i] - rate * g / (std::sqrt(m) + epsilon);
  });
}

template <typename T>
void RmspropKernel(const ExecutionContext& ctx) {
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  const auto decay = static_cast<T>(ctx.Attr<double>("decay"));
  const auto mu = static_cast<T>(ctx.Attr<double>("momentum"));
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  const bool centered = ctx.Attr<bool>("centered");
  T* param_out = Mutable<T>(ctx, "ParamOut");
  T* moment_out = Mutable<T>(ctx, "MomentOut");
  T* square_out = Mutable<T>(ctx, "MeanSquareOut");
  T* mean_out = centered ? Mutable<T>(ctx, "MeanGradOut") : nullptr;
  const T* param = Elements<T>(ctx, "Param");
  const T* moment = Elements<T>(ctx, "Moment");
  const T* square = Elements<T>(ctx, "MeanSquare");
  const T* mean = centered ? Elements<T>(ctx, "MeanGrad") : nullptr;
  ForEachGradient<T>(
      ctx, OtherRows::kGetZeroGradient,
      {{"ParamOut", "Param"}, {"MomentOut", "Moment"}, {"MeanSquareOut", "MeanSquare"}}, [=](int64_t i, T g) {
        const T s = decay * square[i] + (1 - decay) * g * g;
        T variance = s;
        if (centered) {
          const T m = decay * mean[i] + (1 - decay) * g;
          mean_out[i] = m;
          variance = std::max(s - m * m, T(0));  // which rounding makes negative where the gradient is constant
        }
        const T v = mu * moment[i] + rate * g / std::sqrt(variance + epsilon);
        square_out[i] = s;
        moment_out[i] = v;
        param_out[i] = param[i] - v;
      });
}

void InferRmsprop(InferShapeContext& ctx) {
  InferUpdates(ctx, {{"ParamOut", "Param"}, {"MomentOut", "Moment"}, {"MeanSquareOut", "MeanSquare"}});
  if (ctx.Attr<bool>("centered")) {
    HR_ENFORCE(ctx.HasInput("MeanGrad") && ctx.HasOutput("MeanGradOut"), InvalidArgument,
               "input MeanGrad and output MeanGradOut: expected both, since attribute centered is true");
    InferUpdates(ctx, {{"MeanGradOut", "MeanGrad"}});
  }
}

// A table and its gradient need not be as tall.
void InferSgdOfTable(InferShapeContext& ctx) {
  HR_ENFORCE(ctx.InputIsSelectedRows("Grad"), TypeMismatch,
             "input Grad: expected SelectedRows, as input Param is, got a LoDTensor");
  const DDim param = ctx.InputDim("Param");
  DDim grad = param;
  grad[0] = -1;
  EnforceDims(ctx, "Grad", grad);
  EnforceSameType(ctx, "Grad", "Param");
  EnforceScalar(ctx, "LearningRate");
  SetOutput(ctx, "ParamOut", param, ctx.InputType("Param"));
  ctx.SetOutputSelectedRows("ParamOut");
}

void InferSgd(InferShapeContext& ctx) {
  if (ctx.InputIsSelectedRows("Param")) {
    InferSgdOfTable(ctx);
  } else {
    InferUpdates(ctx, {{"ParamOut", "Param"}});
  }
}

OpRegistrar&& AdamOp(OpRegistrar&& op) {
  return std::move(op)
      .With(AdamSlots)
      .Attr<double>("epsilon", "keeps the divisor from 0", 1e-8)
      .Attr<bool>("lazy_mode", "whether rows that a sparse gradient lacks stay as they are, moments and all", false);
}

}  // namespace

HEADRACE_REGISTER_OP(sgd)
    .Comment("Param - LearningRate * Grad.")
    .Input("Param", "the parameter; or SelectedRows with each row of Grad, once", kSelectedRows)
    .Input("Grad", "its gradient; dtype of Param, and its dims unless that is SelectedRows", kSelectedRows)
    .Output("ParamOut", "the new parameter; may be Param", kSelectedRows)
    .InPlace("ParamOut", "Param")
    .With(LearningRate)
    .InferShape(InferSgd)
    .Kernel<float>(SgdKernel<float>)
    .Kernel<double>(SgdKernel<double>);

HEADRACE_REGISTER_OP(momentum)
    .Comment(
        "Velocity becomes mu * Velocity + Grad; Param loses LearningRate * Velocity, or, by Nesterov, LearningRate * "
        "(Grad + mu * Velocity).")
    .With(CommonSlots)
    .With(LearningRate)
    .With(State, "Velocity", "VelocityOut", "the velocity")
    .Attr<double>("mu", "how much of the velocity stays")
    .Attr<bool>("use_nesterov", "Nesterov's variant", false)
    .InferShape([](InferShapeContext& ctx) { InferUpdates(ctx, {{"ParamOut", "Param"}, {"VelocityOut", "Velocity"}}); })
    .Kernel<float>(MomentumKernel<float>)
    .Kernel<double>(MomentumKernel<double>);

HEADRACE_REGISTER_OP(adam)
    .Comment(
        "D. P. Kingma and J. Ba, Adam: a method for stochastic optimization, ICLR 2015; epsilon is added to the root "
        "of the second moment before its correction, as in Paddle.")
    .With(AdamOp)
    .Kernel<float>(AdamKernel<float, false>)
    .Kernel<double>(AdamKernel<double, false>);

HEADRACE_REGISTER_OP(adamw)
    .Comment(
        "adam after Param has lost LearningRate * coeff * Param. I. Loshchilov and F. Hutter, Decoupled weight decay "
        "regularization, ICLR 2019.")
    .With(AdamOp)
    .Attr<double>("coeff", "strength of the weight decay", 0.01,
                  [](const double& value) {
                    HR_ENFORCE(value >= 0, InvalidArgument, "attribute coeff: expected a number of 0 or more, got ",
                               value);
                  })
    .Kernel<float>(AdamKernel<float, true>)
    .Kernel<double>(AdamKernel<double, true>);

HEADRACE_REGISTER_OP(adagrad)
    .Comment("Moment gains Grad^2; Param loses LearningRate * Grad / (sqrt(Moment) + epsilon).")
    .With(CommonSlots)
    .With(LearningRate)
    .With(State, "Moment", "MomentOut", "sum of the squares")
    .Attr<double>("epsilon", "keeps the divisor from 0", 1e-6)
    .InferShape([](InferShapeContext& ctx) { InferUpdates(ctx, {{"ParamOut", "Param"}, {"MomentOut", "Moment"}}); })
    .Kernel<float>(AdagradKernel<float>)
    .Kernel<double>(AdagradKernel<double>);

HEADRACE_REGISTER_OP(rmsprop)
    .Comment("The gradient over the root of its mean square (its variance, if centered), with momentum.")
    .With(CommonSlots)
    .With(LearningRate)
    .With(State, "Moment", "MomentOut", "subtracted from Param")
    .With(State, "MeanSquare", "MeanSquareOut", "mean of the squares")
    .Input("MeanGrad", "dims and dtype of Param; needed if centered", kDispensable)
    .Output("MeanGradOut", "may be MeanGrad", kDispensable)
    .InPlace("MeanGradOut", "MeanGrad")
    .Attr<double>("epsilon", "keeps the divisor from 0", 1e-10)
    .Attr<double>("decay", "decay of the mean square", 0.9, CheckDecay)
    .Attr<double>("momentum", "how much of the moment stays", 0.0)
    .Attr<bool>("centered", "whether the square of the mean gradient is taken off", false)
    .InferShape(InferRmsprop)
    .Kernel<float>(RmspropKernel<float>)
    .Kernel<double>(RmspropKernel<double>);

}  // namespace headrace::ops
