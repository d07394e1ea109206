// cross_entropy, cross_entropy2: the loss of predicted probabilities.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/sigmoid.h"
#include "operators/math/tensor_size.h"

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
          return label[first + c] * Log(Tolerable(x[first + c]));
        });
      }
    });
  } else {
    const HardLabels labels(ctx, s.cols);
    const auto take = [=](int64_t r) {
      const int64_t label = labels[r];
      y[r] = label < 0 ? T(0) : -Log(Tolerable(x[r * s.cols + label]));
    };
    ParallelForEach(s.rows, take, /*work=*/64);  // a row that is not in a cache takes as long as many that are
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
    const auto spread = [=](int64_t r) {
      std::fill_n(dx + r * s.cols, s.cols, T(0));
      if (const int64_t label = labels[r]; label >= 0) {
        dx[r * s.cols + label] = -dy[r] / Tolerable(x[r * s.cols + label]);
      }
    };
    ParallelForEach(s.rows, spread, s.cols);
  }
}

// Keeps the probabilities of the labels for the gradient, which needs no others.
template <typename T>
void CrossEntropy2Kernel(const ExecutionContext& ctx) {
  const MatrixSize s(ctx.Input("X"));
  const T* x = ctx.Input("X").data<T>();
  const HardLabels labels(ctx, s.cols);
  T* y = ctx.Output("Y")->mutable_data<T>();
  T* match = ctx.Output("MatchX")->mutable_data<T>();
  ctx.Output("XShape")->mutable_data<T>();
  const auto take = [=](int64_t r) {
    const int64_t label = labels[r];
    match[r] = label < 0 ? T(0) : x[r * s.cols + label];
    y[r] = label < 0 ? T(0) : -Log(Tolerable(match[r]));
  };
  ParallelForEach(s.rows, take, /*work=*/64);  // a row that is not in a cache takes as long as many that are
}

template <typename T>
void CrossEntropy2GradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  const MatrixSize s(*x_grad);
  const T* match = ctx.Input("MatchX").data<T>();
  const T* dy = ctx.Input("Y@GRAD").data<T>();
  const HardLabels labels(ctx, s.cols);
  T* dx = x_grad->mutable_data<T>();
  const auto spread = [=](int64_t r) {
    std::fill_n(dx + r * s.cols, s.cols, T(0));
    if (const int64_t label = labels[r]; label >= 0) {
      dx[r * s.cols + label] = -dy[r] / Tolerable(match[r]);
    }
  };
  ParallelForEach(s.rows, spread, s.cols);
}

void InferCrossEntropy2(InferShapeContext& ctx) {
  const DataType type = ctx.InputType("X");
  SetOutput(ctx, "Y", CheckLabels(ctx, "X", -1, /*may_lack_axis=*/true), type);
  ctx.ShareLoD("X", "Y");
  DDim dims = ctx.InputDim("X");
  dims.push_back(0);
  SetOutput(ctx, "XShape", dims, type);
  dims.pop_back();
  dims.back() = 1;
  SetOutput(ctx, "MatchX", dims, type);
}

void InferCrossEntropy2Grad(InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "XShape", 3);
  DDim dims = ctx.InputDim("XShape");
  dims.pop_back();
  SetOutput(ctx, "X@GRAD", dims, ctx.InputType("MatchX"));
  dims.back() = 1;
  EnforceDims(ctx, "MatchX", dims);
  EnforceDims(ctx, "Y@GRAD", CheckHardLabels(ctx, dims, dims.size() - 1, /*may_lack_axis=*/true));
  EnforceSameType(ctx, "Y@GRAD", "MatchX");
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

HEADRACE_REGISTER_OP(cross_entropy2)
    .Comment("cross_entropy of numbers of classes; its gradient reads neither X nor Y.")
    .Input("X", "[..., classes], probabilities")
    .Input("Label", "int64 [..., 1] or [...]")
    .Output("Y", "[..., 1], one loss per row; [...] if Label is")
    .Output("MatchX", "[..., 1], the probability of each label; 0 where that is ignored")
    .Output("XShape", "[..., classes, 0]: the dims of X, for the gradient")
    .With(IgnoreIndexAttr)
    .InferShape(InferCrossEntropy2)
    .Kernel<float>(CrossEntropy2Kernel<float>)
    .Kernel<double>(CrossEntropy2Kernel<double>)
    .Gradient([](const OpDesc& op) {
      return std::vector<OpDesc>{{"cross_entropy_grad2",
                                  {{"Label", op.Input("Label")},
                                   {"MatchX", op.Output("MatchX")},
                                   {"XShape", op.Output("XShape")},
                                   {"Y@GRAD", {GradVarName(op.Output("Y")[0])}}},
                                  {{"X@GRAD", {GradVarName(op.Input("X")[0])}}},
                                  op.attrs}};
    });

HEADRACE_REGISTER_OP(cross_entropy_grad2)
    .Comment("Gradient of cross_entropy2.")
    .Input("Label", "as in the operator")
    .Input("MatchX", "as in the operator")
    .Input("XShape", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Y@GRAD", "gradient of Y")
    .Output("X@GRAD", "dims of X")
    .With(IgnoreIndexAttr)
    .KernelTypeFrom("MatchX")
    .InferShape(InferCrossEntropy2Grad)
    .Kernel<float>(CrossEntropy2GradKernel<float>)
    .Kernel<double>(CrossEntropy2GradKernel<double>);

}  // namespace headrace::ops
