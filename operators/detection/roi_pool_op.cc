// roi_pool: the maxima of the bins of regions.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/regions.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

struct PixelSpan {
  int64_t begin;
  int64_t end;
};

// An axis of a region whose corners have been rounded to pixels; both belong to it.
class PooledAxis {
 public:
  PooledAxis(double low, double high, double scale, int64_t extent, int64_t bins)
      : first_(Pixel(low * scale)),
        size_(std::max<int64_t>(Pixel(high * scale) - first_ + 1, 1)),
        extent_(extent),
        bins_(bins) {}

  // The pixels that bin `bin` touches.
  PixelSpan At(int64_t bin) const {
    const auto within = [this](int64_t pixel) { return std::clamp<int64_t>(first_ + pixel, 0, extent_); };
    return {within(bin * size_ / bins_), within(((bin + 1) * size_ + bins_ - 1) / bins_)};
  }

 private:
  // Far beyond any image, and far from where integers overflow.
  static int64_t Pixel(double place) { return static_cast<int64_t>(std::clamp(std::round(place), -0x1p30, 0x1p30)); }

  int64_t first_;
  int64_t size_;
  int64_t extent_;
  int64_t bins_;
};

// Where the first of the greatest elements of a rectangle lies, or the first NaN; -1 if there are none.
template <typename T>
int64_t GreatestWithin(const T* map, int64_t width, const PixelSpan& rows, const PixelSpan& cols) {
  int64_t found = -1;
  for (int64_t y = rows.begin; y < rows.end; ++y) {
    for (int64_t x = cols.begin; x < cols.end; ++x) {
      const int64_t at = y * width + x;
      if (found < 0 || map[at] > map[found] || (IsNaN(map[at]) && !IsNaN(map[found]))) {
        found = at;
      }
    }
  }
  return found;
}

template <typename T>
void RoiPoolKernel(const ExecutionContext& ctx) {
  const RegionShape s(ctx);
  const T* x = ctx.Input("X").data<T>();
  const T* rois = ctx.Input("ROIs").data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  int64_t* argmax = ctx.Output("Argmax")->mutable_data<int64_t>();
  ParallelFor(s.regions * s.channels, RowsPerBlock(16 * s.Bins()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t region = i / s.channels;
      const T* roi = rois + 4 * region;
      const PooledAxis rows(static_cast<double>(roi[1]), static_cast<double>(roi[3]), s.scale, s.height, s.bin_rows);
      const PooledAxis cols(static_cast<double>(roi[0]), static_cast<double>(roi[2]), s.scale, s.width, s.bin_cols);
      const T* map = x + (s.ImageOf(region) * s.channels + i % s.channels) * s.MapSize();
      for (int64_t bin = 0; bin < s.Bins(); ++bin) {
        const int64_t found = GreatestWithin(map, s.width, rows.At(bin / s.bin_cols), cols.At(bin % s.bin_cols));
        out[i * s.Bins() + bin] = found < 0 ? T(0) : map[found];
        argmax[i * s.Bins() + bin] = found;
      }
    }
  });
}

// Each block makes maps of its own, of all regions of their image.
template <typename T>
void RoiPoolGradKernel(const ExecutionContext& ctx) {
  const RegionShape s(ctx);
  const int64_t* argmax = ctx.Input("Argmax").data<int64_t>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  ParallelFor(s.images * s.channels, RowsPerBlock(s.MapSize()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* map = dx + i * s.MapSize();
      std::fill_n(map, s.MapSize(), T(0));
      const auto image = static_cast<size_t>(i / s.channels);
      for (auto region = static_cast<int64_t>(s.offsets[image]); region < static_cast<int64_t>(s.offsets[image + 1]);
           ++region) {
        const int64_t first = (region * s.channels + i % s.channels) * s.Bins();
        for (int64_t at = first; at < first + s.Bins(); ++at) {
          HR_ENFORCE(-1 <= argmax[at] && argmax[at] < s.MapSize(), OutOfRange, "input Argmax: region ", region,
                     " has index ", argmax[at], ", expected one in [-1, ", s.MapSize(), ")");
          if (argmax[at] >= 0) {
            map[argmax[at]] += d[at];
          }
        }
      }
    }
  });
}

}  // namespace

HEADRACE_REGISTER_OP(roi_pool)
    .Comment("The maximum of each bin of regions of images (R. Girshick, Fast R-CNN, 2015).")
    .Input("X", "[N, C, H, W]")
    .Input("ROIs", "[R, 4] (left, upper, right, lower), with a LoD: a sequence for each image")
    .Output("Out", "[R, C, pooled_height, pooled_width]; 0 where a bin lies beyond X")
    .Output("Argmax", "int64, dims of Out: where each maximum lies within its map, row by row; -1: nowhere")
    .With(RegionAttrs)
    .InferShape([](InferShapeContext& ctx) {
      CheckRegions(ctx);
      const DDim dims = PooledDims(ctx, ctx.InputDim("X")[1]);
      SetOutput(ctx, "Out", dims, ctx.InputType("X"));
      SetOutput(ctx, "Argmax", dims, DataType::kInt64);
    })
    .Kernel<float>(RoiPoolKernel<float>)
    .Kernel<double>(RoiPoolKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "ROIs"}, .outputs = {"Argmax"}, .no_gradient = {"ROIs"}}));

HEADRACE_REGISTER_OP(roi_pool_grad)
    .Comment("Gradient of roi_pool.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("ROIs", "as in the operator")
    .Input("Argmax", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("Argmax@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .With(RegionAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const int64_t channels = ctx.InputDim("X")[1];
      CheckRegionGradient(ctx, channels);
      EnforceDims(ctx, "Argmax", PooledDims(ctx, channels));
      EnforceType(ctx, "Argmax", DataType::kInt64);
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(RoiPoolGradKernel<float>)
    .Kernel<double>(RoiPoolGradKernel<double>);

}  // namespace headrace::ops
