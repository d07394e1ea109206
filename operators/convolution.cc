#include "operators/convolution.h"

#include <algorithm>

#include "operators/gemm.h"
#include "operators/im2col.h"

namespace headrace::ops {

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

OpRegistrar&& ConvAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::vector<int32_t>>("strides", "step of the window: height, width", {1, 1})
      .Attr<std::vector<int32_t>>("paddings", "zeros around the image on either side: height, width", {0, 0})
      .Attr<std::vector<int32_t>>("dilations", "step between the elements of the filter: height, width", {1, 1})
      .Attr<int32_t>("groups", "number of groups of channels that do not mix", 1);
}

#define HEADRACE_INSTANTIATE(T)                                        \
  template void Convolve<T>(const ConvShape&, const T*, const T*, T*); \
  template void ConvolveBackward<T>(const ConvShape&, const T*, const T*, const T*, T*, T*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
