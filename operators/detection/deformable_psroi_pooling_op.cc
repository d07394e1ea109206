// deformable_psroi_pooling: averages over the bins of regions, which lie where another input says.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/regions.h"
#include "operators/image/pixels_around.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

using Ints = std::vector<int32_t>;

struct DeformableRegions {
  explicit DeformableRegions(const ExecutionContext& ctx)
      : s(ctx, "Input"),
        channels(ctx.Attr<int32_t>("output_dim")),
        samples(ctx.Attr<int32_t>("sample_per_part")),
        group_rows(ctx.Attr<Ints>("group_size")[0]),
        group_cols(ctx.Attr<Ints>("group_size")[1]),
        part_rows(ctx.Attr<Ints>("part_size")[0]),
        part_cols(ctx.Attr<Ints>("part_size")[1]),
        shift(ctx.Attr<bool>("no_trans") ? 0.0 : ctx.Attr<double>("trans_std")) {
    const DDim& trans = ctx.Input("Trans").dims();
    classes = ctx.Attr<bool>("no_trans") ? 1 : trans[1] / 2;
  }

  int64_t Parts() const { return part_rows * part_cols; }
  // The channel of X that a bin of channel `c` of the result comes from.
  int64_t Source(int64_t c, int64_t bin) const {
    const int64_t row = bin / s.bin_cols * group_rows / s.bin_rows;
    const int64_t col = bin % s.bin_cols * group_cols / s.bin_cols;
    return (c * group_rows + row) * group_cols + col;
  }
  // Where the shifts of a bin lie in Trans: that to the right; that downwards is Parts() further.
  int64_t Shift(int64_t region, int64_t c, int64_t bin) const {
    const int64_t kind = c / (channels / classes);
    const int64_t row = bin / s.bin_cols * part_rows / s.bin_rows;
    const int64_t col = bin % s.bin_cols * part_cols / s.bin_cols;
    return (region * classes + kind) * 2 * Parts() + row * part_cols + col;
  }

  RegionShape s;
  int64_t channels;  // of the result
  int64_t samples;
  int64_t group_rows;
  int64_t group_cols;
  int64_t part_rows;
  int64_t part_cols;
  double shift;
  int64_t classes;
};

// A region in X, whose pixels it touches half.
template <typename T>
struct DeformableRegion {
  DeformableRegion(const RegionShape& s, const T* roi) {
    const auto scale = static_cast<T>(s.scale);
    x = std::round(roi[0]) * scale - T(0.5);
    y = std::round(roi[1]) * scale - T(0.5);
    width = std::max((std::round(roi[2]) + 1) * scale - T(0.5) - x, T(0.1));
    height = std::max((std::round(roi[3]) + 1) * scale - T(0.5) - y, T(0.1));
  }

  T x;
  T y;
  T width;
  T height;
};

// Calls visit(place) for each place in X that a bin is the mean of.
template <typename T, typename Visit>
void ForEachSample(const DeformableRegions& r, const DeformableRegion<T>& region, const T* trans, int64_t shift,
                   int64_t bin, const Visit& visit) {
  const RegionShape& s = r.s;
  const T bin_height = region.height / static_cast<T>(s.bin_rows);
  const T bin_width = region.width / static_cast<T>(s.bin_cols);
  T y = region.y + static_cast<T>(bin / s.bin_cols) * bin_height;
  T x = region.x + static_cast<T>(bin % s.bin_cols) * bin_width;
  if (r.shift != 0) {
    x += trans[shift] * static_cast<T>(r.shift) * region.width;
    y += trans[shift + r.Parts()] * static_cast<T>(r.shift) * region.height;
  }
  const auto bottom = static_cast<T>(s.height - 1);
  const auto right = static_cast<T>(s.width - 1);
  for (int64_t i = 0; i < r.samples * r.samples; ++i) {
    const T at_y = y + static_cast<T>(i / r.samples) * bin_height / static_cast<T>(r.samples);
    const T at_x = x + static_cast<T>(i % r.samples) * bin_width / static_cast<T>(r.samples);
    if (at_y < T(-0.5) || at_y > bottom + T(0.5) || at_x < T(-0.5) || at_x > right + T(0.5)) {
      continue;
    }
    // A NaN stays one.
    visit(PixelsAround<T>(std::max(std::min(at_y, bottom), T(0)), std::max(std::min(at_x, right), T(0)), s.height,
                          s.width),
          T(0) <= at_y && at_y <= bottom, T(0) <= at_x && at_x <= right);
  }
}

template <typename T>
void DeformablePoolKernel(const ExecutionContext& ctx) {
  const DeformableRegions r(ctx);
  const RegionShape& s = r.s;
  const T* x = ctx.Input("Input").data<T>();
  const T* rois = ctx.Input("ROIs").data<T>();
  const T* trans = ctx.Input("Trans").data<T>();
  T* out = ctx.Output("Output")->mutable_data<T>();
  T* counts = ctx.Output("TopCount")->mutable_data<T>();
  const int64_t work = 16 * s.Bins() * r.samples * r.samples;
  ParallelFor(s.regions * r.channels, RowsPerBlock(work), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t number = i / r.channels;
      const int64_t c = i % r.channels;
      const DeformableRegion<T> region(s, rois + 4 * number);
      const T* image = x + s.ImageOf(number) * s.channels * s.MapSize();
      for (int64_t bin = 0; bin < s.Bins(); ++bin) {
        const T* map = image + r.Source(c, bin) * s.MapSize();
        T sum = 0;
        T count = 0;
        ForEachSample(r, region, trans, r.Shift(number, c, bin), bin, [&](const PixelsAround<T>& place, bool, bool) {
          sum += place.Value(map, s.width);
          count += 1;
        });
        out[i * s.Bins() + bin] = count > 0 ? sum / count : T(0);
        counts[i * s.Bins() + bin] = count;
      }
    }
  });
}

// Each block makes maps of its own, of all regions of their image.
template <typename T>
void DeformablePoolMapGradient(const ExecutionContext& ctx, const DeformableRegions& r, T* dx) {
  const RegionShape& s = r.s;
  const T* rois = ctx.Input("ROIs").data<T>();
  const T* trans = ctx.Input("Trans").data<T>();
  const T* counts = ctx.Input("TopCount").data<T>();
  const T* d = ctx.Input("Output@GRAD").data<T>();
  ParallelFor(s.images * s.channels, RowsPerBlock(s.MapSize()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* map = dx + i * s.MapSize();
      std::fill_n(map, s.MapSize(), T(0));
      const auto image = static_cast<size_t>(i / s.channels);
      const int64_t source = i % s.channels;
      const int64_t c = source / (r.group_rows * r.group_cols);
      if (c >= r.channels) {
        continue;
      }
      for (auto number = static_cast<int64_t>(s.offsets[image]); number < static_cast<int64_t>(s.offsets[image + 1]);
           ++number) {
        const DeformableRegion<T> region(s, rois + 4 * number);
        for (int64_t bin = 0; bin < s.Bins(); ++bin) {
          const int64_t at = (number * r.channels + c) * s.Bins() + bin;
          if (r.Source(c, bin) == source && counts[at] > 0) {
            const T value = d[at] / counts[at];
            ForEachSample(r, region, trans, r.Shift(number, c, bin), bin,
                          [&](const PixelsAround<T>& place, bool, bool) {
                            place.ForEach(s.width, [&](int64_t pixel, T weight) { map[pixel] += weight * value; });
                          });
          }
        }
      }
    }
  });
}

// Each block makes the shifts of regions of its own.
template <typename T>
void DeformablePoolShiftGradient(const ExecutionContext& ctx, const DeformableRegions& r, T* dtrans) {
  const RegionShape& s = r.s;
  const T* x = ctx.Input("Input").data<T>();
  const T* rois = ctx.Input("ROIs").data<T>();
  const T* trans = ctx.Input("Trans").data<T>();
  const T* counts = ctx.Input("TopCount").data<T>();
  const T* d = ctx.Input("Output@GRAD").data<T>();
  std::fill_n(dtrans, ctx.Input("Trans").numel(), T(0));
  if (r.shift == 0) {
    return;
  }
  const int64_t work = 32 * r.channels * s.Bins() * r.samples * r.samples;
  ParallelFor(s.regions, RowsPerBlock(work), [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      const DeformableRegion<T> region(s, rois + 4 * number);
      const T* image = x + s.ImageOf(number) * s.channels * s.MapSize();
      for (int64_t i = 0; i < r.channels * s.Bins(); ++i) {
        const int64_t c = i / s.Bins();
        const int64_t bin = i % s.Bins();
        const int64_t at = number * r.channels * s.Bins() + i;
        if (counts[at] <= 0) {
          continue;
        }
        const T value = d[at] / counts[at] * static_cast<T>(r.shift);
        const T* map = image + r.Source(c, bin) * s.MapSize();
        const int64_t shift = r.Shift(number, c, bin);
        ForEachSample(r, region, trans, shift, bin, [&](const PixelsAround<T>& place, bool in_rows, bool in_cols) {
          // At the border it does not matter how far beyond a place lies.
          if (in_cols) {
            dtrans[shift] += value * region.width * place.SlopeAcross(map, s.width);
          }
          if (in_rows) {
            dtrans[shift + r.Parts()] += value * region.height * place.SlopeDown(map, s.width);
          }
        });
      }
    }
  });
}

template <typename T>
void DeformablePoolGradKernel(const ExecutionContext& ctx) {
  const DeformableRegions r(ctx);
  if (T* dx = MutableOrNull<T>(ctx, "Input@GRAD")) {
    DeformablePoolMapGradient(ctx, r, dx);
  }
  if (T* dtrans = MutableOrNull<T>(ctx, "Trans@GRAD")) {
    DeformablePoolShiftGradient(ctx, r, dtrans);
  }
}

void EnforcePair(const InferShapeContext& ctx, HashedName attr) {
  const auto& pair = ctx.Attr<Ints>(attr);
  HR_ENFORCE(pair.size() == 2 && pair[0] > 0 && pair[1] > 0, InvalidArgument, "attribute ", attr,
             ": expected a height and a width of 1 or more, got ", ToString(Attribute(pair)));
}

// The dims of Output.
DDim CheckDeformablePool(const InferShapeContext& ctx) {
  CheckRegions(ctx, "Input");
  const int64_t channels = ctx.Attr<int32_t>("output_dim");
  HR_ENFORCE(channels > 0, InvalidArgument, "attribute output_dim: expected 1 or more, got ", channels);
  HR_ENFORCE(ctx.Attr<int32_t>("sample_per_part") > 0, InvalidArgument,
             "attribute sample_per_part: expected 1 or more, got ", ctx.Attr<int32_t>("sample_per_part"));
  EnforcePair(ctx, "group_size");
  EnforcePair(ctx, "part_size");
  const auto& group = ctx.Attr<Ints>("group_size");
  const auto& part = ctx.Attr<Ints>("part_size");
  const int64_t needed = channels * group[0] * group[1];
  const DDim x = ctx.InputDim("Input");
  HR_ENFORCE(x[1] < 0 || x[1] >= needed, InvalidArgument, "input Input: expected output_dim * group_size channels, ",
             needed, ", or more, got dims ", ToString(x));
  EnforceSameType(ctx, "Trans", "Input");
  EnforceRank(ctx, "Trans", 4);
  if (!ctx.Attr<bool>("no_trans")) {
    EnforceDims(ctx, "Trans", {ctx.InputDim("ROIs")[0], -1, part[0], part[1]});
    const int64_t shifts = ctx.InputDim("Trans")[1];
    HR_ENFORCE(shifts < 0 || (shifts >= 2 && shifts % 2 == 0 && channels % (shifts / 2) == 0), InvalidArgument,
               "input Trans: expected two channels for each of some classes, which share the ", channels,
               " channels of Output (output_dim), got dims ", ToString(ctx.InputDim("Trans")));
  }
  return PooledDims(ctx, channels);
}

OpRegistrar&& DeformablePoolInputs(OpRegistrar&& op) {
  return std::move(op)
      .Input("Input", "[N, C, H, W]")
      .Input("ROIs", "[R, 4] (left, upper, right, lower), with a LoD: a sequence for each image")
      .Input("Trans",
             "[R, 2 classes, part_size]: by how much bins are shifted to the right and downwards, in trans_std"
             " of the extents of the region")
      .With(RegionAttrs)
      .Attr<bool>("no_trans", "whether they are not shifted after all", false)
      .Attr<int32_t>("output_dim", "channels of Output")
      .Attr<Ints>("group_size", "height and width of the bins that have channels of their own", {1, 1})
      .Attr<Ints>("part_size", "height and width of Trans")
      .Attr<int32_t>("sample_per_part", "how many rows and columns of places a bin has", 1)
      .Attr<double>("trans_std", "what a shift of 1 is, in extents of the region", 0.1);
}

}  // namespace

HEADRACE_REGISTER_OP(deformable_psroi_pooling)
    .Comment(
        "The mean of each bin of regions of images, which are shifted as another input says (J. Dai et al., "
        "Deformable Convolutional Networks, 2017).")
    .With(DeformablePoolInputs)
    .Output("Output", "[R, output_dim, pooled_height, pooled_width]")
    .Output("TopCount", "dims of Output: how many places each is the mean of")
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = CheckDeformablePool(ctx);
      SetOutput(ctx, "Output", dims, ctx.InputType("Input"));
      SetOutput(ctx, "TopCount", dims, ctx.InputType("Input"));
    })
    .Kernel<float>(DeformablePoolKernel<float>)
    .Kernel<double>(DeformablePoolKernel<double>)
    .Gradient(
        DefaultGradient({.inputs = {"Input", "ROIs", "Trans"}, .outputs = {"TopCount"}, .no_gradient = {"ROIs"}}));

HEADRACE_REGISTER_OP(deformable_psroi_pooling_grad)
    .Comment("Gradient of deformable_psroi_pooling.")
    .With(DeformablePoolInputs)
    .Input("TopCount", "as in the operator")
    .Input("Output@GRAD", "gradient of Output")
    .Input("TopCount@GRAD", "not used", kDispensable)
    .Output("Input@GRAD", "dims of Input", kDispensable)
    .Output("Trans@GRAD", "dims of Trans", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = CheckDeformablePool(ctx);
      for (const HashedName slot : {HashedName("TopCount"), HashedName("Output@GRAD")}) {
        EnforceDims(ctx, slot, dims);
        EnforceSameType(ctx, slot, "Input");
      }
      InferGradients(ctx, {"Input", "Trans"});
    })
    .Kernel<float>(DeformablePoolGradKernel<float>)
    .Kernel<double>(DeformablePoolGradKernel<double>);

}  // namespace headrace::ops
