// deformable_conv, deformable_conv_v1: convolutions that look where other inputs say.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/convolution/convolution.h"
#include "operators/image/pixels_around.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm.h"
#include "operators/math/scratch.h"

namespace headrace::ops {
namespace {

// A column of an image, [channels, offsets of the filter, pixels of the result], is what the filter meets there; all
// channels of a deformable group look at the same places.
struct DeformableShape {
  DeformableShape(const AttributeIndex& op, const DDim& input, const DDim& filter)
      : conv(op, 2, input, filter), deformable_groups(op.Attr<int32_t>("deformable_groups")) {
    HR_ENFORCE(deformable_groups > 0 && Channels() % deformable_groups == 0, InvalidArgument,
               "attribute deformable_groups: expected a divisor of the ", Channels(), " channels of input Input, got ",
               deformable_groups);
  }

  int64_t Channels() const { return conv.channels * conv.groups; }
  int64_t Offsets() const { return conv.rows.size * conv.cols.size; }
  int64_t ChannelsOfGroup() const { return Channels() / deformable_groups; }
  int64_t InputSize() const { return Channels() * conv.in.Volume(); }
  int64_t OutputSize() const { return conv.groups * conv.OutputSizeOfGroup(); }
  int64_t ColumnSize() const { return Channels() * Offsets() * conv.Pixels(); }
  // How many images are looked at together: their columns fit a cache, or are those of one image.
  int64_t ImagesAtATime() const {
    constexpr int64_t kMaxElements = 1 << 18;
    return std::clamp<int64_t>(kMaxElements / std::max<int64_t>(1, ColumnSize()), 1, std::max<int64_t>(1, conv.images));
  }

  ConvShape conv;
  int64_t deformable_groups;
};

// Where the filter looks. `masks` is nullptr if there are none.
template <typename T>
struct DeformedPlaces {
  // Where offset `k` of the filter meets image `n` for pixel `p` of the result.
  PixelsAround<T> At(int64_t n, int64_t group, int64_t k, int64_t p) const {
    const T* offset = offsets + 2 * Row(n, group, k) * s.conv.Pixels() + p;
    const int64_t y = s.conv.rows.InputAt(p / s.conv.out.width, k / s.conv.cols.size);
    const int64_t x = s.conv.cols.InputAt(p % s.conv.out.width, k % s.conv.cols.size);
    return PixelsAround<T>(static_cast<T>(y) + offset[0], static_cast<T>(x) + offset[s.conv.Pixels()], s.conv.in.height,
                           s.conv.in.width);
  }
  T Mask(int64_t n, int64_t group, int64_t k, int64_t p) const {
    return masks == nullptr ? T(1) : masks[Row(n, group, k) * s.conv.Pixels() + p];
  }
  int64_t Row(int64_t n, int64_t group, int64_t k) const { return (n * s.deformable_groups + group) * s.Offsets() + k; }

  const DeformableShape& s;
  const T* offsets;
  const T* masks;
};

// The columns of `count` images from `first` on.
template <typename T>
void ColumnsOfImages(const DeformedPlaces<T>& places, const T* x, int64_t first, int64_t count, T* columns) {
  const DeformableShape& s = places.s;
  const int64_t pixels = s.conv.Pixels();
  ParallelFor(count * s.Channels() * s.Offsets(), RowsPerBlock(16 * pixels), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t k = row % s.Offsets();
      const int64_t channel = row / s.Offsets() % s.Channels();
      const int64_t n = first + row / s.Offsets() / s.Channels();
      const int64_t group = channel / s.ChannelsOfGroup();
      const T* map = x + (n * s.Channels() + channel) * s.conv.in.Volume();
      for (int64_t p = 0; p < pixels; ++p) {
        columns[row * pixels + p] = places.At(n, group, k, p).Value(map, s.conv.in.width) * places.Mask(n, group, k, p);
      }
    }
  });
}

template <typename T>
void DeformableConvKernel(const ExecutionContext& ctx) {
  const DeformableShape s(ctx.attrs(), ctx.Input("Input").dims(), ctx.Input("Filter").dims());
  const DeformedPlaces<T> places{s, ctx.Input("Offset").data<T>(), ElementsOrNull<T>(ctx, "Mask")};
  const T* filter = ctx.Input("Filter").data<T>();
  T* out = ctx.Output("Output")->mutable_data<T>();
  const int64_t step = s.ImagesAtATime();
  Tensor memory;
  T* columns = Scratch<T>(&memory, step * s.ColumnSize());
  for (int64_t first = 0; first < s.conv.images; first += step) {
    const int64_t count = std::min(step, s.conv.images - first);
    ColumnsOfImages(places, ctx.Input("Input").data<T>(), first, count, columns);
    for (int64_t i = 0; i < count * s.conv.groups; ++i) {
      Gemm<T>(false, false, s.conv.maps, s.conv.Pixels(), s.conv.PatchSize(), T(1),
              filter + i % s.conv.groups * s.conv.FilterSize(), columns + i * s.conv.PatchSize() * s.conv.Pixels(),
              false, out + first * s.OutputSize() + i * s.conv.OutputSizeOfGroup());
    }
  }
}

// From the gradient of the columns to that of the images. Each block makes maps of its own.
template <typename T>
void DeformedMapGradient(const DeformedPlaces<T>& places, const T* columns, int64_t first, int64_t count, T* dx) {
  const DeformableShape& s = places.s;
  const int64_t size = s.Offsets() * s.conv.Pixels();
  ParallelFor(count * s.Channels(), RowsPerBlock(16 * size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* map = dx + (first * s.Channels() + row) * s.conv.in.Volume();
      std::fill_n(map, s.conv.in.Volume(), T(0));
      const int64_t n = first + row / s.Channels();
      const int64_t group = row % s.Channels() / s.ChannelsOfGroup();
      for (int64_t i = 0; i < size; ++i) {
        const int64_t k = i / s.conv.Pixels();
        const int64_t p = i % s.conv.Pixels();
        const T value = columns[row * size + i] * places.Mask(n, group, k, p);
        places.At(n, group, k, p).ForEach(s.conv.in.width, [&](int64_t pixel, T weight) {
          map[pixel] += weight * value;
        });
      }
    }
  });
}

// The same for offsets and masks; either may be nullptr. Each block makes the elements of offsets of the filter of its
// own, over all channels of a deformable group.
template <typename T>
void DeformedPlaceGradient(const DeformedPlaces<T>& places, const T* x, const T* columns, int64_t first, int64_t count,
                           T* doffsets, T* dmasks) {
  const DeformableShape& s = places.s;
  const int64_t pixels = s.conv.Pixels();
  const int64_t work = 32 * s.ChannelsOfGroup() * pixels;
  ParallelFor(count * s.deformable_groups * s.Offsets(), RowsPerBlock(work), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t k = i % s.Offsets();
      const int64_t group = i / s.Offsets() % s.deformable_groups;
      const int64_t image = i / s.Offsets() / s.deformable_groups;
      const int64_t row = places.Row(first + image, group, k);
      for (int64_t p = 0; p < pixels; ++p) {
        const PixelsAround<T> place = places.At(first + image, group, k, p);
        T down = 0;
        T across = 0;
        T of_mask = 0;
        for (int64_t c = group * s.ChannelsOfGroup(); c < (group + 1) * s.ChannelsOfGroup(); ++c) {
          const T* map = x + ((first + image) * s.Channels() + c) * s.conv.in.Volume();
          const T value = columns[((image * s.Channels() + c) * s.Offsets() + k) * pixels + p];
          of_mask += value * place.Value(map, s.conv.in.width);
          down += value * place.SlopeDown(map, s.conv.in.width);
          across += value * place.SlopeAcross(map, s.conv.in.width);
        }
        if (doffsets != nullptr) {
          const T mask = places.Mask(first + image, group, k, p);
          doffsets[2 * row * pixels + p] = down * mask;
          doffsets[(2 * row + 1) * pixels + p] = across * mask;
        }
        if (dmasks != nullptr) {
          dmasks[row * pixels + p] = of_mask;
        }
      }
    }
  });
}

template <typename T>
void DeformableConvGradKernel(const ExecutionContext& ctx) {
  const DeformableShape s(ctx.attrs(), ctx.Input("Input").dims(), ctx.Input("Filter").dims());
  const DeformedPlaces<T> places{s, ctx.Input("Offset").data<T>(), ElementsOrNull<T>(ctx, "Mask")};
  const T* x = ctx.Input("Input").data<T>();
  const T* filter = ctx.Input("Filter").data<T>();
  const T* d = ctx.Input("Output@GRAD").data<T>();
  T* dx = MutableOrNull<T>(ctx, "Input@GRAD");
  T* doffsets = MutableOrNull<T>(ctx, "Offset@GRAD");
  T* dmasks = MutableOrNull<T>(ctx, "Mask@GRAD");
  T* dfilter = ZerosOrNull<T>(ctx, "Filter@GRAD");
  const int64_t step = s.ImagesAtATime();
  const int64_t group_size = s.conv.PatchSize() * s.conv.Pixels();
  Tensor memory;
  T* columns = Scratch<T>(&memory, step * s.ColumnSize());
  for (int64_t first = 0; first < s.conv.images; first += step) {
    const int64_t count = std::min(step, s.conv.images - first);
    const auto for_each_group = [&](const auto& visit) {
      for (int64_t i = 0; i < count * s.conv.groups; ++i) {
        visit(d + first * s.OutputSize() + i * s.conv.OutputSizeOfGroup(), i % s.conv.groups * s.conv.FilterSize(),
              columns + i * group_size);
      }
    };
    if (dfilter != nullptr) {
      ColumnsOfImages(places, x, first, count, columns);
      for_each_group([&](const T* of_group, int64_t filter_at, const T* column) {
        Gemm<T>(false, true, s.conv.maps, s.conv.PatchSize(), s.conv.Pixels(), T(1), of_group, column, true,
                dfilter + filter_at);
      });
    }
    for_each_group([&](const T* of_group, int64_t filter_at, T* column) {
      Gemm<T>(true, false, s.conv.PatchSize(), s.conv.Pixels(), s.conv.maps, T(1), filter + filter_at, of_group, false,
              column);
    });
    if (dx != nullptr) {
      DeformedMapGradient(places, columns, first, count, dx);
    }
    if (doffsets != nullptr || dmasks != nullptr) {
      DeformedPlaceGradient(places, x, columns, first, count, doffsets, dmasks);
    }
  }
}

// The dims of Output.
DDim CheckDeformableConv(const InferShapeContext& ctx, bool with_mask) {
  EnforceRank(ctx, "Input", 4);
  EnforceRank(ctx, "Filter", 4);
  const DDim filter = ctx.InputDim("Filter");
  const DeformableShape s(ctx.attrs(), ctx.InputDim("Input"), filter);
  const DDim out = s.conv.OutputDims();
  const int64_t places = s.deformable_groups * s.Offsets();
  EnforceDims(ctx, "Offset", {out[0], 2 * places, out[2], out[3]});
  EnforceSameType(ctx, "Offset", "Input");
  EnforceSameType(ctx, "Filter", "Input");
  if (with_mask) {
    EnforceDims(ctx, "Mask", {out[0], places, out[2], out[3]});
    EnforceSameType(ctx, "Mask", "Input");
  }
  return out;
}

OpRegistrar&& DeformableInputs(OpRegistrar&& op, bool with_mask) {
  OpRegistrar&& common =
      std::move(op)
          .Input("Input", "[N, C, H, W]")
          .Input("Offset", "[N, 2 deformable_groups KH KW, OH, OW]: how many rows and columns further each place lies")
          .Input("Filter", "[M, C / groups, KH, KW]")
          .With(ConvAttrs, size_t{2})
          .Attr<int32_t>("deformable_groups", "how many groups of channels have places of their own", 1)
          .Attr<int32_t>("im2col_step", "not used", 64);
  return with_mask ? std::move(common).Input("Mask", "[N, deformable_groups KH KW, OH, OW]: what each place counts")
                   : std::move(common);
}

void RegisterDeformableConv(const std::string& type, bool with_mask, const char* comment) {
  OpRegistrar forward(type);
  OpRegistrar backward(type + "_grad");
  More(forward)
      .Comment(comment)
      .With(DeformableInputs, with_mask)
      .Output("Output", "[N, M, OH, OW], OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1, OW likewise")
      .InferShape([with_mask](InferShapeContext& ctx) {
        SetOutput(ctx, "Output", CheckDeformableConv(ctx, with_mask), ctx.InputType("Input"));
      })
      .Kernel<float>(DeformableConvKernel<float>)
      .Kernel<double>(DeformableConvKernel<double>);
  std::vector<std::string> inputs = {"Input", "Offset", "Filter"};
  if (with_mask) {
    inputs.emplace_back("Mask");
    More(backward).Output("Mask@GRAD", "dims of Mask", kDispensable);
  }
  More(forward).Gradient(DefaultGradient({.inputs = std::move(inputs), .outputs = {}, .no_gradient = {}})).Register();
  More(backward)
      .Comment("Gradient of " + type + ".")
      .With(DeformableInputs, with_mask)
      .Input("Output@GRAD", "gradient of Output")
      .Output("Input@GRAD", "dims of Input", kDispensable)
      .Output("Offset@GRAD", "dims of Offset", kDispensable)
      .Output("Filter@GRAD", "dims of Filter", kDispensable)
      .InferShape([with_mask](InferShapeContext& ctx) {
        EnforceDims(ctx, "Output@GRAD", CheckDeformableConv(ctx, with_mask));
        EnforceSameType(ctx, "Output@GRAD", "Input");
        InferGradients(ctx, {"Input", "Offset", "Filter"});
        if (with_mask) {
          InferGradients(ctx, {"Mask"});
        }
      })
      .Kernel<float>(DeformableConvGradKernel<float>)
      .Kernel<double>(DeformableConvGradKernel<double>)
      .Register();
}

HEADRACE_REGISTER_OPS(deformable_convs) {
  RegisterDeformableConv("deformable_conv", true,
                         "A convolution of places that another input says, each of which counts as much as a third one "
                         "says (X. Zhu et al., Deformable ConvNets v2, 2018).");
  RegisterDeformableConv("deformable_conv_v1", false,
                         "A convolution of places that another input says (J. Dai et al., Deformable Convolutional "
                         "Networks, 2017).");
}

}  // namespace
}  // namespace headrace::ops
