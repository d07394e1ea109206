// cos_sim: the cosine of the angle between rows.
#include <cmath>
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

// Rows of `width` elements; Y has as many as X, or one for all of them.
struct RowPairs {
  RowPairs(const DDim& x, const DDim& y) : rows(x[0]), width(Numel(x, 1, x.size())), step(y[0] == 1 ? 0 : 1) {}
  int64_t rows;
  int64_t width;
  int64_t step;  // from one row of Y to the next
};

template <typename T>
T Norm(int64_t n, const T* x) {
  return std::sqrt(SumOf<T>(n, [x](int64_t i) { return x[i] * x[i]; }));
}

template <typename T>
void CosSimKernel(const ExecutionContext& ctx) {
  const RowPairs s(ctx.Input("X").dims(), ctx.Input("Y").dims());
  LoDTensor* y_norm_tensor = ctx.Output("YNorm");
  T* out = ctx.Output("Out")->mutable_data<T>();
  T* x_norm = ctx.Output("XNorm")->mutable_data<T>();
  T* y_norm = y_norm_tensor->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const int64_t grain = RowsPerBlock(4 * s.width);
  ParallelFor(y_norm_tensor->numel(), grain, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      y_norm[r] = Norm(s.width, y + r * s.width);
    }
  });
  ParallelFor(s.rows, grain, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x_row = x + r * s.width;
      const T* y_row = y + r * s.step * s.width;
      x_norm[r] = Norm(s.width, x_row);
      out[r] = SumOf<T>(s.width, [=](int64_t i) { return x_row[i] * y_row[i]; }) / (x_norm[r] * y_norm[r * s.step]);
    }
  });
}

// d(out) / dx = y / (|x| |y|) − out · x / |x|², and likewise by y.
template <typename T>
void CosSimGradKernel(const ExecutionContext& ctx) {
  const RowPairs s(ctx.Input("X").dims(), ctx.Input("Y").dims());
  T* dx = MutableOrNull<T>(ctx, "X@GRAD");
  T* dy = ZerosOrNull<T>(ctx, "Y@GRAD");
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const T* x_norm = ctx.Input("XNorm").data<T>();
  const T* y_norm = ctx.Input("YNorm").data<T>();
  const T* out = ctx.Input("Out").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  for (int64_t r = 0; r < s.rows; ++r) {
    const int64_t x_at = r * s.width;
    const int64_t y_at = r * s.step * s.width;
    const T xn = x_norm[r];
    const T yn = y_norm[r * s.step];
    for (int64_t i = 0; i < s.width; ++i) {
      if (dx != nullptr) {
        dx[x_at + i] = d[r] * (y[y_at + i] / (xn * yn) - out[r] * x[x_at + i] / (xn * xn));
      }
      if (dy != nullptr) {
        dy[y_at + i] += d[r] * (x[x_at + i] / (xn * yn) - out[r] * y[y_at + i] / (yn * yn));
      }
    }
  }
}

// Checks the inputs that operator and gradient share.
void CheckCosSim(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  DDim x = ctx.InputDim("X");
  const DDim y = ctx.InputDim("Y");
  if (!y.empty() && y[0] == 1) {
    x[0] = 1;
  }
  EnforceDims(ctx, "Y", x);
  EnforceSameType(ctx, "Y", "X");
}

}  // namespace

HEADRACE_REGISTER_OP(cos_sim)
    .Comment("X · Y / (|X| |Y|), row by row.")
    .Input("X", "[rows, ...], rank 2 or more")
    .Input("Y", "dims and dtype of X, or [1, ...]: one row for all")
    .Output("Out", "[rows, 1]; LoD of X")
    .Output("XNorm", "[rows, 1]: |X|")
    .Output("YNorm", "[rows of Y, 1]: |Y|")
    .InferShape([](InferShapeContext& ctx) {
      CheckCosSim(ctx);
      SetOutput(ctx, "Out", {ctx.InputDim("X")[0], 1}, ctx.InputType("X"));
      SetOutput(ctx, "XNorm", {ctx.InputDim("X")[0], 1}, ctx.InputType("X"));
      SetOutput(ctx, "YNorm", {ctx.InputDim("Y")[0], 1}, ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Kernel<float>(CosSimKernel<float>)
    .Kernel<double>(CosSimKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {"Out", "XNorm", "YNorm"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(cos_sim_grad)
    .Comment("Gradient of cos_sim.")
    .Input("X", "as in the operator")
    .Input("Y", "as in the operator")
    .Input("Out", "as in the operator")
    .Input("XNorm", "as in the operator")
    .Input("YNorm", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("XNorm@GRAD", "not used", kDispensable)
    .Input("YNorm@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Y@GRAD", "dims of Y", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      CheckCosSim(ctx);
      const int64_t rows = ctx.InputDim("X")[0];
      for (const HashedName slot : HashedNames{"Out", "XNorm", "Out@GRAD"}) {
        EnforceDims(ctx, slot, {rows, 1});
        EnforceSameType(ctx, slot, "X");
      }
      EnforceDims(ctx, "YNorm", {ctx.InputDim("Y")[0], 1});
      EnforceSameType(ctx, "YNorm", "X");
      InferGradients(ctx, {"X", "Y"});
    })
    .Kernel<float>(CosSimGradKernel<float>)
    .Kernel<double>(CosSimGradKernel<double>);

}  // namespace headrace::ops
