// cross_entropy: the loss of predicted probabilities.
#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/kernel_util.h"
#include "operators/labels.h"
#include "operators/reduction.h"

namespace headrace::ops {
namespace {

// A probability of 0 counts as the smallest normal number, so that neither the loss nor its gradient becomes infinite.
template <typename T>
T Tolerable(T probability) {
  return probability < std::numeric_limits<T>::min() ? std::numeric_limits<T>::min() : probability;
}

template <typename T>
void CrossEntropyKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const MatrixSize s(x_tensor);
  const T* x = x_tensor.data<T>();
  T* y = ctx.Output("Y")->mutable_data<T>();
  if (ctx.Attr<bool>("soft_label")) {
    const T* label = ctx.Input("Label").data<T>();
    ParallelFor(s.rows, RowsPerBlock(16 * s.cols), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        y[r] = -SumOf<T>(s.cols, [first = r * s.cols, x, label](int64_t c) {
          return label[first + c] * std::log(Tolerable(x[first + c]));
        });
      }
    });
  } else {
    const HardLabels labels(ctx, s.cols);
    for (int64_t r = 0; r < s.rows; ++r, x += s.cols) {
      const int64_t label = labels[r];
      y[r] = label < 0 ? T(0) : -std::log(Tolerable(x[label]));
    }
  }
}

template <typename T>
void CrossEntropyGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const MatrixSize s(x_tensor);
  const T* x = x_tensor.data<T>();
  const T* dy = ctx.Input("Y@GRAD").data<T>();
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  if (ctx.Attr<bool>("soft_label")) {
    const T* label = ctx.Input("Label").data<T>();
    ParallelFor(s.rows, RowsPerBlock(2 * s.cols), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t i = r * s.cols; i < (r + 1) * s.cols; ++i) {
          dx[i] = -dy[r] * label[i] / Tolerable(x[i]);
        }
      }
    });
  } else {
    const HardLabels labels(ctx, s.cols);
    std::fill_n(dx, x_tensor.numel(), T(0));
    for (int64_t r = 0; r < s.rows; ++r, x += s.cols, dx += s.cols) {
      const int64_t label = labels[r];
      if (label >= 0) {
        dx[label] = -dy[r] / Tolerable(x[label]);
      }
    }
  }
}

}  // namespace

HEADRACE_REGISTER_OP(cross_entropy)
    .Comment(
        "-log(X[label]) for each row, or -sum(Label * log(X)) if soft_label. Probabilities of 0 count as the smallest "
        "normal number.")
    .Input("X", "[..., classes], probabilities")
    .Input("Label", "int64 [..., 1] or [...], or the dims and dtype of X if soft_label")
    .Output("Y", "[..., 1], one loss per row; [...] if Label is")
    .With(LabelAttrs)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Y", CheckLabels(ctx, "X", -1, /*may_lack_axis=*/true), ctx.InputType("X"));
      ctx.ShareLoD("X", "Y");
    })
    .Kernel<float>(CrossEntropyKernel<float>)
    .Kernel<double>(CrossEntropyKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Label"}, .outputs = {}, .no_gradient = {"Label"}}));

HEADRACE_REGISTER_OP(cross_entropy_grad)
    .Comment("Gradient of cross_entropy.")
    .Input("X", "as in the operator")
    .Input("Label", "as in the operator")
    .Input("Y@GRAD", "gradient of Y")
    .Output("X@GRAD", "dims of X")
    .With(LabelAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Y@GRAD", CheckLabels(ctx, "X", -1, /*may_lack_axis=*/true));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(CrossEntropyGradKernel<float>)
    .Kernel<double>(CrossEntropyGradKernel<double>);

}  // namespace headrace::ops
