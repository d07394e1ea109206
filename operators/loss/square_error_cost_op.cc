// square_error_cost: the squares of the differences.
#include <cstdint>

#include "framework/eigen.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

template <typename T>
void SquareErrorKernel(const ExecutionContext& ctx) {
  auto out = MutableEigenArray<T>(ctx.Output("Out"));
  const auto x = EigenArray<T>(ctx.Input("X"));
  const auto y = EigenArray<T>(ctx.Input("Y"));
  ParallelFor(out.size(), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    out.segment(begin, n) = (x.segment(begin, n) - y.segment(begin, n)).square();
  });
}

template <typename T>
void SquareErrorGradKernel(const ExecutionContext& ctx) {
  const auto x = EigenArray<T>(ctx.Input("X"));
  const auto y = EigenArray<T>(ctx.Input("Y"));
  const auto d = EigenArray<T>(ctx.Input("Out@GRAD"));
  const auto write = [&](HashedName slot, T factor) {
    if (LoDTensor* grad = ctx.OutputOrNull(slot)) {
      auto to = MutableEigenArray<T>(grad);
      ParallelFor(to.size(), kElementsPerBlock, [&](int64_t begin, int64_t end) {
        const int64_t n = end - begin;
        to.segment(begin, n) = factor * (x.segment(begin, n) - y.segment(begin, n)) * d.segment(begin, n);
      });
    }
  };
  write("X@GRAD", T(2));
  write("Y@GRAD", T(-2));
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
