// softmax_with_cross_entropy: the loss of predicted logits.
#include <algorithm>
#include <cmath>
#include <optional>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/labels.h"
#include "operators/reduction.h"
#include "operators/softmax.h"
#include "operators/vector_math.h"

namespace headrace::ops {
namespace {

template <typename T>
void SoftmaxWithCrossEntropyKernel(const ExecutionContext& ctx) {
  const LoDTensor& logits = ctx.Input("Logits");
  const MatrixSize s(logits);
  T* softmax = ctx.Output("Softmax")->mutable_data<T>();
  T* loss = ctx.Output("Loss")->mutable_data<T>();
  const T* soft_labels = ctx.Attr<bool>("soft_label") ? ctx.Input("Label").data<T>() : nullptr;
  std::optional<HardLabels> hard_labels;
  if (soft_labels == nullptr) {
    hard_labels.emplace(ctx, s.cols);
  }

  // loss = Σ label · (log(Σ exp(z)) − z) with z = logits − max, which Softmax holds until it becomes exp(z) / Σ exp(z).
  SubtractRowMaximum(s.rows, s.cols, logits.data<T>(), softmax);
  for (int64_t r = 0; r < s.rows; ++r) {
    const T* z = softmax + r * s.cols;
    if (hard_labels) {
      const int64_t label = (*hard_labels)[r];
      loss[r] = label < 0 ? T(0) : z[label];
    } else {
      loss[r] = SumOf<T>(s.cols, [=, label = soft_labels + r * s.cols](int64_t c) { return label[c] * z[c]; });
    }
  }
  VectorExp(s.rows * s.cols, softmax, softmax);
  for (int64_t r = 0; r < s.rows; ++r) {
    T* row = softmax + r * s.cols;
    const T sum = Sum(s.cols, row);
    for (int64_t c = 0; c < s.cols; ++c) {
      row[c] /= sum;
    }
    const T weight = hard_labels ? T((*hard_labels)[r] >= 0) : Sum(s.cols, soft_labels + r * s.cols);
    loss[r] = weight * std::log(sum) - loss[r];
  }
}

template <typename T>
void SoftmaxWithCrossEntropyGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& softmax_tensor = ctx.Input("Softmax");
  const MatrixSize s(softmax_tensor);
  const T* softmax = softmax_tensor.data<T>();
  const LoDTensor* loss_grad = ctx.InputOrNull("Loss@GRAD");
  const LoDTensor* softmax_grad = ctx.InputOrNull("Softmax@GRAD");
  T* dx = ctx.Output("Logits@GRAD")->mutable_data<T>();

  if (softmax_grad != nullptr) {
    SoftmaxGrad(s.rows, s.cols, softmax, softmax_grad->data<T>(), dx);
  } else {
    std::fill_n(dx, softmax_tensor.numel(), T(0));
  }
  if (loss_grad == nullptr) {
    return;
  }
  const T* d = loss_grad->data<T>();
  if (ctx.Attr<bool>("soft_label")) {
    const T* label = ctx.Input("Label").data<T>();
    for (int64_t r = 0; r < s.rows; ++r, softmax += s.cols, label += s.cols, dx += s.cols) {
      const T weight = Sum(s.cols, label);
      for (int64_t c = 0; c < s.cols; ++c) {
        dx[c] += d[r] * (weight * softmax[c] - label[c]);
      }
    }
  } else {
    const HardLabels labels(ctx, s.cols);
    for (int64_t r = 0; r < s.rows; ++r, softmax += s.cols, dx += s.cols) {
      const int64_t label = labels[r];
      if (label < 0) {
        continue;
      }
      for (int64_t c = 0; c < s.cols; ++c) {
        dx[c] += d[r] * softmax[c];
      }
      dx[label] -= d[r];
    }
  }
}

}  // namespace

HEADRACE_REGISTER_OP(softmax_with_cross_entropy)
    .Comment("cross_entropy of softmax, computed from the logits so that nothing overflows.")
    .Input("Logits", "[..., classes]")
    .Input("Label", "int64 [..., 1], or the dims and dtype of Logits if soft_label")
    .Output("Softmax", "dims of Logits")
    .Output("Loss", "[..., 1], one loss per row")
    .With(LabelAttrs)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Loss", CheckLabels(ctx, "Logits"), ctx.InputType("Logits"));
      ctx.ShareAll("Logits", "Softmax");
      ctx.ShareLoD("Logits", "Loss");
    })
    .Kernel<float>(SoftmaxWithCrossEntropyKernel<float>)
    .Kernel<double>(SoftmaxWithCrossEntropyKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Label"}, .outputs = {"Softmax"}, .no_gradient = {"Label"}}));

HEADRACE_REGISTER_OP(softmax_with_cross_entropy_grad)
    .Comment("Gradient of softmax_with_cross_entropy, by way of either output or of both.")
    .Input("Softmax", "as in the operator")
    .Input("Label", "as in the operator")
    .Input("Softmax@GRAD", "gradient of Softmax", kDispensable)
    .Input("Loss@GRAD", "gradient of Loss", kDispensable)
    .Output("Logits@GRAD", "dims of Logits")
    .With(LabelAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim per_row = CheckLabels(ctx, "Softmax");
      if (ctx.HasInput("Loss@GRAD")) {
        EnforceDims(ctx, "Loss@GRAD", per_row);
        EnforceSameType(ctx, "Loss@GRAD", "Softmax");
      }
      if (ctx.HasInput("Softmax@GRAD")) {
        EnforceDims(ctx, "Softmax@GRAD", ctx.InputDim("Softmax"));
        EnforceSameType(ctx, "Softmax@GRAD", "Softmax");
      }
      SetOutput(ctx, "Logits@GRAD", ctx.InputDim("Softmax"), ctx.InputType("Softmax"));
    })
    .Kernel<float>(SoftmaxWithCrossEntropyGradKernel<float>)
    .Kernel<double>(SoftmaxWithCrossEntropyGradKernel<double>);

}  // namespace headrace::ops
