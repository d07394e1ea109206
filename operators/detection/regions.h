// What the operators share that pool regions of images: the regions, and the bins that each is cut into.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "framework/ddim.h"
#include "framework/lod_tensor.h"
#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace::ops {

// Declares attributes pooled_height, pooled_width and spatial_scale; or the last one alone.
OpRegistrar&& RegionAttrs(OpRegistrar&& op);
OpRegistrar&& SpatialScaleAttr(OpRegistrar&& op);

// Checks input `x`, [N, C, H, W], and ROIs, [R, `corners`] of the same dtype, with a LoD.
void CheckRegions(const InferShapeContext& ctx, HashedName x = "X", int64_t corners = 4);
// As CheckRegions, and the gradient of Out, whose regions have `channels` channels.
void CheckRegionGradient(const InferShapeContext& ctx, int64_t channels);
// The dims of what is made of the regions: [R, channels, pooled_height, pooled_width].
DDim PooledDims(const InferShapeContext& ctx, int64_t channels);

// The inputs of a kernel. Throws InvalidArgument unless there is one sequence of regions for each image, and all
// corners are finite numbers.
struct RegionShape {
  // `x`: the input that has the images; `rows` and `cols`: the attributes that say how many bins a region has.
  explicit RegionShape(const ExecutionContext& ctx, HashedName x = "X", HashedName rows = "pooled_height",
                       HashedName cols = "pooled_width");

  int64_t images;
  int64_t channels;
  int64_t height;
  int64_t width;
  int64_t regions;
  int64_t bin_rows;
  int64_t bin_cols;
  double scale;
  // Those of image n are offsets[n], …, offsets[n + 1] - 1.
  const LoDOffsets& offsets;

  int64_t MapSize() const { return height * width; }
  int64_t Bins() const { return bin_rows * bin_cols; }
  // The image that a region is part of.
  int64_t ImageOf(int64_t region) const {
    const auto after = std::upper_bound(offsets.begin(), offsets.end(), static_cast<size_t>(region));
    return after - offsets.begin() - 1;
  }
};

// A place on an axis of `extent` pixels, as a number from 0 to `extent`; any double but NaN may be given.
inline int64_t PixelWithin(double place, int64_t extent) {
  return static_cast<int64_t>(std::clamp(place, 0.0, static_cast<double>(extent)));
}

}  // namespace headrace::ops
