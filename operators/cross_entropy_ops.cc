// Losses: cross_entropy, softmax_with_cross_entropy, sigmoid_cross_entropy_with_logits, square_error_cost.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/reduction.h"
#include "operators/softmax.h"
#include "operators/vector_math.h"

namespace headrace::ops {
namespace {

// --- labels ---

// The classes of the rows, from a label tensor of int64 [..., 1].
class HardLabels {
 public:
  HardLabels(const ExecutionContext& ctx, int64_t classes)
      : data_(ctx.Input("Label").data<int64_t>()), classes_(classes), ignored_(ctx.Attr<int32_t>("ignore_index")) {}

  // The class of row `r`, -1 if it is the one to be ignored. Throws OutOfRange naming row and value.
  int64_t operator[](int64_t r) const {
    const int64_t label = data_[r];
    if (label == ignored_) {
      return -1;
    }
    HR_ENFORCE(0 <= label && label < classes_, OutOfRange, "input Label: row ", r, " has class ", label,
               ", expected one in [0, ", classes_, ")");
    return label;
  }

 private:
  const int64_t* data_;
  int64_t classes_;
  int64_t ignored_;
};

// Checks the labels of predictions [..., classes] and returns the dims of one loss per row, [..., 1].
DDim CheckLabels(const InferShapeContext& ctx, std::string_view predictions) {
  EnforceRankAtLeast(ctx, predictions, 2);
  const DDim dims = ctx.InputDim(predictions);
  HR_ENFORCE(dims.back() != 0, InvalidArgument, "input ", predictions, ": expected at least one class, got dims ",
             ToString(dims));
  DDim per_row = dims;
  per_row.back() = 1;
  if (ctx.Attr<bool>("soft_label")) {
    EnforceDims(ctx, "Label", dims);
    EnforceSameType(ctx, "Label", predictions);
  } else {
    EnforceDims(ctx, "Label", per_row);
    EnforceType(ctx, "Label", DataType::kInt64);
  }
  return per_row;
}

OpRegistrar&& LabelAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<bool>("soft_label", "whether Label holds a probability for each class, instead of the number of a class",
                  false)
      .Attr<int32_t>("ignore_index", "the class whose rows have loss 0, unless soft_label", -100);
}

// --- cross_entropy ---

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
    for (int64_t r = 0; r < s.rows; ++r, x += s.cols, label += s.cols) {
      y[r] = -SumOf<T>(s.cols, [=](int64_t c) { return label[c] * std::log(Tolerable(x[c])); });
    }
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
    for (int64_t r = 0; r < s.rows; ++r, x += s.cols, dx += s.cols, label += s.cols) {
      for (int64_t c = 0; c < s.cols; ++c) {
        dx[c] = -dy[r] * label[c] / Tolerable(x[c]);
      }
    }
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

// --- softmax_with_cross_entropy ---

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

// --- sigmoid_cross_entropy_with_logits ---

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
  for (int64_t i = 0; i < n; ++i) {
    out[i] = -std::abs(x[i]);
  }
  VectorExp(n, out, out);
  for (int64_t i = 0; i < n; ++i) {
    const T loss = (x[i] < 0 ? T(0) : x[i]) - x[i] * label[i] + std::log1p(out[i]);
    out[i] = label[i] == ignored ? T(0) : loss / normalizer;
  }
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
  VectorSigmoid(n, ctx.Input("X").data<T>(), dx);
  for (int64_t i = 0; i < n; ++i) {
    dx[i] = label[i] == ignored ? T(0) : d[i] * (dx[i] - label[i]) / normalizer;
  }
}

OpRegistrar&& SigmoidAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("ignore_index", "the label whose elements have loss 0", -100)
      .Attr<bool>("normalize", "whether the losses are divided by the number of elements that are not ignored", false);
}

// --- square_error_cost ---

template <typename T>
void SquareErrorKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  for (int64_t i = 0, n = out_tensor->numel(); i < n; ++i) {
    const T difference = x[i] - y[i];
    out[i] = difference * difference;
  }
}

template <typename T>
void SquareErrorGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const auto write = [&](const char* slot, T sign) {
    if (LoDTensor* grad = ctx.OutputOrNull(slot)) {
      T* to = grad->mutable_data<T>();
      for (int64_t i = 0, n = x_tensor.numel(); i < n; ++i) {
        to[i] = sign * 2 * (x[i] - y[i]) * d[i];
      }
    }
  };
  write("X@GRAD", T(1));
  write("Y@GRAD", T(-1));
}

}  // namespace

HEADRACE_REGISTER_OP(cross_entropy)
    .Comment(
        "-log(X[label]) for each row, or -sum(Label * log(X)) if soft_label. Probabilities of 0 count as the smallest "
        "normal number.")
    .Input("X", "[..., classes], probabilities")
    .Input("Label", "int64 [..., 1], or the dims and dtype of X if soft_label")
    .Output("Y", "[..., 1], one loss per row")
    .With(LabelAttrs)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Y", CheckLabels(ctx, "X"), ctx.InputType("X"));
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
      EnforceDims(ctx, "Y@GRAD", CheckLabels(ctx, "X"));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(CrossEntropyGradKernel<float>)
    .Kernel<double>(CrossEntropyGradKernel<double>);

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
      for (const char* slot : {"Label", "Out@GRAD"}) {
        EnforceDims(ctx, slot, ctx.InputDim("X"));
        EnforceSameType(ctx, slot, "X");
      }
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(SigmoidCrossEntropyGradKernel<float>)
    .Kernel<double>(SigmoidCrossEntropyGradKernel<double>);

HEADRACE_REGISTER_OP(square_error_cost)
    .Comment("(X - Y)^2, element by element. Out may be X or Y.")
    .Input("X", "any shape")
    .Input("Y", "dims and dtype of X")
    .Output("Out", "dims of X")
    .InPlace("Out", "X")
    .InPlace("Out", "Y")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Y", ctx.InputDim("X"));
      EnforceSameType(ctx, "Y", "X");
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(SquareErrorKernel<float>)
    .Kernel<double>(SquareErrorKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(square_error_cost_grad)
    .Comment("Gradient of square_error_cost.")
    .Input("X", "as in the operator")
    .Input("Y", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Y@GRAD", "dims of Y", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      for (const char* slot : {"Y", "Out@GRAD"}) {
        EnforceDims(ctx, slot, ctx.InputDim("X"));
        EnforceSameType(ctx, slot, "X");
      }
      InferGradients(ctx, {"X", "Y"});
    })
    .Kernel<float>(SquareErrorGradKernel<float>)
    .Kernel<double>(SquareErrorGradKernel<double>);

}  // namespace headrace::ops
