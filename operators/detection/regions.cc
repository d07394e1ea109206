#include "operators/detection/regions.h"

#include <cmath>
#include <string>

#include "operators/common/shape_inference.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

void CheckPooledExtent(const int32_t& extent) {
  HR_ENFORCE(extent > 0, InvalidArgument, "attributes pooled_height and pooled_width: expected 1 or more, got ",
             extent);
}

// Doubles count pixels one by one up to there.
constexpr double kFarthestPixel = 1e15;

template <typename T>
void EnforceCorners(const LoDTensor& rois, double scale) {
  const T* corners = rois.data<T>();
  for (int64_t i = 0; i < rois.numel(); ++i) {
    HR_ENFORCE(std::abs(static_cast<double>(corners[i]) * scale) <= kFarthestPixel, InvalidArgument,
               "input ROIs: region ", i / rois.dims()[1], " has a corner at ", corners[i],
               ": expected finite numbers, and places within ", kFarthestPixel, " pixels of the image");
  }
}

}  // namespace

OpRegistrar&& RegionAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("pooled_height", "how many rows of bins a region has", 1, CheckPooledExtent)
      .Attr<int32_t>("pooled_width", "how many columns of bins a region has", 1, CheckPooledExtent)
      .With(SpatialScaleAttr);
}

OpRegistrar&& SpatialScaleAttr(OpRegistrar&& op) {
  return std::move(op).Attr<double>("spatial_scale", "factor that turns the corners of regions into positions in X",
                                    1.0, [](const double& scale) {
                                      HR_ENFORCE(std::isfinite(scale), InvalidArgument,
                                                 "attribute spatial_scale: expected a finite number, got ", scale);
                                    });
}

void CheckRegions(const InferShapeContext& ctx, HashedName x, int64_t corners) {
  EnforceRank(ctx, x, 4);
  EnforceDims(ctx, "ROIs", {-1, corners});
  EnforceSameType(ctx, "ROIs", x);
  EnforceSequences(ctx, "ROIs", 2);
}

void CheckRegionGradient(const InferShapeContext& ctx, int64_t channels) {
  CheckRegions(ctx);
  EnforceDims(ctx, "Out@GRAD", PooledDims(ctx, channels));
  EnforceSameType(ctx, "Out@GRAD", "X");
}

DDim PooledDims(const InferShapeContext& ctx, int64_t channels) {
  return {ctx.InputDim("ROIs")[0], channels, ctx.Attr<int32_t>("pooled_height"), ctx.Attr<int32_t>("pooled_width")};
}

RegionShape::RegionShape(const ExecutionContext& ctx, HashedName x_slot, HashedName rows, HashedName cols)
    : regions(ctx.Input("ROIs").dims()[0]),
      bin_rows(ctx.Attr<int32_t>(rows)),
      bin_cols(ctx.Attr<int32_t>(cols)),
      scale(ctx.Attr<double>("spatial_scale")),
      offsets(SequencesOf(ctx, "ROIs")) {
  const DDim& x = ctx.Input(x_slot).dims();
  images = x[0];
  channels = x[1];
  height = x[2];
  width = x[3];
  HR_ENFORCE(SequenceCount(offsets) == images, InvalidArgument,
             "input ROIs: expected a sequence of regions for each of the ", images, " images of input ", x_slot,
             ", got ", SequenceCount(offsets));
  const LoDTensor& rois = ctx.Input("ROIs");
  if (rois.dtype() == DataType::kFloat64) {
    EnforceCorners<double>(rois, scale);
  } else {
    EnforceCorners<float>(rois, scale);
  }
}

}  // namespace headrace::ops
