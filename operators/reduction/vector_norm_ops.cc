// l1_norm, squared_l2_norm, norm: how long vectors are.
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

template <typename T>
void L1NormKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  *ctx.Output("Out")->mutable_data<T>() = ParallelSumOf<T>(x_tensor.numel(), [x](int64_t i) { return std::abs(x[i]); });
}

template <typename T>
void SquaredL2NormKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  *ctx.Output("Out")->mutable_data<T>() = ParallelSumOf<T>(x_tensor.numel(), [x](int64_t i) { return x[i] * x[i]; });
}

template <typename T, bool kSquared>
void WholeNormGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  T* dx = x_grad->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T d = *ctx.Input("Out@GRAD").data<T>();
  ParallelForEach(x_grad->numel(),
                  [=](int64_t i) { dx[i] = d * (kSquared ? 2 * x[i] : static_cast<T>((x[i] > 0) - (x[i] < 0))); });
}

OpRegistrar&& WholeNormGrad(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X")
      .InferShape([](InferShapeContext& ctx) {
        EnforceDims(ctx, "Out@GRAD", {1});
        EnforceSameType(ctx, "Out@GRAD", "X");
        InferGradients(ctx, {"X"});
      });
}

// --- norm: along one dimension ---

template <typename T>
void NormKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const AxisSize s(x_tensor.dims(), FrontAxis(ctx.Attr<int32_t>("axis"), x_tensor.dims().size(), "axis"));
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  T* out = ctx.Output("Out")->mutable_data<T>();
  LoDTensor* norm_tensor = ctx.Output("Norm");
  T* norms = norm_tensor->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  if (s.extent == 0) {  // vectors without elements have norms, too
    return ParallelFill(norms, norm_tensor->numel(), std::sqrt(epsilon));
  }
  if (s.inner == 1) {
    return ForEachLine(s, /*work=*/4, [=](int64_t line, int64_t first) {
      const T* row = x + first;
      norms[line] = std::sqrt(SumOf<T>(s.extent, [row](int64_t i) { return row[i] * row[i]; }) + epsilon);
      for (int64_t i = 0; i < s.extent; ++i) {
        out[first + i] = row[i] / norms[line];
      }
    });
  }
  ForEachStrip(s, /*work=*/4, [=](int64_t line, int64_t first, int64_t columns) {
    T norm[kStrip];
    SumColumns(s.extent, columns, norm, [=](int64_t a, int64_t i) {
      const T element = x[first + a * s.inner + i];
      return element * element;
    });
    for (int64_t i = 0; i < columns; ++i) {
      norm[i] = std::sqrt(norm[i] + epsilon);
      norms[line + i] = norm[i];
    }
    ForEachInStrip(s, columns, [=, from = x + first, to = out + first, &norm](int64_t at, int64_t, int64_t i) {
      to[at] = from[at] / norm[i];
    });
  });
}

// d(x / |x|) = (d − x · <d, x> / |x|²) / |x|
template <typename T>
void NormGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const AxisSize s(x_tensor.dims(), FrontAxis(ctx.Attr<int32_t>("axis"), x_tensor.dims().size(), "axis"));
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* norms = ctx.Input("Norm").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  if (s.inner == 1) {
    return ForEachLine(s, /*work=*/4, [=](int64_t line, int64_t first) {
      const T dot = SumOf<T>(s.extent, [=](int64_t i) { return d[first + i] * x[first + i]; });
      const T by_square = dot / (norms[line] * norms[line]);
      for (int64_t i = first; i < first + s.extent; ++i) {
        dx[i] = (d[i] - x[i] * by_square) / norms[line];
      }
    });
  }
  ForEachStrip(s, /*work=*/4, [=](int64_t line, int64_t first, int64_t columns) {
    T by_square[kStrip];
    SumColumns(s.extent, columns, by_square, [=](int64_t a, int64_t i) {
      const int64_t at = first + a * s.inner + i;
      return d[at] * x[at];
    });
    for (int64_t i = 0; i < columns; ++i) {
      by_square[i] /= norms[line + i] * norms[line + i];
    }
    ForEachInStrip(s, columns, [=, &by_square](int64_t at, int64_t, int64_t i) {
      dx[first + at] = (d[first + at] - x[first + at] * by_square[i]) / norms[line + i];
    });
  });
}

DDim NormDims(const InferShapeContext& ctx) {
  DDim dims = ctx.InputDim("X");
  dims[FrontAxis(ctx.Attr<int32_t>("axis"), dims.size(), "axis")] = 1;
  return dims;
}

OpRegistrar&& NormAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("axis", "the dimension along which the vectors lie; negative ones count from the back")
      .Attr<double>("epsilon", "added to the sum of the squares", 1e-10, CheckEpsilon);
}

}  // namespace

HEADRACE_REGISTER_OP(l1_norm)
    .Comment("The sum of the absolute values.")
    .Input("X", "any shape")
    .Output("Out", "[1]")
    .InferShape([](InferShapeContext& ctx) { SetOutput(ctx, "Out", {1}, ctx.InputType("X")); })
    .Kernel<float>(L1NormKernel<float>)
    .Kernel<double>(L1NormKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(l1_norm_grad)
    .Comment("Gradient of l1_norm.")
    .With(WholeNormGrad)
    .Kernel<float>(WholeNormGradKernel<float, false>)
    .Kernel<double>(WholeNormGradKernel<double, false>);

HEADRACE_REGISTER_OP(squared_l2_norm)
    .Comment("The sum of the squares.")
    .Input("X", "any shape")
    .Output("Out", "[1]")
    .InferShape([](InferShapeContext& ctx) { SetOutput(ctx, "Out", {1}, ctx.InputType("X")); })
    .Kernel<float>(SquaredL2NormKernel<float>)
    .Kernel<double>(SquaredL2NormKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(squared_l2_norm_grad)
    .Comment("Gradient of squared_l2_norm.")
    .With(WholeNormGrad)
    .Kernel<float>(WholeNormGradKernel<float, true>)
    .Kernel<double>(WholeNormGradKernel<double, true>);

HEADRACE_REGISTER_OP(norm)
    .Comment("The vectors along a dimension, scaled to the Euclidean length 1.")
    .Input("X", "any shape of rank 1 or more")
    .Output("Out", "dims and dtype of X")
    .Output("Norm", "dims of X, with 1 for axis: sqrt(sum of the squares + epsilon)")
    .With(NormAttrs)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Norm", NormDims(ctx), ctx.InputType("X"));
      SetOutput(ctx, "Out", ctx.InputDim("X"), ctx.InputType("X"));
    })
    .Kernel<float>(NormKernel<float>)
    .Kernel<double>(NormKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Norm"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(norm_grad)
    .Comment("Gradient of norm.")
    .Input("X", "as in the operator")
    .Input("Norm", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("Norm@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .With(NormAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Norm", NormDims(ctx));
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(NormGradKernel<float>)
    .Kernel<double>(NormGradKernel<double>);

}  // namespace headrace::ops
