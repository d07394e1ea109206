// sigmoid_cross_entropy_with_logits: a loss for each of several independent classes.
#include <algorithm>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/chunk_math.h"
#include "operators/math/element_loop.h"
#include "operators/math/vector_math.h"

namespace headrace::ops {
namespace {

// What the losses are divided by: the number of elements that are not ignored, if `normalize`.
template <typename T>
T Normalizer(const ExecutionContext& ctx, int64_t n, const T* label, T ignored) {
  if (!ctx.Attr<bool>("normalize")) {
    return T(1);
  }
  return std::max<T>(T(1), static_cast<T>(n - std::count(label, label + n, ignored)));
}

template <typename T>
void SigmoidCrossEntropyKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Out");
  const int64_t n = out_tensor->numel();
  T* out = out_tensor->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* label = ctx.Input("Label").data<T>();
  const auto ignored = static_cast<T>(ctx.Attr<int32_t>("ignore_index"));
  const T normalizer = Normalizer(ctx, n, label, ignored);
  ParallelFor(n, kElementsPerBlock / 16, [=](int64_t begin, int64_t end) {
    ForEachVector(
        end - begin, out + begin,
        [=](const auto& logit, const auto& target) {
          return ForEachElement(
              [=](T v, T l, T softplus) { return l == ignored ? 0 : (softplus - v * l) / normalizer; }, logit, target,
              ChunkSoftplus(logit));
        },
        x + begin, label + begin);
  });
}

template <typename T>
void SigmoidCrossEntropyGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  const int64_t n = x_grad->numel();
  T* dx = x_grad->mutable_data<T>();
  const T* label = ctx.Input("Label").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const auto ignored = static_cast<T>(ctx.Attr<int32_t>("ignore_index"));
  const T normalizer = Normalizer(ctx, n, label, ignored);
  const T* x = ctx.Input("X").data<T>();
  ParallelFor(n, kElementsPerBlock / 4, [=](int64_t begin, int64_t end) {
    VectorSigmoid(end - begin, x + begin, dx + begin);
    for (int64_t i = begin; i < end; ++i) {
      dx[i] = label[i] == ignored ? T(0) : d[i] * (dx[i] - label[i]) / normalizer;
    }
  });
}

OpRegistrar&& SigmoidAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("ignore_index", "the label whose elements have loss 0", -100)
      .Attr<bool>("normalize", "whether the losses are divided by the number of elements that are not ignored", false);
}

}  // namespace

HEADRACE_REGISTER_OP(sigmoid_cross_entropy_with_logits)
    .Comment("-Label * log(s) - (1 - Label) * log(1 - s) with s = sigmoid(X), element by element.")
    .Input("X", "any shape")
    .Input("Label", "dims and dtype of X; probabilities")
    .Output("Out", "dims of X")
    .With(SigmoidAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Label", ctx.InputDim("X"));
      EnforceSameType(ctx, "Label", "X");
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(SigmoidCrossEntropyKernel<float>)
    .Kernel<double>(SigmoidCrossEntropyKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Label"}, .outputs = {}, .no_gradient = {"Label"}}));

HEADRACE_REGISTER_OP(sigmoid_cross_entropy_with_logits_grad)
    .Comment("Gradient of sigmoid_cross_entropy_with_logits.")
    .Input("X", "as in the operator")
    .Input("Label", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(SigmoidAttrs)
    .InferShape([](InferShapeContext& ctx) {
      for (const HashedName slot : HashedNames{"Label", "Out@GRAD"}) {
        EnforceDims(ctx, slot, ctx.InputDim("X"));
        EnforceSameType(ctx, slot, "X");
      }
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(SigmoidCrossEntropyGradKernel<float>)
    .Kernel<double>(SigmoidCrossEntropyGradKernel<double>);

}  // namespace headrace::ops
