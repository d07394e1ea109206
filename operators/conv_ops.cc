// conv2d, depthwise_conv2d, conv3d: im2col and matrix products, tile by tile.

#include "framework/op_registry.h"
#include "operators/convolution.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

template <typename T>
void ConvKernel(const ExecutionContext& ctx, size_t dimensions) {
  const ConvShape s(ctx.op(), dimensions, ctx.Input("Input").dims(), ctx.Input("Filter").dims());
  T* out = ctx.Output("Output")->mutable_data<T>();
  Convolve(s, ctx.Input("Input").data<T>(), ctx.Input("Filter").data<T>(), out);
}

template <typename T>
void ConvGradKernel(const ExecutionContext& ctx, size_t dimensions) {
  const ConvShape s(ctx.op(), dimensions, ctx.Input("Input").dims(), ctx.Input("Filter").dims());
  ConvolveBackward(s, ctx.Input("Output@GRAD").data<T>(), ctx.Input("Input").data<T>(), ctx.Input("Filter").data<T>(),
                   MutableOrNull<T>(ctx, "Input@GRAD"), MutableOrNull<T>(ctx, "Filter@GRAD"));
}

DDim InferConv(const InferShapeContext& ctx, size_t dimensions) {
  EnforceSameType(ctx, "Filter", "Input");
  return ConvShape(ctx.op(), dimensions, ctx.InputDim("Input"), ctx.InputDim("Filter")).OutputDims();
}

const ConvKind kConv = {"M, C / groups",
                        "(H + 2 padding - dilation (KH - 1) - 1) / stride + 1",
                        ConvAttrs,
                        InferConv,
                        ConvKernel<float>,
                        ConvKernel<double>,
                        ConvGradKernel<float>,
                        ConvGradKernel<double>};

[[maybe_unused]] const bool kConvOps =
    RegisterConv("conv2d", 2, "Convolution (cross-correlation, as is usual) of images with filters.", kConv) &&
    RegisterConv("depthwise_conv2d", 2, "conv2d; Fluid's name for it where each channel is a group of its own.",
                 kConv) &&
    RegisterConv("conv3d", 3, "Convolution (cross-correlation, as is usual) of volumes with filters.", kConv);

}  // namespace
}  // namespace headrace::ops
