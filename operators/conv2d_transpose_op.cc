// conv2d_transpose: from the result of a convolution to what might have been its input.
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "operators/convolution.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

// The extent of the result along one dimension, -1 if unknown: the least whose convolution has extent `inputs`, or
// `wanted` (0: none), which must be less than a stride greater to have the same convolution.
int64_t TransposedSize(const Window& window, int64_t inputs, int64_t wanted, const char* dimension) {
  if (inputs < 0) {
    return wanted > 0 ? wanted : -1;
  }
  HR_ENFORCE(inputs > 0, InvalidArgument, "input Input: expected images that are not empty, its ", dimension, " is 0");
  const int64_t extent = AddExtents(MultiplyExtents(window.dilation, window.size - 1), 1);
  const int64_t least = AddExtents(MultiplyExtents(inputs - 1, window.stride), extent) - 2 * window.padding;
  HR_ENFORCE(least > 0, InvalidArgument, "attribute paddings: nothing of the ", dimension, " ", inputs,
             " is left between them");
  HR_ENFORCE(wanted == 0 || (least <= wanted && wanted < least + window.stride), InvalidArgument,
             "attribute output_size: expected a ", dimension, " in [", least, ", ", least + window.stride, "), got ",
             wanted);
  return wanted == 0 ? least : wanted;
}

// The convolution that is transposed: its input is the result, and its result the input.
ConvShape TransposedShape(const OpDesc& op, const DDim& input, const DDim& filter) {
  HR_ENFORCE(input.size() == 4, InvalidArgument, "input Input: expected dims [N, C, H, W], got ", ToString(input));
  HR_ENFORCE(filter.size() == 4 && Fits(filter[0], input[1]), InvalidArgument, "input Filter: expected dims [",
             input[1], ", M / groups, KH, KW], as Input has dims ", ToString(input), ", got ", ToString(filter));
  for (const int64_t dim : filter) {
    HR_ENFORCE(dim > 0, InvalidArgument, "input Filter: expected dims of 1 or more, got ", ToString(filter));
  }
  const auto& size = op.Attr<std::vector<int32_t>>("output_size");
  HR_ENFORCE(size.empty() || (size.size() == 2 && size[0] > 0 && size[1] > 0), InvalidArgument,
             "attribute output_size: expected two numbers of 1 or more (height, width) or none, got ",
             ToString(Attribute(size)));
  const Pair strides = PairAttr(op, "strides", 1);
  const Pair paddings = PairAttr(op, "paddings", 0);
  const Pair dilations = PairAttr(op, "dilations", 1);
  const Window rows{filter[2], strides.height, paddings.height, dilations.height};
  const Window cols{filter[3], strides.width, paddings.width, dilations.width};
  const int32_t groups = op.Attr<int32_t>("groups");
  HR_ENFORCE(groups > 0, InvalidArgument, "attribute groups: expected 1 or more, got ", groups);
  const DDim out = {input[0], MultiplyExtents(filter[1], groups),
                    TransposedSize(rows, input[2], size.empty() ? 0 : size[0], "height"),
                    TransposedSize(cols, input[3], size.empty() ? 0 : size[1], "width")};
  return {op, out, filter};
}

DDim TransposedDims(const ConvShape& s) { return {s.images, s.channels * s.groups, s.height, s.width}; }

ConvShape ShapeOf(const ExecutionContext& ctx) {
  return TransposedShape(ctx.op(), ctx.Input("Input").dims(), ctx.Input("Filter").dims());
}

template <typename T>
void TransposeKernel(const ExecutionContext& ctx) {
  T* out = ctx.Output("Output")->mutable_data<T>();
  ConvolveBackward<T>(ShapeOf(ctx), ctx.Input("Input").data<T>(), nullptr, ctx.Input("Filter").data<T>(), out, nullptr);
}

template <typename T>
void TransposeGradKernel(const ExecutionContext& ctx) {
  const ConvShape s = ShapeOf(ctx);
  const T* out_grad = ctx.Input("Output@GRAD").data<T>();
  const T* filter = ctx.Input("Filter").data<T>();
  if (T* input_grad = MutableOrNull<T>(ctx, "Input@GRAD")) {
    Convolve(s, out_grad, filter, input_grad);
  }
  if (T* filter_grad = MutableOrNull<T>(ctx, "Filter@GRAD")) {
    ConvolveBackward<T>(s, ctx.Input("Input").data<T>(), out_grad, filter, nullptr, filter_grad);
  }
}

DDim InferTranspose(const InferShapeContext& ctx) {
  EnforceSameType(ctx, "Filter", "Input");
  return TransposedDims(TransposedShape(ctx.op(), ctx.InputDim("Input"), ctx.InputDim("Filter")));
}

OpRegistrar&& TransposeAttrs(OpRegistrar&& op) {
  return ConvAttrs(std::move(op))
      .Attr<std::vector<int32_t>>("output_size", "height and width of the result; empty: the least possible", {});
}

}  // namespace

HEADRACE_REGISTER_OP(conv2d_transpose)
    .Comment("Transposed convolution: the gradient of a convolution by its input, whose result is Input.")
    .Input("Input", "[N, C, H, W]")
    .Input("Filter", "[C, M / groups, KH, KW], dtype of Input")
    .Output("Output",
            "[N, M, OH, OW], OH = (H - 1) stride - 2 padding + dilation (KH - 1) + 1 or output_size, OW likewise")
    .With(TransposeAttrs)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Output", InferTranspose(ctx), ctx.InputType("Input"));
      ctx.ShareLoD("Input", "Output");
    })
    .Kernel<float>(TransposeKernel<float>)
    .Kernel<double>(TransposeKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Input", "Filter"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(conv2d_transpose_grad)
    .Comment("Gradient of conv2d_transpose.")
    .Input("Input", "as in the operator")
    .Input("Filter", "as in the operator")
    .Input("Output@GRAD", "gradient of Output")
    .Output("Input@GRAD", "dims of Input", kDispensable)
    .Output("Filter@GRAD", "dims of Filter", kDispensable)
    .With(TransposeAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Output@GRAD", InferTranspose(ctx));
      EnforceSameType(ctx, "Output@GRAD", "Input");
      InferGradients(ctx, {"Input", "Filter"});
    })
    .Kernel<float>(TransposeGradKernel<float>)
    .Kernel<double>(TransposeGradKernel<double>);

}  // namespace headrace::ops
