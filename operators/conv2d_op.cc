// conv2d: im2col and matrix products, tile by tile.
#include <algorithm>
#include <string_view>
#include <vector>

#include "framework/op_registry.h"
#include "operators/gemm.h"
#include "operators/im2col.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

template <typename T>
void ConvKernel(const ExecutionContext& ctx) {
  const ConvShape s(ctx.op(), ctx.Input("Input").dims(), ctx.Input("Filter").dims());
  T* out = ctx.Output("Output")->mutable_data<T>();
  const T* input = ctx.Input("Input").data<T>();
  const T* filter = ctx.Input("Filter").data<T>();
  const int64_t pixels = s.Pixels();
  if (s.IsPointwise()) {
    for (int64_t ig = 0; ig < s.images * s.groups; ++ig) {
      Gemm<T>(false, false, s.maps, pixels, s.channels, T(1), filter + ig % s.groups * s.FilterSize(),
              input + ig * s.InputSize(), false, out + ig * s.OutputSizeOfGroup());
    }
    return;
  }

  thread_local Tensor columns_memory;
  thread_local Tensor product_memory;
  ForEachTile(s, sizeof(T), [&](const Tile& tile) {
    const int64_t tile_pixels = (tile.end - tile.begin) * s.out_width;
    const int64_t width = tile.images * tile_pixels;
    T* columns = Scratch<T>(&columns_memory, s.PatchSize() * width);
    T* product = Scratch<T>(&product_memory, s.maps * width);
    for (int64_t g = 0; g < s.groups; ++g) {
      for (int64_t i = 0; i < tile.images; ++i) {
        ImageToColumns(s, tile, input + ((tile.first + i) * s.groups + g) * s.InputSize(), width,
                       columns + i * tile_pixels);
      }
      Gemm<T>(false, false, s.maps, width, s.PatchSize(), T(1), filter + g * s.FilterSize(), columns, false, product);
      for (int64_t i = 0; i < tile.images; ++i) {
        T* to = out + ((tile.first + i) * s.groups + g) * s.OutputSizeOfGroup() + tile.begin * s.out_width;
        for (int64_t m = 0; m < s.maps; ++m) {
          std::copy_n(product + (m * tile.images + i) * tile_pixels, tile_pixels, to + m * pixels);
        }
      }
    }
  });
}

template <typename T>
T* MutableOrNull(const ExecutionContext& ctx, std::string_view slot) {
  LoDTensor* tensor = ctx.OutputOrNull(slot);
  return tensor == nullptr ? nullptr : tensor->mutable_data<T>();
}

template <typename T>
void PointwiseConvGrad(const ConvShape& s, const T* out_grad, const T* input, const T* filter, T* input_grad,
                       T* filter_grad) {
  for (int64_t ig = 0; ig < s.images * s.groups; ++ig) {
    const int64_t filter_at = ig % s.groups * s.FilterSize();
    const T* d = out_grad + ig * s.OutputSizeOfGroup();
    if (filter_grad != nullptr) {
      Gemm<T>(false, true, s.maps, s.channels, s.Pixels(), T(1), d, input + ig * s.InputSize(), true,
              filter_grad + filter_at);
    }
    if (input_grad != nullptr) {
      Gemm<T>(true, false, s.channels, s.Pixels(), s.maps, T(1), filter + filter_at, d, false,
              input_grad + ig * s.InputSize());
    }
  }
}

template <typename T>
void ConvGradKernel(const ExecutionContext& ctx) {
  const ConvShape s(ctx.op(), ctx.Input("Input").dims(), ctx.Input("Filter").dims());
  const T* out_grad = ctx.Input("Output@GRAD").data<T>();
  const T* input = ctx.Input("Input").data<T>();
  const T* filter = ctx.Input("Filter").data<T>();
  T* input_grad = MutableOrNull<T>(ctx, "Input@GRAD");
  T* filter_grad = MutableOrNull<T>(ctx, "Filter@GRAD");
  if (filter_grad != nullptr) {
    std::fill_n(filter_grad, s.groups * s.FilterSize(), T(0));
  }
  if (s.IsPointwise()) {
    PointwiseConvGrad(s, out_grad, input, filter, input_grad, filter_grad);
    return;
  }
  if (input_grad != nullptr) {
    std::fill_n(input_grad, s.images * s.groups * s.InputSize(), T(0));
  }

  thread_local Tensor columns_memory;
  thread_local Tensor out_grad_memory;
  ForEachTile(s, sizeof(T), [&](const Tile& tile) {
    const int64_t tile_pixels = (tile.end - tile.begin) * s.out_width;
    const int64_t width = tile.images * tile_pixels;
    T* columns = Scratch<T>(&columns_memory, s.PatchSize() * width);
    T* d = Scratch<T>(&out_grad_memory, s.maps * width);
    for (int64_t g = 0; g < s.groups; ++g) {
      const int64_t at = tile.first * s.groups + g;
      for (int64_t i = 0; i < tile.images; ++i) {
        const T* from = out_grad + (at + i * s.groups) * s.OutputSizeOfGroup() + tile.begin * s.out_width;
        for (int64_t m = 0; m < s.maps; ++m) {
          std::copy_n(from + m * s.Pixels(), tile_pixels, d + (m * tile.images + i) * tile_pixels);
        }
      }
      if (filter_grad != nullptr) {
        for (int64_t i = 0; i < tile.images; ++i) {
          ImageToColumns(s, tile, input + (at + i * s.groups) * s.InputSize(), width, columns + i * tile_pixels);
        }
        Gemm<T>(false, true, s.maps, s.PatchSize(), width, T(1), d, columns, true, filter_grad + g * s.FilterSize());
      }
      if (input_grad != nullptr) {
        Gemm<T>(true, false, s.PatchSize(), width, s.maps, T(1), filter + g * s.FilterSize(), d, false, columns);
        for (int64_t i = 0; i < tile.images; ++i) {
          AddColumnsToImage(s, tile, columns + i * tile_pixels, width,
                            input_grad + (at + i * s.groups) * s.InputSize());
        }
      }
    }
  });
}

DDim InferConv(const InferShapeContext& ctx) {
  EnforceSameType(ctx, "Filter", "Input");
  return ConvShape(ctx.op(), ctx.InputDim("Input"), ctx.InputDim("Filter")).OutputDims();
}

OpRegistrar&& ConvAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::vector<int32_t>>("strides", "step of the window: height, width", {1, 1})
      .Attr<std::vector<int32_t>>("paddings", "zeros around the image on either side: height, width", {0, 0})
      .Attr<std::vector<int32_t>>("dilations", "step between the elements of the filter: height, width", {1, 1})
      .Attr<int32_t>("groups", "number of groups of channels that do not mix", 1);
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
