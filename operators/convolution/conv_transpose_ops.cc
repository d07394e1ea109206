// conv2d_transpose, depthwise_conv2d_transpose, conv3d_transpose: the gradient of a convolution by its input as an
// operator.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/convolution/convolution.h"
#include "operators/math/layout.h"

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
  const int64_t least = AddExtents(MultiplyExtents(inputs - 1, window.stride), extent) - window.Paddings();
  HR_ENFORCE(least > 0, InvalidArgument, "attribute paddings: nothing of the ", dimension, " ", inputs,
             " is left between them");
  HR_ENFORCE(wanted == 0 || (least <= wanted && wanted < least + window.stride), InvalidArgument,
             "attribute output_size: expected a ", dimension, " in [", least, ", ", least + window.stride, "), got ",
             wanted);
  return wanted == 0 ? least : wanted;
}

// The extents of the result that the attribute asks for; 0: none.
Extents WantedExtents(const AttributeIndex& op, size_t dimensions) {
  const auto& size = op.Attr<std::vector<int32_t>>("output_size");
  if (size.empty()) {
    return {0, 0, 0};
  }
  return ExtentsAttr(op, "output_size", dimensions, 1, 1);
}

// The convolution that is transposed: its input is the result, and its result the input.
ConvShape TransposedShape(const AttributeIndex& op, size_t dimensions, const DDim& input, const DDim& filter) {
  const bool channels_last = HasChannelsLast(op);
  const Extents in = ExtentsOf(input, dimensions, "Input", channels_last);
  const int64_t channels = ChannelsOf(input, channels_last);
  HR_ENFORCE(filter.size() == 2 + dimensions && Fits(filter[0], channels), InvalidArgument,
             "input Filter: expected dims [", channels, ", M / groups, ", dimensions == 2 ? "KH, KW" : "KD, KH, KW",
             "], as Input has dims ", ToString(input), ", got ", ToString(filter));
  for (const int64_t dim : filter) {
    HR_ENFORCE(dim > 0, InvalidArgument, "input Filter: expected dims of 1 or more, got ", ToString(filter));
  }
  const Extents size = ExtentsOf(filter, dimensions, "Filter");
  const Extents wanted = WantedExtents(op, dimensions);
  const Windows windows = WindowsOf(op, dimensions, size, in);
  const int32_t groups = op.Attr<int32_t>("groups");
  HR_ENFORCE(groups > 0, InvalidArgument, "attribute groups: expected 1 or more, got ", groups);
  const Extents out = {TransposedSize(windows.planes, in.depth, wanted.depth, "depth"),
                       TransposedSize(windows.rows, in.height, wanted.height, "height"),
                       TransposedSize(windows.cols, in.width, wanted.width, "width")};
  const DDim dims = MapDims(input[0], MultiplyExtents(filter[1], groups), out, dimensions, channels_last);
  return {op, dimensions, dims, filter, windows};
}

DDim TransposedDims(const ConvShape& s) {
  return MapDims(s.images, s.channels * s.groups, s.in, s.dimensions, s.channels_last);
}

ConvShape ShapeOf(const ExecutionContext& ctx, size_t dimensions) {
  return TransposedShape(ctx.attrs(), dimensions, ctx.Input("Input").dims(), ctx.Input("Filter").dims());
}

template <typename T>
void TransposeKernel(const ExecutionContext& ctx, size_t dimensions) {
  const ConvShape s = ShapeOf(ctx, dimensions);
  Tensor memory;
  const T* input = ReadChannelsFirst<T>(ctx.Input("Input"), s.channels_last, &memory);
  const T* filter = ctx.Input("Filter").data<T>();
  WriteChannelsFirst<T>(ctx.Output("Output"), s.channels_last,
                        [&](T* out) { ConvolveBackward<T>(s, input, nullptr, filter, out, nullptr); });
}

template <typename T>
void TransposeGradKernel(const ExecutionContext& ctx, size_t dimensions) {
  const ConvShape s = ShapeOf(ctx, dimensions);
  Tensor grad_memory;
  const T* out_grad = ReadChannelsFirst<T>(ctx.Input("Output@GRAD"), s.channels_last, &grad_memory);
  const T* filter = ctx.Input("Filter").data<T>();
  if (LoDTensor* input_grad = ctx.OutputOrNull("Input@GRAD")) {
    WriteChannelsFirst<T>(input_grad, s.channels_last, [&](T* to) { Convolve(s, out_grad, filter, to); });
  }
  if (T* filter_grad = MutableOrNull<T>(ctx, "Filter@GRAD")) {
    Tensor memory;
    const T* input = ReadChannelsFirst<T>(ctx.Input("Input"), s.channels_last, &memory);
    ConvolveBackward<T>(s, input, out_grad, filter, nullptr, filter_grad);
  }
}

DDim InferTranspose(const InferShapeContext& ctx, size_t dimensions) {
  EnforceSameType(ctx, "Filter", "Input");
  return TransposedDims(TransposedShape(ctx.attrs(), dimensions, ctx.InputDim("Input"), ctx.InputDim("Filter")));
}

OpRegistrar&& TransposeAttrs(OpRegistrar&& op, size_t dimensions) {
  return ConvAttrs(std::move(op), dimensions)
      .Attr<std::vector<int32_t>>(
          "output_size", std::string(DimensionNames(dimensions)) + " of the result; empty: the least possible", {});
}

const ConvKind kTranspose = {"C, M / groups",
                             "(H - 1) stride - 2 padding + dilation (KH - 1) + 1 or output_size",
                             TransposeAttrs,
                             InferTranspose,
                             TransposeKernel<float>,
                             TransposeKernel<double>,
                             TransposeGradKernel<float>,
                             TransposeGradKernel<double>};

const char* const kComment =
    "Transposed convolution: the gradient of a convolution by its input, whose result is Input.";

HEADRACE_REGISTER_OPS(conv_transpose_ops) {
  RegisterConv("conv2d_transpose", 2, kComment, kTranspose);
  RegisterConv("depthwise_conv2d_transpose", 2,
               "conv2d_transpose; Fluid's name for it where each channel is a group of its own.", kTranspose);
  RegisterConv("conv3d_transpose", 3, kComment, kTranspose);
}

}  // namespace
}  // namespace headrace::ops
