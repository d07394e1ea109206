// mul: the product of tensors flattened to matrices.
#include <cstdint>
#include <string_view>

#include "framework/op_registry.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/gemm.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

size_t NumColDims(const InferShapeContext& ctx, const char* attr, const DDim& dims, HashedName slot) {
  const int32_t num = ctx.Attr<int32_t>(attr);
  HR_ENFORCE(0 < num && static_cast<size_t>(num) < dims.size(), InvalidArgument, "input ", slot, " of dims ",
             ToString(dims), ": attribute ", attr, " must split them in two parts that are not empty, got ", num);
  return static_cast<size_t>(num);
}

// Checks X and Y; returns the dims of the result.
DDim MulDims(const InferShapeContext& ctx) {
  EnforceSameType(ctx, "Y", "X");
  const DDim x = ctx.InputDim("X");
  const DDim y = ctx.InputDim("Y");
  const size_t x_split = NumColDims(ctx, "x_num_col_dims", x, "X");
  const size_t y_split = NumColDims(ctx, "y_num_col_dims", y, "Y");
  const int64_t x_width = Numel(x, x_split, x.size());
  const int64_t y_height = Numel(y, 0, y_split);
  HR_ENFORCE(Fits(x_width, y_height), InvalidArgument, "input Y: expected ", x_width, " rows, as many as X of dims ",
             ToString(x), " has columns with x_num_col_dims ", x_split, ", got dims ", ToString(y),
             " with y_num_col_dims ", y_split, ", that is ", y_height, " rows");
  DDim out(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x_split));
  out.insert(out.end(), y.begin() + static_cast<std::ptrdiff_t>(y_split), y.end());
  return out;
}

void InferMul(InferShapeContext& ctx) {
  SetOutput(ctx, "Out", MulDims(ctx), ctx.InputType("X"));
  ctx.ShareLoD("X", "Out");
}

struct MulShape {
  explicit MulShape(const ExecutionContext& ctx) {
    const DDim& x = ctx.Input("X").dims();
    const DDim& y = ctx.Input("Y").dims();
    const auto x_split = static_cast<size_t>(ctx.Attr<int32_t>("x_num_col_dims"));
    const auto y_split = static_cast<size_t>(ctx.Attr<int32_t>("y_num_col_dims"));
    m = Numel(x, 0, x_split);
    k = Numel(x, x_split, x.size());
    n = Numel(y, y_split, y.size());
  }
  int64_t m;
  int64_t n;
  int64_t k;
};

template <typename T>
void MulKernel(const ExecutionContext& ctx) {
  const MulShape s(ctx);
  T* out = ctx.Output("Out")->mutable_data<T>();
  Gemm<T>(false, false, s.m, s.n, s.k, T(1), ctx.Input("X").data<T>(), ctx.Input("Y").data<T>(), false, out);
}

template <typename T>
void MulGradKernel(const ExecutionContext& ctx) {
  const MulShape s(ctx);
  const T* out_grad = ctx.Input("Out@GRAD").data<T>();
  if (LoDTensor* x_grad = ctx.OutputOrNull("X@GRAD")) {
    Gemm<T>(false, true, s.m, s.k, s.n, T(1), out_grad, ctx.Input("Y").data<T>(), false, x_grad->mutable_data<T>());
  }
  if (LoDTensor* y_grad = ctx.OutputOrNull("Y@GRAD")) {
    Gemm<T>(true, false, s.k, s.n, s.m, T(1), ctx.Input("X").data<T>(), out_grad, false, y_grad->mutable_data<T>());
  }
}

void InferMulGrad(InferShapeContext& ctx) {
  EnforceDims(ctx, "Out@GRAD", MulDims(ctx));
  EnforceSameType(ctx, "Out@GRAD", "X");
  InferGradients(ctx, {"X", "Y"});
}

OpRegistrar&& MulAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("x_num_col_dims", "how many leading dimensions of X make the rows of its matrix", 1)
      .Attr<int32_t>("y_num_col_dims", "how many leading dimensions of Y make the rows of its matrix", 1);
}

}  // namespace

HEADRACE_REGISTER_OP(mul)
    .Comment("The product of two matrices, to which X and Y are flattened.")
    .Input("X", "rank 2 or more; seen as [product of the first x_num_col_dims dims, product of the others]")
    .Input("Y", "rank 2 or more; seen as [product of the first y_num_col_dims dims, product of the others]")
    .Output("Out", "the first x_num_col_dims dims of X, then the dims of Y after the first y_num_col_dims")
    .With(MulAttrs)
    .InferShape(InferMul)
    .Kernel<float>(MulKernel<float>)
    .Kernel<double>(MulKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(mul_grad)
    .Comment("Gradient of mul.")
    .Input("X", "as in mul")
    .Input("Y", "as in mul")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Y@GRAD", "dims of Y", kDispensable)
    .With(MulAttrs)
    .InferShape(InferMulGrad)
    .Kernel<float>(MulGradKernel<float>)
    .Kernel<double>(MulGradKernel<double>)
    .Gradient(GradientOfBilinear("mul"));

}  // namespace headrace::ops
