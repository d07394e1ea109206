// conv2d: im2col and matrix products, tile by tile.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "framework/op_registry.h"
#include "operators/gemm.h"
#include "operators/kernel_util.h"
#include "operators/window.h"

namespace headrace::ops {
namespace {

// The sizes of a convolution. At compile time those of the input may be -1.
struct ConvShape {
  ConvShape(const OpDesc& op, const DDim& input, const DDim& filter) {
    HR_ENFORCE(input.size() == 4, InvalidArgument, "input Input: expected dims [N, C, H, W], got ", ToString(input));
    HR_ENFORCE(filter.size() == 4, InvalidArgument, "input Filter: expected dims [M, C / groups, KH, KW], got ",
               ToString(filter));
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
    height = input[2];
    width = input[3];
    const Pair strides = PairAttr(op, "strides", 1);
    const Pair paddings = PairAttr(op, "paddings", 0);
    const Pair dilations = PairAttr(op, "dilations", 1);
    rows = {filter[2], strides.height, paddings.height, dilations.height};
    cols = {filter[3], strides.width, paddings.width, dilations.width};
    out_height = OutputSize(rows, height, false, "Input", "height");
    out_width = OutputSize(cols, width, false, "Input", "width");
  }

  DDim OutputDims() const { return {images, maps * groups, out_height, out_width}; }
  int64_t Pixels() const { return out_height * out_width; }               // of an output map
  int64_t PatchSize() const { return channels * rows.size * cols.size; }  // of a group
  int64_t InputSize() const { return channels * height * width; }         // of a group of an image
  int64_t OutputSizeOfGroup() const { return maps * Pixels(); }
  int64_t FilterSize() const { return maps * PatchSize(); }
  // The columns of an image are the image itself.
  bool IsPointwise() const {
    const auto plain = [](const Window& w) { return w.size == 1 && w.stride == 1 && w.padding == 0; };
    return plain(rows) && plain(cols);
  }

  int64_t images;
  int64_t groups;
  int64_t channels;  // of a group
  int64_t maps;      // output channels of a group
  int64_t height;
  int64_t width;
  int64_t out_height;
  int64_t out_width;
  Window rows{};
  Window cols{};
};

// What goes into one matrix product: some images, or some output rows of one image.
struct Tile {
  int64_t first;   // image
  int64_t images;  // 1 unless all rows are taken
  int64_t begin;   // output rows [begin, end)
  int64_t end;
};

// Cuts the work in tiles whose columns fit about half of a second-level cache, but not so narrow that packing the
// filter would cost more than multiplying by it. Of large images a tile takes a few rows, so that the columns are still
// in the cache when they are multiplied; small images share a tile, since each product has its costs. Visits the tiles
// in order.
template <typename Visit>
void ForEachTile(const ConvShape& s, size_t element_size, Visit&& visit) {
  constexpr int64_t kBytes = 256 * 1024;
  constexpr int64_t kMinColumns = 256;
  const int64_t columns = std::max(kMinColumns, kBytes / (s.PatchSize() * static_cast<int64_t>(element_size)));
  const int64_t images = std::max<int64_t>(1, columns / s.Pixels());
  const int64_t rows = std::clamp<int64_t>(columns / s.out_width, 1, s.out_height);
  for (int64_t first = 0; first < s.images; first += images) {
    if (images > 1) {
      visit(Tile{first, std::min(images, s.images - first), 0, s.out_height});
      continue;
    }
    for (int64_t begin = 0; begin < s.out_height; begin += rows) {
      visit(Tile{first, 1, begin, std::min(begin + rows, s.out_height)});
    }
  }
}

// Visits the pieces of one channel of one image as the column matrix of a tile sees them: piece(row, column, input,
// begin, end) for each window offset (`row` of the matrix) and output row (which starts at `column`): output positions
// [begin, end) of that row meet the input; position `begin` meets `input`, and each next one lies `cols.stride`
// further. The others meet padding.
template <typename Piece>
void ForEachPiece(const ConvShape& s, const Tile& tile, Piece&& piece) {
  int64_t row = 0;
  for (int64_t i = 0; i < s.rows.size; ++i) {
    for (int64_t j = 0; j < s.cols.size; ++j, ++row) {
      const Window::Range range = s.cols.OutputsInside(j, s.width, s.out_width);
      for (int64_t y = tile.begin; y < tile.end; ++y) {
        const int64_t in_y = s.rows.InputAt(y, i);
        const bool inside = 0 <= in_y && in_y < s.height && range.begin < range.end;
        piece(row, (y - tile.begin) * s.out_width, inside ? in_y * s.width + s.cols.InputAt(range.begin, j) : 0,
              inside ? range.begin : 0, inside ? range.end : 0);
      }
    }
  }
}

// Writes the patches of one group of one image as columns [PatchSize, pixels of the tile] of a matrix with rows of
// `stride` elements.
template <typename T>
void ImageToColumns(const ConvShape& s, const Tile& tile, const T* image, int64_t stride, T* columns) {
  const int64_t step = s.cols.stride;
  for (int64_t c = 0; c < s.channels; ++c) {
    ForEachPiece(s, tile, [=](int64_t row, int64_t column, int64_t input, int64_t begin, int64_t end) {
      T* to = columns + row * stride + column;
      const T* from = image + input;
      std::fill_n(to, begin, T(0));
      if (step == 1) {
        std::copy_n(from, end - begin, to + begin);
      } else {
        for (int64_t x = begin; x < end; ++x, from += step) {
          to[x] = *from;
        }
      }
      std::fill_n(to + end, s.out_width - end, T(0));
    });
    image += s.height * s.width;
    columns += s.rows.size * s.cols.size * stride;
  }
}

// The transpose of ImageToColumns: adds each element of the columns to the pixel that it came from.
template <typename T>
void AddColumnsToImage(const ConvShape& s, const Tile& tile, const T* columns, int64_t stride, T* image) {
  const int64_t step = s.cols.stride;
  for (int64_t c = 0; c < s.channels; ++c) {
    ForEachPiece(s, tile, [=](int64_t row, int64_t column, int64_t input, int64_t begin, int64_t end) {
      const T* from = columns + row * stride + column;
      T* to = image + input;
      if (step == 1) {
        for (int64_t x = begin; x < end; ++x) {
          to[x - begin] += from[x];
        }
      } else {
        for (int64_t x = begin; x < end; ++x, to += step) {
          *to += from[x];
        }
      }
    });
    image += s.height * s.width;
    columns += s.rows.size * s.cols.size * stride;
  }
}

// Memory of this thread for columns and the like, kept between runs, so that a warm run allocates nothing.
template <typename T>
T* Scratch(Tensor* tensor, int64_t numel) {
  return tensor->Resize({numel}).template mutable_data<T>();
}

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
