// conv_shift: circular correlation of rows, the shift of attention in a neural Turing machine (A. Graves, G. Wayne and
// I. Danihelka, Neural Turing machines, 2014).
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// Calls visit(element of Out, of X, of Y) for each product, from several threads, each of which has rows of its own.
template <typename Visit>
void ForEachProduct(const ExecutionContext& ctx, const Visit& visit) {
  const DDim& x = ctx.Input("X").dims();
  const int64_t cols = x[1];
  const int64_t size = ctx.Input("Y").dims()[1];
  const auto visit_row = [=](int64_t r) {
    for (int64_t i = 0; i < cols; ++i) {
      for (int64_t j = 0; j < size; ++j) {
        const int64_t from = i + j - size / 2;  // at most half of Y, which is no longer than X, beyond either end
        visit(r * cols + i, r * cols + (from < 0 ? from + cols : from >= cols ? from - cols : from), r * size + j);
      }
    }
  };
  ParallelForEach(x[0], visit_row, cols * size);
}

template <typename T>
void ConvShiftKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  ParallelFill(out, out_tensor->numel(), T(0));
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  ForEachProduct(ctx, [=](int64_t to, int64_t i, int64_t j) { out[to] += x[i] * y[j]; });
}

template <typename T>
void ConvShiftGradKernel(const ExecutionContext& ctx) {
  T* dx = ZerosOrNull<T>(ctx, "X@GRAD");
  T* dy = ZerosOrNull<T>(ctx, "Y@GRAD");
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  ForEachProduct(ctx, [=](int64_t from, int64_t i, int64_t j) {
    if (dx != nullptr) {
      dx[i] += d[from] * y[j];
    }
    if (dy != nullptr) {
      dy[j] += d[from] * x[i];
    }
  });
}

void CheckConvShift(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  EnforceDims(ctx, "Y", {x[0], -1});
  EnforceSameType(ctx, "Y", "X");
  const int64_t size = ctx.InputDim("Y")[1];
  HR_ENFORCE(size < 0 || (size % 2 == 1 && (x[1] < 0 || size <= x[1])), InvalidArgument,
             "input Y: expected rows of an odd number of elements, at most as many as X of dims ", ToString(x),
             " has, got dims ", ToString(ctx.InputDim("Y")));
}

}  // namespace

HEADRACE_REGISTER_OP(conv_shift)
    .Comment("Circular correlation of rows: the sum over j of X[i + j - N / 2] * Y[j], X going round.")
    .Input("X", "[B, M]")
    .Input("Y", "[B, N], N odd and at most M, dtype of X")
    .Output("Out", "dims of X")
    .InferShape([](InferShapeContext& ctx) {
      CheckConvShift(ctx);
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(ConvShiftKernel<float>)
    .Kernel<double>(ConvShiftKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(conv_shift_grad)
    .Comment("Gradient of conv_shift.")
    .Input("X", "as in the operator")
    .Input("Y", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Y@GRAD", "dims of Y", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      CheckConvShift(ctx);
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Y"});
    })
    .Kernel<float>(ConvShiftGradKernel<float>)
    .Kernel<double>(ConvShiftGradKernel<double>);

}  // namespace headrace::ops
