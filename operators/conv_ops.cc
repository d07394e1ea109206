// conv2d, depthwise_conv2d, conv3d: im2col and matrix products, tile by tile.
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "operators/convolution.h"
#include "operators/declare.h"
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

bool RegisterConv(const std::string& type, size_t dimensions, const std::string& comment) {
  OpRegistrar forward(type);
  OpRegistrar backward(type + "_grad");
  const bool flat = dimensions == 2;
  More(forward)
      .Comment(comment)
      .Input("Input", flat ? "[N, C, H, W]" : "[N, C, D, H, W]")
      .Input("Filter",
             std::string(flat ? "[M, C / groups, KH, KW]" : "[M, C / groups, KD, KH, KW]") + ", dtype of Input")
      .Output("Output", std::string(flat ? "[N, M, OH, OW]" : "[N, M, OD, OH, OW]") +
                            ", OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1, the others likewise")
      .With(ConvAttrs, dimensions)
      .InferShape([dimensions](InferShapeContext& ctx) {
        SetOutput(ctx, "Output", InferConv(ctx, dimensions), ctx.InputType("Input"));
        ctx.ShareLoD("Input", "Output");
      })
      .Kernel<float>([dimensions](const ExecutionContext& ctx) { ConvKernel<float>(ctx, dimensions); })
      .Kernel<double>([dimensions](const ExecutionContext& ctx) { ConvKernel<double>(ctx, dimensions); })
      .Gradient(DefaultGradient({.inputs = {"Input", "Filter"}, .outputs = {}, .no_gradient = {}}))
      .Register();
  More(backward)
      .Comment("Gradient of " + type + ".")
      .Input("Input", "as in the operator")
      .Input("Filter", "as in the operator")
      .Input("Output@GRAD", "gradient of Output")
      .Output("Input@GRAD", "dims of Input", kDispensable)
      .Output("Filter@GRAD", "dims of Filter", kDispensable)
      .With(ConvAttrs, dimensions)
      .InferShape([dimensions](InferShapeContext& ctx) {
        EnforceDims(ctx, "Output@GRAD", InferConv(ctx, dimensions));
        EnforceSameType(ctx, "Output@GRAD", "Input");
        InferGradients(ctx, {"Input", "Filter"});
      })
      .Kernel<float>([dimensions](const ExecutionContext& ctx) { ConvGradKernel<float>(ctx, dimensions); })
      .Kernel<double>([dimensions](const ExecutionContext& ctx) { ConvGradKernel<double>(ctx, dimensions); })
      .Register();
  return true;
}

[[maybe_unused]] const bool kConvOps =
    RegisterConv("conv2d", 2, "Convolution (cross-correlation, as is usual) of images with filters.") &&
    RegisterConv("depthwise_conv2d", 2, "conv2d; Fluid's name for it where each channel is a group of its own.") &&
    RegisterConv("conv3d", 3, "Convolution (cross-correlation, as is usual) of volumes with filters.");

}  // namespace
}  // namespace headrace::ops
