// conv2d, depthwise_conv2d, conv3d. convolution.cc has their arithmetic: im2col and matrix products, tile by tile; by
// depthwise.h where that is faster.

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/convolution/convolution.h"
#include "operators/math/layout.h"

namespace headrace::ops {
namespace {

template <typename T>
void ConvKernel(const ExecutionContext& ctx, size_t dimensions) {
  const ConvShape s(ctx.attrs(), dimensions, ctx.Input("Input").dims(), ctx.Input("Filter").dims());
  Tensor memory;
  const T* input = ReadChannelsFirst<T>(ctx.Input("Input"), s.channels_last, &memory);
  const T* filter = ctx.Input("Filter").data<T>();
  WriteChannelsFirst<T>(ctx.Output("Output"), s.channels_last, [&](T* out) { Convolve(s, input, filter, out); });
}

template <typename T>
void ConvGradKernel(const ExecutionContext& ctx, size_t dimensions) {
  const ConvShape s(ctx.attrs(), dimensions, ctx.Input("Input").dims(), ctx.Input("Filter").dims());
  T* filter_grad = MutableOrNull<T>(ctx, "Filter@GRAD");
  Tensor grad_memory;
  Tensor memory;
  const T* out_grad = ReadChannelsFirst<T>(ctx.Input("Output@GRAD"), s.channels_last, &grad_memory);
  const T* input =
      filter_grad == nullptr ? nullptr : ReadChannelsFirst<T>(ctx.Input("Input"), s.channels_last, &memory);
  const T* filter = ctx.Input("Filter").data<T>();
  WriteChannelsFirst<T>(ctx.OutputOrNull("Input@GRAD"), s.channels_last,
                        [&](T* input_grad) { ConvolveBackward(s, out_grad, input, filter, input_grad, filter_grad); });
}

DDim InferConv(const InferShapeContext& ctx, size_t dimensions) {
  EnforceSameType(ctx, "Filter", "Input");
  return ConvShape(ctx.attrs(), dimensions, ctx.InputDim("Input"), ctx.InputDim("Filter")).OutputDims();
}

const ConvKind kConv = {"M, C / groups",
                        "(H + 2 padding - dilation (KH - 1) - 1) / stride + 1",
                        ConvAttrs,
                        InferConv,
                        ConvKernel<float>,
                        ConvKernel<double>,
                        ConvGradKernel<float>,
                        ConvGradKernel<double>};

HEADRACE_REGISTER_OPS(conv_ops) {
  RegisterConv("conv2d", 2, "Convolution (cross-correlation, as is usual) of images with filters.", kConv);
  RegisterConv("depthwise_conv2d", 2, "conv2d; Fluid's name for it where each channel is a group of its own.", kConv);
  RegisterConv("conv3d", 3, "Convolution (cross-correlation, as is usual) of volumes with filters.", kConv);
}

}  // namespace
}  // namespace headrace::ops
