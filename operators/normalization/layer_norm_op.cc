// layer_norm: each row normalised.
#include <algorithm>
#include <cmath>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"
#include "operators/math/tensor_size.h"
#include "operators/normalization/norm.h"

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
  ParallelFor(s.rows, RowsPerBlock(4 * s.cols), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* from = x + r * s.cols;
      T* to = y + r * s.cols;
      const T m = Sum(s.cols, from) / static_cast<T>(s.cols);
      variance[r] = SumOf<T>(s.cols, [=](int64_t i) { return (from[i] - m) * (from[i] - m); }) / static_cast<T>(s.cols);
      mean[r] = m;
      const T inverse = 1 / std::sqrt(variance[r] + epsilon);
      for (int64_t i = 0; i < s.cols; ++i) {
        to[i] = (from[i] - m) * inverse * (scale == nullptr ? T(1) : scale[i]) + (bias == nullptr ? T(0) : bias[i]);
      }
    }
  });
}

// As for batch_norm, by rows, with dy · scale in the place of dy. Scale and Bias are those of columns: parts of the
// rows, which the dims alone decide on, have sums of their own.
template <typename T>
void LayerNormGradKernel(const ExecutionContext& ctx) {
  constexpr int64_t kMaxParts = 64;
  const MatrixSize s = NormalisedRows(ctx);
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  T* dscale = ZerosOrNull<T>(ctx, "Scale@GRAD");
  T* dbias = ZerosOrNull<T>(ctx, "Bias@GRAD");
  T* dx = MutableOrNull<T>(ctx, "X@GRAD");
  const T* x = ctx.Input("X").data<T>();
  const T* dy = ctx.Input("Y@GRAD").data<T>();
  const T* scale = ElementsOrNull<T>(ctx, "Scale");
  const T* mean = ctx.Input("Mean").data<T>();
  const T* variance = ctx.Input("Variance").data<T>();
  const auto width = static_cast<T>(s.cols);
  const bool sums_columns = dscale != nullptr || dbias != nullptr;
  const int64_t rows_per_part = std::max(RowsPerBlock(8 * s.cols), (s.rows + kMaxParts - 1) / kMaxParts);
  const int64_t parts = sums_columns ? (s.rows + rows_per_part - 1) / rows_per_part : 0;
  Tensor memory;
  T* sums = Scratch<T>(&memory, parts * 2 * s.cols);
  ParallelFor(s.rows, rows_per_part, [=](int64_t begin, int64_t end) {
    T* dots_of_part = sums + begin / rows_per_part * 2 * s.cols;
    T* sums_of_part = dots_of_part + s.cols;
    if (sums_columns) {
      std::fill_n(dots_of_part, 2 * s.cols, T(0));
    }
    for (int64_t r = begin; r < end; ++r) {
      const T* x_row = x + r * s.cols;
      const T* dy_row = dy + r * s.cols;
      const T m = mean[r];
      const T inverse = 1 / std::sqrt(variance[r] + epsilon);
      if (sums_columns) {
        HEADRACE_INDEPENDENT_ITERATIONS
        for (int64_t i = 0; i < s.cols; ++i) {
          dots_of_part[i] += dy_row[i] * ((x_row[i] - m) * inverse);
          sums_of_part[i] += dy_row[i];
        }
      }
      if (dx == nullptr) {
        continue;
      }
      T* dx_row = dx + r * s.cols;
      const auto scaled = [=](int64_t i) { return dy_row[i] * (scale == nullptr ? T(1) : scale[i]); };
      const T sum = SumOf<T>(s.cols, scaled) / width;
      const T dot = SumOf<T>(s.cols, [=](int64_t i) { return scaled(i) * ((x_row[i] - m) * inverse); }) / width;
      HEADRACE_INDEPENDENT_ITERATIONS
      for (int64_t i = 0; i < s.cols; ++i) {
        dx_row[i] = inverse * (scaled(i) - sum - (x_row[i] - m) * inverse * dot);
      }
    }
  });
  for (int64_t part = 0; part < parts; ++part) {
    const T* of_part = sums + part * 2 * s.cols;
    for (int64_t i = 0; dscale != nullptr && i < s.cols; ++i) {
      dscale[i] += of_part[i];
    }
    for (int64_t i = 0; dbias != nullptr && i < s.cols; ++i) {
      dbias[i] += of_part[s.cols + i];
    }
  }
}

// Checks the inputs that operator and gradient share; returns the dims of the statistics.
DDim CheckLayerNorm(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const int32_t axis = ctx.Attr<int32_t>("begin_norm_axis");
  HR_ENFORCE(0 < axis && static_cast<size_t>(axis) < x.size(), InvalidArgument,
             "attribute begin_norm_axis: expected a dimension of X after the first, which has dims ", ToString(x),
             ", got ", axis);
  const auto split = static_cast<size_t>(axis);
  const int64_t cols = Numel(x, split, x.size());
  HR_ENFORCE(cols != 0, InvalidArgument, "input X: expected rows that are not empty, got dims ", ToString(x));
  CheckScaleAndBias(ctx, cols);
  return {Numel(x, 0, split)};
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
    .With(NormSlots, "seen as a matrix: the dims from begin_norm_axis on make a row", "[size of a row]",
          "[number of rows]")
    .With(LayerNormAttrs)
    .InferShape([](InferShapeContext& ctx) { InferNorm(ctx, CheckLayerNorm(ctx)); })
    .Kernel<float>(LayerNormKernel<float>)
    .Kernel<double>(LayerNormKernel<double>);

HEADRACE_REGISTER_OP(layer_norm_grad)
    .Comment("Gradient of layer_norm.")
    .With(NormGradSlots)
    .With(LayerNormAttrs)
    .InferShape([](InferShapeContext& ctx) { InferNormGrad(ctx, CheckLayerNorm(ctx)); })
    .Kernel<float>(LayerNormGradKernel<float>)
    .Kernel<double>(LayerNormGradKernel<double>);

}  // namespace headrace::ops
