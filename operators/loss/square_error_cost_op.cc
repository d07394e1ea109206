// square_error_cost: the squares of the differences.
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_util.h"

namespace headrace::ops {
namespace {

template <typename T>
void SquareErrorKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  ParallelFor(out_tensor->numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T difference = x[i] - y[i];
      out[i] = difference * difference;
    }
  });
}

template <typename T>
void SquareErrorGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const auto write = [&](HashedName slot, T sign) {
    if (LoDTensor* grad = ctx.OutputOrNull(slot)) {
      T* to = grad->mutable_data<T>();
      ParallelFor(x_tensor.numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          to[i] = sign * 2 * (x[i] - y[i]) * d[i];
        }
      });
    }
  };
  write("X@GRAD", T(1));
  write("Y@GRAD", T(-1));
}

}  // namespace

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
      for (const HashedName slot : HashedNames{"Y", "Out@GRAD"}) {
        EnforceDims(ctx, slot, ctx.InputDim("X"));
        EnforceSameType(ctx, slot, "X");
      }
      InferGradients(ctx, {"X", "Y"});
    })
    .Kernel<float>(SquareErrorGradKernel<float>)
    .Kernel<double>(SquareErrorGradKernel<double>);

}  // namespace headrace::ops
