// affine_channel: each channel scaled and shifted.
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/tensor_size.h"
#include "operators/normalization/norm.h"

namespace headrace::ops {
namespace {

// Fluid's default, "AnyLayout", is channels last here.
bool AffineChannelsFirst(const AttributeIndex& op) { return op.Attr<std::string>("data_layout") == "NCHW"; }

AxisSize AffineChannels(const ExecutionContext& ctx, const DDim& x) {
  return {x, AffineChannelsFirst(ctx.attrs()) ? 1 : x.size() - 1};
}

template <typename T>
void AffineChannelKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const AxisSize s = AffineChannels(ctx, x_tensor.dims());
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* scale = ctx.Input("Scale").data<T>();
  const T* bias = ctx.Input("Bias").data<T>();
  ParallelFor(s.outer, RowsPerBlock(s.extent * s.inner), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin * s.extent; r < end * s.extent; ++r) {
      const int64_t c = r % s.extent;
      for (int64_t i = r * s.inner; i < (r + 1) * s.inner; ++i) {
        out[i] = x[i] * scale[c] + bias[c];
      }
    }
  });
}

template <typename T>
void AffineChannelGradKernel(const ExecutionContext& ctx) {
  const AxisSize s = AffineChannels(ctx, ctx.Input("X").dims());
  const T* x = ctx.Input("X").data<T>();
  const T* scale = ctx.Input("Scale").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  if (T* dx = MutableOrNull<T>(ctx, "X@GRAD")) {
    ParallelFor(s.outer, RowsPerBlock(s.extent * s.inner), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin * s.extent; r < end * s.extent; ++r) {
        for (int64_t i = r * s.inner; i < (r + 1) * s.inner; ++i) {
          dx[i] = d[i] * scale[r % s.extent];
        }
      }
    });
  }
  T* dscale = ZerosOrNull<T>(ctx, "Scale@GRAD");
  T* dbias = ZerosOrNull<T>(ctx, "Bias@GRAD");
  ParallelFor(s.outer == 0 ? 0 : s.extent, RowsPerBlock(2 * s.outer * s.inner), [=](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const auto at = [=](int64_t i) { return (i / s.inner * s.extent + c) * s.inner + i % s.inner; };
      if (dscale != nullptr) {
        dscale[c] = SumOf<T>(s.outer * s.inner, [=](int64_t i) { return d[at(i)] * x[at(i)]; });
      }
      if (dbias != nullptr) {
        dbias[c] = SumOf<T>(s.outer * s.inner, [=](int64_t i) { return d[at(i)]; });
      }
    }
  });
}

void CheckAffineChannel(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  CheckScaleAndBias(ctx, AffineChannelsFirst(ctx.attrs()) ? x[1] : x.back());
}

OpRegistrar&& AffineChannelAttrs(OpRegistrar&& op) {
  return std::move(op).Attr<std::string>(
      "data_layout", "'NCHW': channels first; 'NHWC' or 'AnyLayout': last", "AnyLayout", [](const std::string& layout) {
        HR_ENFORCE(layout == "NCHW" || layout == "NHWC" || layout == "AnyLayout", InvalidArgument,
                   "attribute data_layout: expected 'NCHW', 'NHWC' or 'AnyLayout', got '", layout, "'");
      });
}

}  // namespace

HEADRACE_REGISTER_OP(affine_channel)
    .Comment("Scale * X + Bias, channel by channel.")
    .Input("X", "[N, C, ...] or [N, ..., C]")
    .Input("Scale", "[C]")
    .Input("Bias", "[C]")
    .Output("Out", "dims and LoD of X")
    .InPlace("Out", "X")
    .With(AffineChannelAttrs)
    .InferShape([](InferShapeContext& ctx) {
      CheckAffineChannel(ctx);
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(AffineChannelKernel<float>)
    .Kernel<double>(AffineChannelKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Scale", "Bias"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(affine_channel_grad)
    .Comment("Gradient of affine_channel.")
    .Input("X", "as in the operator")
    .Input("Scale", "as in the operator")
    .Input("Bias", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Scale@GRAD", "dims of Scale", kDispensable)
    .Output("Bias@GRAD", "dims of Bias", kDispensable)
    .With(AffineChannelAttrs)
    .InferShape([](InferShapeContext& ctx) {
      CheckAffineChannel(ctx);
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Scale", "Bias"});
    })
    .Kernel<float>(AffineChannelGradKernel<float>)
    .Kernel<double>(AffineChannelGradKernel<double>);

}  // namespace headrace::ops
