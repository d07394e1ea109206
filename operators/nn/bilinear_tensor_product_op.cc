// bilinear_tensor_product: a bilinear form of two vectors for each slice of a weight.
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"

namespace headrace::ops {
namespace {

// X is [rows, left], Y [rows, right], Weight [slices, left, right].
struct BilinearShape {
  explicit BilinearShape(const ExecutionContext& ctx)
      : rows(ctx.Input("X").dims()[0]),
        slices(ctx.Input("Weight").dims()[0]),
        left(ctx.Input("Weight").dims()[1]),
        right(ctx.Input("Weight").dims()[2]) {}
  int64_t rows;
  int64_t slices;
  int64_t left;
  int64_t right;
};

template <typename T>
void BilinearTensorProductKernel(const ExecutionContext& ctx) {
  const BilinearShape s(ctx);
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const T* weight = ctx.Input("Weight").data<T>();
  const T* bias = ElementsOrNull<T>(ctx, "Bias");
  Tensor memory;
  T* product = Scratch<T>(&memory, s.rows * s.right);
  for (int64_t k = 0; k < s.slices; ++k) {
    Gemm<T>(false, false, s.rows, s.right, s.left, T(1), x, weight + k * s.left * s.right, false, product);
    ParallelFor(s.rows, RowsPerBlock(2 * s.right), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T sum = SumOf<T>(s.right, [=](int64_t j) { return product[r * s.right + j] * y[r * s.right + j]; });
        out[r * s.slices + k] = sum + (bias == nullptr ? T(0) : bias[k]);
      }
    });
  }
}

// to[r, c] = from[r, c] · d[r, k], with `slices` columns of d.
template <typename T>
void ScaleRowsBy(const T* from, int64_t rows, int64_t cols, const T* d, int64_t k, int64_t slices, T* to) {
  ParallelFor(rows, RowsPerBlock(cols), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = r * cols; c < (r + 1) * cols; ++c) {
        to[c] = from[c] * d[r * slices + k];
      }
    }
  });
}

template <typename T>
void BilinearTensorProductGradKernel(const ExecutionContext& ctx) {
  const BilinearShape s(ctx);
  T* dx = ZerosOrNull<T>(ctx, "X@GRAD");
  T* dy = ZerosOrNull<T>(ctx, "Y@GRAD");
  T* dweight = MutableOrNull<T>(ctx, "Weight@GRAD");
  T* dbias = MutableOrNull<T>(ctx, "Bias@GRAD");
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const T* weight = ctx.Input("Weight").data<T>();
  Tensor memory;
  T* scaled = Scratch<T>(&memory, s.rows * std::max(s.left, s.right));
  for (int64_t k = 0; k < s.slices; ++k) {
    const int64_t slice = k * s.left * s.right;
    if (dx != nullptr) {
      ScaleRowsBy(y, s.rows, s.right, d, k, s.slices, scaled);
      Gemm<T>(false, true, s.rows, s.left, s.right, T(1), scaled, weight + slice, true, dx);
    }
    if (dy != nullptr || dweight != nullptr) {
      ScaleRowsBy(x, s.rows, s.left, d, k, s.slices, scaled);
    }
    if (dy != nullptr) {
      Gemm<T>(false, false, s.rows, s.right, s.left, T(1), scaled, weight + slice, true, dy);
    }
    if (dweight != nullptr) {
      Gemm<T>(true, false, s.left, s.right, s.rows, T(1), scaled, y, false, dweight + slice);
    }
    if (dbias != nullptr) {
      dbias[k] = SumOf<T>(s.rows, [=](int64_t r) { return d[r * s.slices + k]; });
    }
  }
}

// Checks the inputs that operator and gradient share; returns the dims of Out.
DDim CheckBilinear(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  EnforceRank(ctx, "Y", 2);
  EnforceRank(ctx, "Weight", 3);
  const DDim x = ctx.InputDim("X");
  const DDim weight = ctx.InputDim("Weight");
  EnforceDims(ctx, "Y", {x[0], -1});
  EnforceDims(ctx, "Weight", {-1, x[1], ctx.InputDim("Y")[1]});
  EnforceSameType(ctx, "Y", "X");
  EnforceSameType(ctx, "Weight", "X");
  if (ctx.HasInput("Bias")) {
    EnforceDims(ctx, "Bias", {1, weight[0]});
    EnforceSameType(ctx, "Bias", "X");
  }
  return {x[0], weight[0]};
}

}  // namespace

HEADRACE_REGISTER_OP(bilinear_tensor_product)
    .Comment("X W Y, row by row, for each slice W of Weight, plus Bias.")
    .Input("X", "[N, left]")
    .Input("Y", "[N, right]")
    .Input("Weight", "[slices, left, right]")
    .Input("Bias", "[1, slices]", kDispensable)
    .Output("Out", "[N, slices], LoD of X")
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Out", CheckBilinear(ctx), ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Kernel<float>(BilinearTensorProductKernel<float>)
    .Kernel<double>(BilinearTensorProductKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Y", "Weight", "Bias"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(bilinear_tensor_product_grad)
    .Comment("Gradient of bilinear_tensor_product.")
    .Input("X", "as in the operator")
    .Input("Y", "as in the operator")
    .Input("Weight", "as in the operator")
    .Input("Bias", "as in the operator; only its dims are used", kDispensable | kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Y@GRAD", "dims of Y", kDispensable)
    .Output("Weight@GRAD", "dims of Weight", kDispensable)
    .Output("Bias@GRAD", "dims of Bias", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", CheckBilinear(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Y", "Weight", "Bias"});
    })
    .Kernel<float>(BilinearTensorProductGradKernel<float>)
    .Kernel<double>(BilinearTensorProductGradKernel<double>);

}  // namespace headrace::ops
