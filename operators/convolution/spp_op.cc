// spp: spatial pyramid pooling, images of any size as vectors of one size (K. He, X. Zhang, S. Ren and J. Sun, Spatial
// pyramid pooling in deep convolutional networks for visual recognition, 2014).
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/convolution/pooling.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// `bins` windows over `inputs`, as Fluid places them: of one size, with the same border on both sides, a little more
// than is needed if it cannot be the same.
PoolAxis AxisOfLevel(int64_t inputs, int64_t bins) {
  const int64_t size = (inputs + bins - 1) / bins;
  return {{size, size, (size * bins - inputs + 1) / 2}, inputs, bins};
}

// Calls visit(shape of the level, its first element in a row of Out) for each level of the pyramid.
template <typename Visit>
void ForEachLevel(const ExecutionContext& ctx, const DDim& x, Visit&& visit) {
  int64_t begin = 0;
  for (int32_t level = 0; level < ctx.Attr<int32_t>("pyramid_height"); ++level) {
    const int64_t bins = int64_t{1} << level;
    PoolShape s;
    s.max = ctx.Text("pooling_type") == "max";
    s.rows = AxisOfLevel(x[2], bins);
    s.cols = AxisOfLevel(x[3], bins);
    visit(s, begin);
    begin += x[1] * bins * bins;
  }
}

template <typename T>
void SppKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& dims = x_tensor.dims();
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const int64_t width = out_tensor->dims()[1];
  const int64_t maps = dims[0] * dims[1];
  ForEachLevel(ctx, dims, [=, channels = dims[1]](const PoolShape& s, int64_t begin) {
    const auto pool_map = [=, &s](int64_t i) {
      const int64_t to = i / channels * width + begin + i % channels * s.OutputSizeOfMap();
      PoolMap(s, x + i * s.MapSize(), out + to);
    };
    ParallelForEach(maps, pool_map, 4 * s.MapSize());
  });
}

template <typename T>
void SppGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& dims = x_tensor.dims();
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  ParallelFill(dx, x_tensor.numel(), T(0));
  const LoDTensor& out_tensor = ctx.Input("Out");
  const T* out = out_tensor.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const T* x = x_tensor.data<T>();
  const int64_t width = out_tensor.dims()[1];
  const int64_t maps = dims[0] * dims[1];
  ForEachLevel(ctx, dims, [=, channels = dims[1]](const PoolShape& s, int64_t begin) {
    const auto spread_map = [=, &s](int64_t i) {
      const int64_t from = i / channels * width + begin + i % channels * s.OutputSizeOfMap();
      PoolMapGrad(s, x + i * s.MapSize(), out + from, d + from, dx + i * s.MapSize());
    };
    ParallelForEach(maps, spread_map, 4 * s.MapSize());
  });
}

// The dims of Out: each level has four times the windows of the one above.
DDim InferSpp(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const Extents in = ExtentsOf(x, 2, "X");
  HR_ENFORCE(in.height != 0 && in.width != 0, InvalidArgument, "input X: expected images that are not empty, got dims ",
             ToString(x));
  const int32_t height = ctx.Attr<int32_t>("pyramid_height");
  HR_ENFORCE(1 <= height && height <= 15, InvalidArgument,
             "attribute pyramid_height: expected a number in [1, 15], got ", height);
  const int64_t windows = ((int64_t{1} << (2 * height)) - 1) / 3;
  return {x[0], x[1] < 0 ? -1 : MultiplyExtents(x[1], windows)};
}

OpRegistrar&& SppAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("pyramid_height", "number of levels, in [1, 15]; level l has 2^l x 2^l windows")
      .With(PoolingTypeAttr);
}

}  // namespace

HEADRACE_REGISTER_OP(spp)
    .Comment(
        "The maxima or averages of 1 x 1, 2 x 2, 4 x 4, ... windows over each map, whatever its size, side by side.")
    .Input("X", "[N, C, H, W]")
    .Output("Out", "[N, C (4^pyramid_height - 1) / 3]: level by level, map by map")
    .With(SppAttrs)
    .InferShape([](InferShapeContext& ctx) { SetOutput(ctx, "Out", InferSpp(ctx), ctx.InputType("X")); })
    .Kernel<float>(SppKernel<float>)
    .Kernel<double>(SppKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Out"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(spp_grad)
    .Comment("Gradient of spp. Of equally great elements of a window, the first gets the gradient.")
    .Input("X", "as in the operator")
    .Input("Out", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(SppAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim out = InferSpp(ctx);
      for (const HashedName slot : HashedNames{"Out", "Out@GRAD"}) {
        EnforceDims(ctx, slot, out);
        EnforceSameType(ctx, slot, "X");
      }
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(SppGradKernel<float>)
    .Kernel<double>(SppGradKernel<double>);

}  // namespace headrace::ops
