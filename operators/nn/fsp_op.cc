// fsp: how the channels of two feature maps go together, for distillation (J. Yim et al., A gift from knowledge
// distillation, 2017).
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/gemm.h"

namespace headrace::ops {
namespace {

struct FspSizes {
  explicit FspSizes(const ExecutionContext& ctx)
      : images(ctx.Input("X").dims()[0]),
        x_channels(ctx.Input("X").dims()[1]),
        y_channels(ctx.Input("Y").dims()[1]),
        pixels(ctx.Input("X").dims()[2] * ctx.Input("X").dims()[3]),
        x_size(x_channels * pixels),
        y_size(y_channels * pixels),
        out_size(x_channels * y_channels) {}

  // Calls visit(image) for each image, on several threads. A large product is shared by itself.
  template <typename Visit>
  void ForEachImage(const Visit& visit) const {
    ParallelFor(images, ProductsPerTask(out_size * pixels), [&visit](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        visit(i);
      }
    });
  }

  int64_t images;
  int64_t x_channels;
  int64_t y_channels;
  int64_t pixels;
  int64_t x_size;  // of an image
  int64_t y_size;
  int64_t out_size;
};

template <typename T>
void FspKernel(const ExecutionContext& ctx) {
  const FspSizes n(ctx);
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T share = T(1) / static_cast<T>(n.pixels);
  n.ForEachImage([=, &n](int64_t i) {
    Gemm<T>(false, true, n.x_channels, n.y_channels, n.pixels, share, x + i * n.x_size, y + i * n.y_size, false,
            out + i * n.out_size);
  });
}

template <typename T>
void FspGradKernel(const ExecutionContext& ctx) {
  const FspSizes n(ctx);
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  T* dx = MutableOrNull<T>(ctx, "X@GRAD");
  T* dy = MutableOrNull<T>(ctx, "Y@GRAD");
  const T share = T(1) / static_cast<T>(n.pixels);
  n.ForEachImage([=, &n](int64_t i) {
    const T* d_i = d + i * n.out_size;
    if (dx != nullptr) {
      Gemm<T>(false, false, n.x_channels, n.pixels, n.y_channels, share, d_i, y + i * n.y_size, false,
              dx + i * n.x_size);
    }
    if (dy != nullptr) {
      Gemm<T>(true, false, n.y_channels, n.pixels, n.x_channels, share, d_i, x + i * n.x_size, false,
              dy + i * n.y_size);
    }
  });
}

DDim CheckFsp(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 4);
  EnforceRank(ctx, "Y", 4);
  const DDim x = ctx.InputDim("X");
  const DDim y = ctx.InputDim("Y");
  HR_ENFORCE(x[2] != 0 && x[3] != 0, InvalidArgument, "input X: expected maps of a pixel or more, got dims ",
             ToString(x));
  EnforceDims(ctx, "Y", {x[0], -1, x[2], x[3]});
  EnforceSameType(ctx, "Y", "X");
  return {x[0], x[1], y[1]};
}

}  // namespace

HEADRACE_REGISTER_OP(fsp)
    .Comment("The mean over all pixels of the products of each channel of X and each of Y.")
    .Input("X", "[N, C, H, W]")
    .Input("Y", "[N, D, H, W], dtype of X")
    .Output("Out", "[N, C, D]")
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Out", CheckFsp(ctx), ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Kernel<float>(FspKernel<float>)
    .Kernel<double>(FspKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(fsp_grad)
    .Comment("Gradient of fsp.")
    .Input("X", "as in the operator")
    .Input("Y", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Y@GRAD", "dims of Y", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", CheckFsp(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Y"});
    })
    .Kernel<float>(FspGradKernel<float>)
    .Kernel<double>(FspGradKernel<double>)
    .Gradient(GradientOfBilinear("fsp"));

}  // namespace headrace::ops
