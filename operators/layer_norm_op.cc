// layer_norm: each row normalised.
#include <cmath>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/reduction.h"

namespace headrace::ops {
namespace {

// X as a matrix, of which each row is normalised.
MatrixSize NormalisedRows(const ExecutionContext& ctx) {
  return MatrixSize(ctx.Input("X").dims(), static_cast<size_t>(ctx.Attr<int32_t>("begin_norm_axis")));
}

template <typename T>
void LayerNormKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const MatrixSize s = NormalisedRows(ctx);
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  T* y = ctx.Output("Y")->mutable_data<T>();
  T* mean = ctx.Output("Mean")->mutable_data<T>();
  T* variance = ctx.Output("Variance")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* scale = ElementsOrNull<T>(ctx, "Scale");
  const T* bias = ElementsOrNull<T>(ctx, "Bias");
  for (int64_t r = 0; r < s.rows; ++r, x += s.cols, y += s.cols) {
    const T m = Sum(s.cols, x) / static_cast<T>(s.cols);
    variance[r] = SumOf<T>(s.cols, [=](int64_t i) { return (x[i] - m) * (x[i] - m); }) / static_cast<T>(s.cols);
    mean[r] = m;
    const T inverse = 1 / std::sqrt(variance[r] + epsilon);
    for (int64_t i = 0; i < s.cols; ++i) {
      y[i] = (x[i] - m) * inverse * (scale == nullptr ? T(1) : scale[i]) + (bias == nullptr ? T(0) : bias[i]);
    }
  }
}

// As for batch_norm, by rows, with dy · scale in the place of dy.
template <typename T>
void LayerNormGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const MatrixSize s = NormalisedRows(ctx);
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  T* dscale = ZerosOrNull<T>(ctx, "Scale@GRAD");
  T* dbias = ZerosOrNull<T>(ctx, "Bias@GRAD");
  T* dx = MutableOrNull<T>(ctx, "X@GRAD");
  const T* x = x_tensor.data<T>();
  const T* dy = ctx.Input("Y@GRAD").data<T>();
  const T* scale = ElementsOrNull<T>(ctx, "Scale");
  const T* mean = ctx.Input("Mean").data<T>();
  const T* variance = ctx.Input("Variance").data<T>();
  const auto width = static_cast<T>(s.cols);
  for (int64_t r = 0; r < s.rows; ++r, x += s.cols, dy += s.cols) {
    const T m = mean[r];
    const T inverse = 1 / std::sqrt(variance[r] + epsilon);
    const auto scaled = [=](int64_t i) { return dy[i] * (scale == nullptr ? T(1) : scale[i]); };
    for (int64_t i = 0; i < s.cols; ++i) {
      if (dscale != nullptr) {
        dscale[i] += dy[i] * ((x[i] - m) * inverse);
      }
      if (dbias != nullptr) {
        dbias[i] += dy[i];
      }
    }
    if (dx != nullptr) {
      const T sum = SumOf<T>(s.cols, scaled) / width;
      const T dot = SumOf<T>(s.cols, [=](int64_t i) { return scaled(i) * ((x[i] - m) * inverse); }) / width;
      for (int64_t i = 0; i < s.cols; ++i) {
        dx[i] = inverse * (scaled(i) - sum - (x[i] - m) * inverse * dot);
      }
      dx += s.cols;
    }
  }
}

// Checks the inputs that operator and gradient share; returns the number of rows.
int64_t CheckLayerNorm(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const int32_t axis = ctx.Attr<int32_t>("begin_norm_axis");
  HR_ENFORCE(0 < axis && static_cast<size_t>(axis) < x.size(), InvalidArgument,
             "attribute begin_norm_axis: expected a dimension of X after the first, which has dims ", ToString(x),
             ", got ", axis);
  const auto split = static_cast<size_t>(axis);
  const int64_t cols = Numel(x, split, x.size());
  HR_ENFORCE(cols != 0, InvalidArgument, "input X: expected rows that are not empty, got dims ", ToString(x));
  for (const char* slot : {"Scale", "Bias"}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, {cols});
      EnforceSameType(ctx, slot, "X");
    }
  }
  return Numel(x, 0, split);
}

OpRegistrar&& LayerNormAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("begin_norm_axis", "the first of the dimensions that are normalised together", 1)
      .Attr<double>("epsilon", "added to the variance", 1e-5, CheckEpsilon);
}

}  // namespace

HEADRACE_REGISTER_OP(layer_norm)
    .Comment(
        "Scale * (X - mean) / sqrt(variance + epsilon) + Bias, with mean and variance (with divisor N) of each row.")
    .Input("X", "seen as a matrix: the dims from begin_norm_axis on make a row")
    .Input("Scale", "[size of a row]", kDispensable)
    .Input("Bias", "[size of a row]", kDispensable)
    .Output("Y", "dims of X")
    .Output("Mean", "[number of rows]")
    .Output("Variance", "[number of rows]")
    .With(LayerNormAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const int64_t rows = CheckLayerNorm(ctx);
      ctx.ShareAll("X", "Y");
      SetOutput(ctx, "Mean", {rows}, ctx.InputType("X"));
      SetOutput(ctx, "Variance", {rows}, ctx.InputType("X"));
    })
    .Kernel<float>(LayerNormKernel<float>)
    .Kernel<double>(LayerNormKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Scale", "Bias"}, .outputs = {"Mean", "Variance"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(layer_norm_grad)
    .Comment("Gradient of layer_norm.")
    .Input("X", "as in the operator")
    .Input("Scale", "as in the operator", kDispensable)
    .Input("Bias", "as in the operator; only its dims are used", kDispensable)
    .Input("Mean", "as in the operator")
    .Input("Variance", "as in the operator")
    .Input("Y@GRAD", "gradient of Y")
    .Input("Mean@GRAD", "not used", kDispensable)
    .Input("Variance@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Scale@GRAD", "dims of Scale", kDispensable)
    .Output("Bias@GRAD", "dims of Bias", kDispensable)
    .With(LayerNormAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const int64_t rows = CheckLayerNorm(ctx);
      for (const char* slot : {"Mean", "Variance"}) {
        EnforceDims(ctx, slot, {rows});
        EnforceSameType(ctx, slot, "X");
      }
      EnforceDims(ctx, "Y@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X", "Scale", "Bias"});
    })
    .Kernel<float>(LayerNormGradKernel<float>)
    .Kernel<double>(LayerNormGradKernel<double>);

}  // namespace headrace::ops
