// pool2d, pool3d: the maximum or the average of sliding windows.
#include <algorithm>
#include <string>

#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/convolution/pooling.h"
#include "operators/math/element_loop.h"
#include "operators/math/layout.h"
#include "operators/math/ordered_sum.h"

namespace headrace::ops {
namespace {

template <typename T>
void PoolKernel(const ExecutionContext& ctx, size_t spatial) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const PoolShape s(ctx.attrs(), spatial, x_tensor.dims());
  Tensor memory;
  const T* x = ReadChannelsFirst<T>(x_tensor, s.channels_last, &memory);
  WriteChannelsFirst<T>(ctx.Output("Out"), s.channels_last, [&s, x](T* out) {
    if (!s.max && s.HasOneWindow()) {  // as PoolMap does, which takes longer to find out than to add up a small map
      const auto divisor = static_cast<T>(s.Divisor(s.planes.At(0), s.rows.At(0), s.cols.At(0)));
      const int64_t size = s.MapSize();
      ParallelForEach(s.maps, [=](int64_t i) { out[i] = Sum(size, x + i * size) / divisor; }, size);
      return;
    }
    ParallelForEach(
        s.maps, [=, &s](int64_t i) { PoolMap(s, x + i * s.MapSize(), out + i * s.OutputSizeOfMap()); }, s.MapSize());
  });
}

// Averages do not depend on X and Out, which then are not read.
template <typename T>
void PoolGradKernel(const ExecutionContext& ctx, size_t spatial) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const PoolShape s(ctx.attrs(), spatial, x_tensor.dims());
  const bool moves_all = s.channels_last && s.max;
  Tensor x_memory;
  Tensor out_memory;
  Tensor grad_memory;
  const T* x = ReadChannelsFirst<T>(x_tensor, moves_all, &x_memory);
  const T* out = ReadChannelsFirst<T>(ctx.Input("Out"), moves_all, &out_memory);
  const T* d = ReadChannelsFirst<T>(ctx.Input("Out@GRAD"), s.channels_last, &grad_memory);
  WriteChannelsFirst<T>(ctx.Output("X@GRAD"), s.channels_last, [=, &s](T* dx) {
    const auto add_map = [=, &s](int64_t i) {
      T* map_grad = dx + i * s.MapSize();
      const int64_t out_at = i * s.OutputSizeOfMap();
      std::fill_n(map_grad, s.MapSize(), T(0));
      PoolMapGrad(s, x + i * s.MapSize(), out + out_at, d + out_at, map_grad);
    };
    ParallelForEach(s.maps, add_map, s.MapSize());
  });
}

OpRegistrar&& PoolAttrs(OpRegistrar&& op, size_t spatial) {
  return std::move(op)
      .With(PoolingTypeAttr)
      .With(WindowAttrs, spatial)
      .Attr<bool>(
          "ceil_mode",
          "whether a last window may hang over the border; if it meets padding only, its average is 0, its maximum the "
          "lowest number",
          false)
      .Attr<bool>("exclusive", "whether averages leave the padding out", true)
      .With(LayoutAttr, "data_format", spatial == 2 ? "NCHW" : "NCDHW");
}

void RegisterPool(const std::string& type, size_t spatial) {
  OpRegistrar forward(type);
  OpRegistrar backward(type + "_grad");
  const bool flat = spatial == 2;
  More(forward)
      .Comment("The maximum or the average of each window. Padding never counts as a maximum.")
      .Input("X", LayoutNames(spatial))
      .Output("Out", std::string(flat ? "[N, C, OH, OW]" : "[N, C, OD, OH, OW]") +
                         ", or with C last; OH = (H + 2 padding - ksize) / stride + 1, rounded up in ceil_mode, the "
                         "others likewise")
      .With(PoolAttrs, spatial)
      .InferShape([spatial](InferShapeContext& ctx) {
        SetOutput(ctx, "Out", PoolShape(ctx.attrs(), spatial, ctx.InputDim("X")).dims, ctx.InputType("X"));
        ctx.ShareLoD("X", "Out");
      })
      .Kernel<float>([spatial](const ExecutionContext& ctx) { PoolKernel<float>(ctx, spatial); })
      .Kernel<double>([spatial](const ExecutionContext& ctx) { PoolKernel<double>(ctx, spatial); })
      .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Out"}, .no_gradient = {}}))
      .Register();
  More(backward)
      .Comment("Gradient of " + type + ". Of equally great elements of a window, the first gets the gradient.")
      .Input("X", "as in the operator")
      .Input("Out", "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X")
      .With(PoolAttrs, spatial)
      .InferShape([spatial](InferShapeContext& ctx) {
        const DDim out = PoolShape(ctx.attrs(), spatial, ctx.InputDim("X")).dims;
        for (const HashedName slot : HashedNames{"Out", "Out@GRAD"}) {
          EnforceDims(ctx, slot, out);
          EnforceSameType(ctx, slot, "X");
        }
        InferGradients(ctx, {"X"});
      })
      .Kernel<float>([spatial](const ExecutionContext& ctx) { PoolGradKernel<float>(ctx, spatial); })
      .Kernel<double>([spatial](const ExecutionContext& ctx) { PoolGradKernel<double>(ctx, spatial); })
      .Register();
}

HEADRACE_REGISTER_OPS(pool_ops) {
  RegisterPool("pool2d", 2);
  RegisterPool("pool3d", 3);
}

}  // namespace
}  // namespace headrace::ops
