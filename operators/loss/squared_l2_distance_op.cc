// squared_l2_distance: the square of the distance between rows.
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

template <typename T>
void DistanceKernel(const ExecutionContext& ctx) {
  const MatrixSize s(ctx.Input("X").dims(), 1);
  const bool one_row = ctx.Input("Y").dims()[0] == 1;
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  T* difference = ctx.Output("sub_result")->mutable_data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  if (s.rows == 0) {  // also where rows have no elements
    ParallelFill(out, ctx.Output("Out")->numel(), T(0));
  }
  ParallelFor(s.rows, RowsPerBlock(s.cols), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* row = difference + r * s.cols;
      const T* of_y = one_row ? y : y + r * s.cols;
      for (int64_t c = 0; c < s.cols; ++c) {
        row[c] = x[r * s.cols + c] - of_y[c];
      }
      out[r] = SumOf<T>(s.cols, [=](int64_t c) { return row[c] * row[c]; });
    }
  });
}

template <typename T>
void DistanceGradKernel(const ExecutionContext& ctx) {
  const MatrixSize s(ctx.Input("sub_result"));
  const T* difference = ctx.Input("sub_result").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const auto at = [=](int64_t r, int64_t c) { return 2 * d[r] * difference[r * s.cols + c]; };
  if (T* dx = MutableOrNull<T>(ctx, "X@GRAD")) {
    ParallelFor(s.rows, RowsPerBlock(s.cols), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < s.cols; ++c) {
          dx[r * s.cols + c] = at(r, c);
        }
      }
    });
  }
  T* dy = ZerosOrNull<T>(ctx, "Y@GRAD");
  const bool one_row = ctx.Input("Y").dims()[0] == 1;
  for (int64_t r = 0; dy != nullptr && r < s.rows; ++r) {
    for (int64_t c = 0; c < s.cols; ++c) {
      dy[(one_row ? 0 : r * s.cols) + c] -= at(r, c);
    }
  }
}

// Checks X and Y; returns the dims of sub_result.
DDim CheckDistance(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  DDim y = x;
  y[0] = ctx.InputDim("Y").empty() ? -1 : ctx.InputDim("Y")[0];
  EnforceDims(ctx, "Y", y);
  EnforceSameType(ctx, "Y", "X");
  HR_ENFORCE(y[0] == 1 || Fits(y[0], x[0]), InvalidArgument, "input Y: expected 1 or ", x[0], " rows, got dims ",
             ToString(ctx.InputDim("Y")));
  return {x[0], Numel(x, 1, x.size())};
}

}  // namespace

HEADRACE_REGISTER_OP(squared_l2_distance)
    .Comment("The sum of the squares of a row of X - Y.")
    .Input("X", "[N, ...]")
    .Input("Y", "dims and dtype of X; or one row, which all rows of X are compared with")
    .Output("sub_result", "[N, elements of a row]: X - Y, for the gradient")
    .Output("Out", "[N, 1]; LoD of X")
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = CheckDistance(ctx);
      SetOutput(ctx, "sub_result", dims, ctx.InputType("X"));
      SetOutput(ctx, "Out", {dims[0], 1}, ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Kernel<float>(DistanceKernel<float>)
    .Kernel<double>(DistanceKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {"sub_result"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(squared_l2_distance_grad)
    .Comment("Gradient of squared_l2_distance.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Y", "as in the operator; only its dims are used", kShapeOnly)
    .Input("sub_result", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("sub_result@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Y@GRAD", "dims of Y", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = CheckDistance(ctx);
      EnforceDims(ctx, "sub_result", dims);
      EnforceSameType(ctx, "sub_result", "X");
      EnforceDims(ctx, "Out@GRAD", {dims[0], 1});
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Y"});
    })
    .Kernel<float>(DistanceGradKernel<float>)
    .Kernel<double>(DistanceGradKernel<double>);

}  // namespace headrace::ops
