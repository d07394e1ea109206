// kldiv_loss: the divergence of distributions (S. Kullback and R. Leibler, On information and sufficiency, 1951).
#include <algorithm>
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/sigmoid.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// What the sum of the elements is divided by.
template <typename T>
T KldivDivisor(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const HashedName reduction = ctx.Text("reduction");
  if (reduction == "mean") {
    return static_cast<T>(x.numel());
  }
  return reduction == "batchmean" ? static_cast<T>(x.dims()[0]) : T(1);
}

template <typename T>
void KldivLossKernel(const ExecutionContext& ctx) {
  const int64_t n = ctx.Input("X").numel();
  const T* x = ctx.Input("X").data<T>();
  const T* target = ctx.Input("Target").data<T>();
  T* loss = ctx.Output("Loss")->mutable_data<T>();
  const auto element = [=](int64_t i) {
    const T divergence = target[i] * (Log(target[i]) - x[i]);  // in any case: a branch would keep the loop scalar
    return target[i] > 0 ? divergence : T(0);
  };
  if (ctx.Text("reduction") == "none") {
    ParallelForEach(n, [=](int64_t i) { loss[i] = element(i); }, /*work=*/8);
  } else {
    *loss = ParallelSumOf<T>(n, element) / KldivDivisor<T>(ctx);
  }
}

template <typename T>
void KldivLossGradKernel(const ExecutionContext& ctx) {
  const int64_t n = ctx.Input("X").numel();
  const bool is_reduced = ctx.Text("reduction") != "none";
  const T* target = ctx.Input("Target").data<T>();
  const T* d = ctx.Input("Loss@GRAD").data<T>();
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T divisor = KldivDivisor<T>(ctx);
  ParallelForEach(n, [=](int64_t i) { dx[i] = -std::max(target[i], T(0)) * d[is_reduced ? 0 : i] / divisor; });
}

DDim CheckKldivLoss(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 1);
  EnforceDims(ctx, "Target", ctx.InputDim("X"));
  EnforceSameType(ctx, "Target", "X");
  const DDim x = ctx.InputDim("X");
  const HashedName reduction = ctx.Text("reduction");
  HR_ENFORCE(reduction == "mean" ? Numel(x) != 0 : reduction != "batchmean" || x[0] != 0, InvalidArgument,
             "input X: expected at least one element for the mean, got dims ", ToString(x));
  return reduction == "none" ? x : DDim{1};
}

OpRegistrar&& KldivAttrs(OpRegistrar&& op) {
  return std::move(op).Attr<std::string>(
      "reduction", "none, sum, mean (of the elements) or batchmean (over the first dimension)", "mean",
      [](const std::string& reduction) {
        HR_ENFORCE(reduction == "none" || reduction == "sum" || reduction == "mean" || reduction == "batchmean",
                   InvalidArgument, "attribute reduction: expected none, sum, mean or batchmean, got '", reduction,
                   "'");
      });
}

}  // namespace

HEADRACE_REGISTER_OP(kldiv_loss)
    .Comment("Target * (log(Target) - X), element by element, 0 where Target is not positive; reduced.")
    .Input("X", "logarithms of probabilities, any dims but none")
    .Input("Target", "probabilities, dims and dtype of X")
    .Output("Loss", "dims of X, or [1]")
    .With(KldivAttrs)
    .InferShape([](InferShapeContext& ctx) { SetOutput(ctx, "Loss", CheckKldivLoss(ctx), ctx.InputType("X")); })
    .KernelTypeFrom("X")
    .Kernel<float>(KldivLossKernel<float>)
    .Kernel<double>(KldivLossKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Target"}, .outputs = {}, .no_gradient = {"Target"}}));

HEADRACE_REGISTER_OP(kldiv_loss_grad)
    .Comment("Gradient of kldiv_loss.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Target", "as in the operator")
    .Input("Loss@GRAD", "gradient of Loss")
    .Output("X@GRAD", "dims of X")
    .With(KldivAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Loss@GRAD", CheckKldivLoss(ctx));
      EnforceSameType(ctx, "Loss@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .KernelTypeFrom("X")
    .Kernel<float>(KldivLossGradKernel<float>)
    .Kernel<double>(KldivLossGradKernel<double>);

}  // namespace headrace::ops
