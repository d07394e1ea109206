#include "operators/convolution.h"

#include <algorithm>
#include <string>
#include <vector>

#include "operators/gemm.h"
#include "operators/im2col.h"
#include "operators/scratch.h"

namespace headrace::ops {

ConvShape::ConvShape(const OpDesc& op, size_t spatial, const DDim& input, const DDim& filter)
    : dimensions(spatial), in(ExtentsOf(input, spatial, "Input")) {
  HR_ENFORCE(filter.size() == 2 + dimensions, InvalidArgument, "input Filter: expected dims ",
             dimensions == 2 ? "[M, C / groups, KH, KW]" : "[M, C / groups, KD, KH, KW]", ", got ", ToString(filter));
  groups = op.Attr<int32_t>("groups");
  HR_ENFORCE(groups > 0, InvalidArgument, "attribute groups: expected 1 or more, got ", groups);
  for (const int64_t dim : filter) {
    HR_ENFORCE(dim > 0, InvalidArgument, "input Filter: expected dims of 1 or more, got ", ToString(filter));
  }
  images = input[0];
  channels = filter[1];
  const int64_t all_channels = MultiplyExtents(channels, groups);
  HR_ENFORCE(Fits(input[1], all_channels), InvalidArgument, "input Input: expected ", all_channels,
             " channels, those of the filter of dims ", ToString(filter), " times ", groups, " groups, got dims ",
             ToString(input));
  HR_ENFORCE(filter[0] % groups == 0, InvalidArgument, "input Filter: expected a multiple of ", groups,
             " (attribute groups) for dimension 0, got dims ", ToString(filter));
  maps = filter[0] / groups;
  const Extents size = ExtentsOf(filter, dimensions, "Filter");
  const Extents strides = ExtentsAttr(op, "strides", dimensions, 1, 1);
  const Extents paddings = ExtentsAttr(op, "paddings", dimensions, 0, 0);
  const Extents dilations = ExtentsAttr(op, "dilations", dimensions, 1, 1);
  planes = {size.depth, strides.depth, paddings.depth, dilations.depth};
  rows = {size.height, strides.height, paddings.height, dilations.height};
  cols = {size.width, strides.width, paddings.width, dilations.width};
  out = {OutputSize(planes, in.depth, false, "Input", "depth"), OutputSize(rows, in.height, false, "Input", "height"),
         OutputSize(cols, in.width, false, "Input", "width")};
}

template <typename T>
void Convolve(const ConvShape& s, const T* input, const T* filter, T* out) {
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
    const int64_t tile_pixels = (tile.end - tile.begin) * s.out.width;
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
        T* to = out + ((tile.first + i) * s.groups + g) * s.OutputSizeOfGroup() + tile.begin * s.out.width;
        for (int64_t m = 0; m < s.maps; ++m) {
          std::copy_n(product + (m * tile.images + i) * tile_pixels, tile_pixels, to + m * pixels);
        }
      }
    }
  });
}

namespace {

template <typename T>
void PointwiseBackward(const ConvShape& s, const T* out_grad, const T* input, const T* filter, T* input_grad,
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

}  // namespace

template <typename T>
void ConvolveBackward(const ConvShape& s, const T* out_grad, const T* input, const T* filter, T* input_grad,
                      T* filter_grad) {
  if (filter_grad != nullptr) {
    std::fill_n(filter_grad, s.groups * s.FilterSize(), T(0));
  }
  if (s.IsPointwise()) {
    PointwiseBackward(s, out_grad, input, filter, input_grad, filter_grad);
    return;
  }
  if (input_grad != nullptr) {
    std::fill_n(input_grad, s.images * s.groups * s.InputSize(), T(0));
  }

  thread_local Tensor columns_memory;
  thread_local Tensor out_grad_memory;
  ForEachTile(s, sizeof(T), [&](const Tile& tile) {
    const int64_t tile_pixels = (tile.end - tile.begin) * s.out.width;
    const int64_t width = tile.images * tile_pixels;
    T* columns = Scratch<T>(&columns_memory, s.PatchSize() * width);
    T* d = Scratch<T>(&out_grad_memory, s.maps * width);
    for (int64_t g = 0; g < s.groups; ++g) {
      const int64_t at = tile.first * s.groups + g;
      for (int64_t i = 0; i < tile.images; ++i) {
        const T* from = out_grad + (at + i * s.groups) * s.OutputSizeOfGroup() + tile.begin * s.out.width;
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

OpRegistrar&& ConvAttrs(OpRegistrar&& op, size_t dimensions) {
  const std::string names = ": " + std::string(DimensionNames(dimensions));
  const std::vector<int32_t> ones(dimensions, 1);
  return std::move(op)
      .Attr<std::vector<int32_t>>("strides", "step of the window" + names, ones)
      .Attr<std::vector<int32_t>>("paddings", "zeros around the input on either side" + names,
                                  std::vector<int32_t>(dimensions, 0))
      .Attr<std::vector<int32_t>>("dilations", "step between the elements of the filter" + names, ones)
      .Attr<int32_t>("groups", "number of groups of channels that do not mix", 1);
}

#define HEADRACE_INSTANTIATE(T)                                        \
  template void Convolve<T>(const ConvShape&, const T*, const T*, T*); \
  template void ConvolveBackward<T>(const ConvShape&, const T*, const T*, const T*, T*, T*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
