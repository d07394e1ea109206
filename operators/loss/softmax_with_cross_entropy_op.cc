// softmax_with_cross_entropy: the loss of predicted logits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"
#include "operators/math/softmax.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// The classes of a tensor of logits, [outer, extent, inner], and the labels of their vectors.
struct Problem {
  Problem(const ExecutionContext& ctx, const DDim& dims)
      : shape(dims, FrontAxis(ctx.Attr<int32_t>("axis"), dims.size(), "axis")) {
    if (!ctx.Attr<bool>("soft_label")) {
      hard_labels.emplace(ctx, shape.extent);
    }
  }
  AxisSize shape;
  std::optional<HardLabels> hard_labels;
};

// to[c, r] = from[r, c]
template <typename T>
void Transpose(int64_t rows, int64_t cols, const T* from, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      to[c * rows + r] = from[r * cols + c];
    }
  }
}

// loss = Σ label · (log(Σ exp(z)) − z) with z = logits − max, for a matrix of a vector per row, of which the first is
// vector `first` of the tensor. `softmax` becomes exp(z) / Σ exp(z); it may be `logits`.
template <typename T>
void LossOfRows(const Problem& problem, int64_t first, int64_t rows, const T* logits, const T* soft_labels, T* softmax,
                T* loss) {
  const int64_t cols = problem.shape.extent;
  const auto& hard_labels = problem.hard_labels;
  for (int64_t r = 0; r < rows; ++r, logits += cols, softmax += cols) {
    const T max = Maximum(cols, logits);
    const int64_t label = hard_labels ? (*hard_labels)[first + r] : 0;
    T weight = 1;  // Σ label
    T z = 0;       // Σ label · z
    if (!hard_labels) {
      const T* labels = soft_labels + r * cols;
      weight = Sum(cols, labels);
      z = SumOf<T>(cols, [=](int64_t c) { return labels[c] * (logits[c] - max); });
    } else if (label >= 0) {
      z = logits[label] - max;
    }
    const T sum = SoftmaxOfRow(cols, logits, max, softmax);
    loss[r] = label < 0 ? T(0) : weight * std::log(sum) - z;  // without a label 0, whatever the logits are
  }
}

template <typename T>
void SoftmaxWithCrossEntropyKernel(const ExecutionContext& ctx) {
  const LoDTensor& logits_tensor = ctx.Input("Logits");
  const Problem problem(ctx, logits_tensor.dims());
  const AxisSize& s = problem.shape;
  T* softmax = ctx.Output("Softmax")->mutable_data<T>();
  T* loss = ctx.Output("Loss")->mutable_data<T>();
  const T* logits = logits_tensor.data<T>();
  const T* soft_labels = problem.hard_labels ? nullptr : ctx.Input("Label").data<T>();
  if (s.inner == 1) {
    ParallelFor(s.outer, RowsPerBlock(8 * s.extent), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * s.extent;
      LossOfRows(problem, begin, end - begin, logits + at, soft_labels == nullptr ? nullptr : soft_labels + at,
                 softmax + at, loss + begin);
    });
    return;
  }
  Tensor rows_memory;
  Tensor labels_memory;
  const int64_t size = s.extent * s.inner;
  for (int64_t o = 0; o < s.outer; ++o, logits += size, softmax += size, loss += s.inner) {
    T* rows = Scratch<T>(&rows_memory, size);
    T* labels = soft_labels == nullptr ? nullptr : Scratch<T>(&labels_memory, size);
    Transpose(s.extent, s.inner, logits, rows);
    if (labels != nullptr) {
      Transpose(s.extent, s.inner, soft_labels + o * size, labels);
    }
    LossOfRows(problem, o * s.inner, s.inner, rows, labels, rows, loss);
    Transpose(s.inner, s.extent, rows, softmax);
  }
}

// The gradient of the logits of a matrix as above. `softmax_grad` and `loss_grad` may be nullptr.
template <typename T>
void GradOfRows(const Problem& problem, int64_t first, int64_t rows, const T* softmax, const T* soft_labels,
                const T* softmax_grad, const T* loss_grad, T* dx) {
  const int64_t cols = problem.shape.extent;
  if (softmax_grad != nullptr) {
    SoftmaxGrad(rows, cols, softmax, softmax_grad, dx);
  } else {
    std::fill_n(dx, rows * cols, T(0));
  }
  for (int64_t r = 0; loss_grad != nullptr && r < rows; ++r, softmax += cols, dx += cols) {
    if (!problem.hard_labels) {
      const T* label = soft_labels + r * cols;
      const T weight = Sum(cols, label);
      for (int64_t c = 0; c < cols; ++c) {
        dx[c] += loss_grad[r] * (weight * softmax[c] - label[c]);
      }
    } else if (const int64_t label = (*problem.hard_labels)[first + r]; label >= 0) {
      for (int64_t c = 0; c < cols; ++c) {
        dx[c] += loss_grad[r] * softmax[c];
      }
      dx[label] -= loss_grad[r];
    }
  }
}

template <typename T>
void SoftmaxWithCrossEntropyGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& softmax_tensor = ctx.Input("Softmax");
  const Problem problem(ctx, softmax_tensor.dims());
  const AxisSize& s = problem.shape;
  T* dx = ctx.Output("Logits@GRAD")->mutable_data<T>();
  const T* softmax = softmax_tensor.data<T>();
  const T* soft_labels = problem.hard_labels ? nullptr : ctx.Input("Label").data<T>();
  const T* softmax_grad = ElementsOrNull<T>(ctx, "Softmax@GRAD");
  const T* loss_grad = ElementsOrNull<T>(ctx, "Loss@GRAD");
  if (s.inner == 1) {
    ParallelFor(s.outer, RowsPerBlock(2 * s.extent), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * s.extent;
      const auto from = [at](const T* rows) { return rows == nullptr ? nullptr : rows + at; };
      GradOfRows(problem, begin, end - begin, softmax + at, from(soft_labels), from(softmax_grad),
                 loss_grad == nullptr ? nullptr : loss_grad + begin, dx + at);
    });
    return;
  }
  Tensor softmax_memory;
  Tensor labels_memory;
  Tensor softmax_grad_memory;
  Tensor dx_memory;
  const int64_t size = s.extent * s.inner;
  const auto transposed = [&](const T* from, int64_t o, Tensor* memory) -> const T* {
    if (from == nullptr) {
      return nullptr;
    }
    T* rows = Scratch<T>(memory, size);
    Transpose(s.extent, s.inner, from + o * size, rows);
    return rows;
  };
  for (int64_t o = 0; o < s.outer; ++o) {
    T* dx_rows = Scratch<T>(&dx_memory, size);
    GradOfRows(problem, o * s.inner, s.inner, transposed(softmax, o, &softmax_memory),
               transposed(soft_labels, o, &labels_memory), transposed(softmax_grad, o, &softmax_grad_memory),
               loss_grad == nullptr ? nullptr : loss_grad + o * s.inner, dx_rows);
    Transpose(s.inner, s.extent, dx_rows, dx + o * size);
  }
}

OpRegistrar&& LossAttrs(OpRegistrar&& op) {
  return LabelAttrs(std::move(op))
      .Attr<int32_t>("axis", "the dimension of the classes; negative ones count from the back", -1);
}

}  // namespace

HEADRACE_REGISTER_OP(softmax_with_cross_entropy)
    .Comment("cross_entropy of softmax, computed from the logits so that nothing overflows.")
    .Input("Logits", "rank 2 or more; dimension axis is that of the classes")
    .Input("Label", "int64, dims of Logits with a 1 for the classes, or the dims and dtype of Logits if soft_label")
    .Output("Softmax", "dims of Logits")
    .Output("Loss", "dims of Logits with a 1 for the classes")
    .With(LossAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const int32_t axis = ctx.Attr<int32_t>("axis");
      SetOutput(ctx, "Loss", CheckLabels(ctx, "Logits", axis), ctx.InputType("Logits"));
      ctx.ShareAll("Logits", "Softmax");
      if (FrontAxis(axis, ctx.InputDim("Logits").size(), "axis") != 0) {  // else the rows were the classes
        ctx.ShareLoD("Logits", "Loss");
      }
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
    .With(LossAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim losses = CheckLabels(ctx, "Softmax", ctx.Attr<int32_t>("axis"));
      if (ctx.HasInput("Loss@GRAD")) {
        EnforceDims(ctx, "Loss@GRAD", losses);
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
