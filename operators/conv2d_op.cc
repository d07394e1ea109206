// conv2d: im2col and matrix products, tile by tile.
#include <vector>

#include "framework/op_registry.h"
#include "operators/convolution.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

template <typename T>
void ConvKernel(const ExecutionContext& ctx) {
  const ConvShape s(ctx.op(), ctx.Input("Input").dims(), ctx.Input("Filter").dims());
  T* out = ctx.Output("Output")->mutable_data<T>();
  Convolve(s, ctx.Input("Input").data<T>(), ctx.Input("Filter").data<T>(), out);
}

template <typename T>
void ConvGradKernel(const ExecutionContext& ctx) {
  const ConvShape s(ctx.op(), ctx.Input("Input").dims(), ctx.Input("Filter").dims());
  ConvolveBackward(s, ctx.Input("Output@GRAD").data<T>(), ctx.Input("Input").data<T>(), ctx.Input("Filter").data<T>(),
                   MutableOrNull<T>(ctx, "Input@GRAD"), MutableOrNull<T>(ctx, "Filter@GRAD"));
}

DDim InferConv(const InferShapeContext& ctx) {
  EnforceSameType(ctx, "Filter", "Input");
  return ConvShape(ctx.op(), ctx.InputDim("Input"), ctx.InputDim("Filter")).OutputDims();
}

}  // namespace

HEADRACE_REGISTER_OP(conv2d)
    .Comment("Convolution (cross-correlation, as is usual) of images with filters.")
    .Input("Input", "[N, C, H, W]")
    .Input("Filter", "[M, C / groups, KH, KW], dtype of Input")
    .Output("Output", "[N, M, OH, OW], OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1, OW likewise")
    .With(ConvAttrs)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Output", InferConv(ctx), ctx.InputType("Input"));
      ctx.ShareLoD("Input", "Output");
    })
    .Kernel<float>(ConvKernel<float>)
    .Kernel<double>(ConvKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Input", "Filter"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(conv2d_grad)
    .Comment("Gradient of conv2d.")
    .Input("Input", "as in the operator")
    .Input("Filter", "as in the operator")
    .Input("Output@GRAD", "gradient of Output")
    .Output("Input@GRAD", "dims of Input", kDispensable)
    .Output("Filter@GRAD", "dims of Filter", kDispensable)
    .With(ConvAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Output@GRAD", InferConv(ctx));
      EnforceSameType(ctx, "Output@GRAD", "Input");
      InferGradients(ctx, {"Input", "Filter"});
    })
    .Kernel<float>(ConvGradKernel<float>)
    .Kernel<double>(ConvGradKernel<double>);

}  // namespace headrace::ops
