// roi_perspective_transform: regions with four corners, straightened to rectangles.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/regions.h"
#include "operators/image/pixels_around.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

constexpr int64_t kQuadSize = 8;
constexpr int64_t kMatrixSize = 9;
constexpr double kSamePlace = 1e-4;  // Fluid's

// Corners in X, clockwise from that of the upper left.
struct Quad {
  template <typename T>
  Quad(const T* corners, double scale) {
    for (size_t i = 0; i < 4; ++i) {
      x[i] = static_cast<double>(corners[2 * i]) * scale;
      y[i] = static_cast<double>(corners[2 * i + 1]) * scale;
    }
  }

  double Side(size_t from) const {
    const size_t to = (from + 1) % 4;
    return std::hypot(x[from] - x[to], y[from] - y[to]);
  }

  // Whether a place lies within it or on its border.
  bool Has(double px, double py) const {
    bool inside = false;
    for (size_t i = 0; i < 4; ++i) {
      const size_t j = (i + 1) % 4;
      const double low = std::min(y[i], y[j]);
      const double high = std::max(y[i], y[j]);
      if (high - low < kSamePlace) {
        const bool beside = px < std::min(x[i], x[j]) - kSamePlace || px > std::max(x[i], x[j]) + kSamePlace;
        if (std::abs(py - y[i]) < kSamePlace && !beside) {
          return true;
        }
        continue;
      }
      const double crossing = x[i] + (py - y[i]) * (x[j] - x[i]) / (y[j] - y[i]);
      if (std::abs(crossing - px) < kSamePlace && py > low - kSamePlace && py < high + kSamePlace) {
        return true;
      }
      if (py >= low + kSamePlace && py <= high + kSamePlace && crossing > px + kSamePlace) {
        inside = !inside;
      }
    }
    return inside;
  }

  double x[4];
  double y[4];
};

// The matrix that maps pixels of the result, (column, row, 1), to places in X, times the third number. The result is
// as high as it may be, and as wide as the shape of the region makes it then; what is left of its width is not used.
void PerspectiveOf(const Quad& q, int64_t height, int64_t width, double* m) {
  const double rows = static_cast<double>(std::max<int64_t>(2, height)) - 1;
  const double length = (q.Side(1) + q.Side(3)) / 2;
  const double wide = std::round((q.Side(0) + q.Side(2)) / 2 * rows / length) + 1;
  // Without a height, all of the width.
  const double most = static_cast<double>(width);
  const double cols = std::max(2.0, wide < most ? wide : most) - 1;
  const double dx1 = q.x[1] - q.x[2];
  const double dx2 = q.x[3] - q.x[2];
  const double dx3 = q.x[0] - q.x[1] + q.x[2] - q.x[3];
  const double dy1 = q.y[1] - q.y[2];
  const double dy2 = q.y[3] - q.y[2];
  const double dy3 = q.y[0] - q.y[1] + q.y[2] - q.y[3];
  const double area = dx1 * dy2 - dx2 * dy1 + 1e-5;
  m[6] = (dx3 * dy2 - dx2 * dy3) / area / cols;
  m[7] = (dx1 * dy3 - dx3 * dy1) / area / rows;
  m[8] = 1;
  m[0] = (q.x[1] - q.x[0]) / cols + m[6] * q.x[1];
  m[1] = (q.x[3] - q.x[0]) / rows + m[7] * q.x[3];
  m[2] = q.x[0];
  m[3] = (q.y[1] - q.y[0]) / cols + m[6] * q.y[1];
  m[4] = (q.y[3] - q.y[0]) / rows + m[7] * q.y[3];
  m[5] = q.y[0];
}

template <typename T>
struct PerspectivePlan {
  explicit PerspectivePlan(const ExecutionContext& ctx) : s(ctx, "X", "transformed_height", "transformed_width") {
    places.resize(static_cast<size_t>(s.regions * s.Bins()), Nowhere());
    used.resize(places.size(), 0);
    matrices.resize(static_cast<size_t>(s.regions * kMatrixSize));
    const T* rois = ctx.Input("ROIs").data<T>();
    ParallelFor(s.regions, RowsPerBlock(64 * s.Bins()), [&](int64_t begin, int64_t end) {
      for (int64_t region = begin; region < end; ++region) {
        const Quad quad(rois + region * kQuadSize, s.scale);
        double* m = matrices.data() + region * kMatrixSize;
        PerspectiveOf(quad, s.bin_rows, s.bin_cols, m);
        for (int64_t pixel = 0; pixel < s.Bins(); ++pixel) {
          Locate(quad, m, pixel, region * s.Bins() + pixel);
        }
      }
    });
  }

  PixelsAround<T> Nowhere() const { return PixelsAround<T>(T(-2), T(-2), s.height, s.width); }

  // Sets the place of pixel `pixel` of a region, number `at` of all, if it lies within region and image.
  void Locate(const Quad& quad, const double* m, int64_t pixel, int64_t at) {
    const auto col = static_cast<double>(pixel % s.bin_cols);
    const auto row = static_cast<double>(pixel / s.bin_cols);
    const double w = m[6] * col + m[7] * row + m[8];
    const double x = (m[0] * col + m[1] * row + m[2]) / w;
    const double y = (m[3] * col + m[4] * row + m[5]) / w;
    const auto right = static_cast<double>(s.width - 1);
    const auto bottom = static_cast<double>(s.height - 1);
    constexpr double kBorder = 0.5 + kSamePlace;  // the border of the outermost pixels belongs to the image
    const bool in_image = x >= -kBorder && x <= right + kBorder && y >= -kBorder && y <= bottom + kBorder;
    if (in_image && quad.Has(x, y)) {
      used[static_cast<size_t>(at)] = 1;
      places[static_cast<size_t>(at)] =
          PixelsAround<T>(static_cast<T>(std::max(0.0, std::min(y, bottom))),
                          static_cast<T>(std::max(0.0, std::min(x, right))), s.height, s.width);
    }
  }

  RegionShape s;
  PoolVector<PixelsAround<T>> places;
  PoolVector<uint8_t> used;  // whether there is a place
  PoolVector<double> matrices;
};

template <typename T>
void PerspectiveKernel(const ExecutionContext& ctx) {
  const PerspectivePlan<T> plan(ctx);
  const RegionShape& s = plan.s;
  const T* x = ctx.Input("X").data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  std::copy(plan.used.begin(), plan.used.end(), ctx.Output("Mask")->mutable_data<int32_t>());
  T* matrices = ctx.Output("TransformMatrix")->mutable_data<T>();
  std::transform(plan.matrices.begin(), plan.matrices.end(), matrices, [](double v) { return static_cast<T>(v); });
  ParallelFor(s.regions * s.channels, RowsPerBlock(16 * s.Bins()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t region = i / s.channels;
      const T* map = x + (s.ImageOf(region) * s.channels + i % s.channels) * s.MapSize();
      for (int64_t pixel = 0; pixel < s.Bins(); ++pixel) {
        out[i * s.Bins() + pixel] = plan.places[static_cast<size_t>(region * s.Bins() + pixel)].Value(map, s.width);
      }
    }
  });
}

// Each block makes maps of its own, of all regions of their image.
template <typename T>
void PerspectiveGradKernel(const ExecutionContext& ctx) {
  const PerspectivePlan<T> plan(ctx);
  const RegionShape& s = plan.s;
  const T* d = ctx.Input("Out@GRAD").data<T>();
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  ParallelFor(s.images * s.channels, RowsPerBlock(s.MapSize()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* map = dx + i * s.MapSize();
      std::fill_n(map, s.MapSize(), T(0));
      const auto image = static_cast<size_t>(i / s.channels);
      for (auto region = static_cast<int64_t>(s.offsets[image]); region < static_cast<int64_t>(s.offsets[image + 1]);
           ++region) {
        for (int64_t pixel = 0; pixel < s.Bins(); ++pixel) {
          const T value = d[(region * s.channels + i % s.channels) * s.Bins() + pixel];
          plan.places[static_cast<size_t>(region * s.Bins() + pixel)].ForEach(
              s.width, [&](int64_t at, T weight) { map[at] += weight * value; });
        }
      }
    }
  });
}

// The dims of Out.
DDim CheckPerspective(const InferShapeContext& ctx) {
  CheckRegions(ctx, "X", kQuadSize);
  const int64_t height = ctx.Attr<int32_t>("transformed_height");
  const int64_t width = ctx.Attr<int32_t>("transformed_width");
  HR_ENFORCE(height > 0 && width > 0, InvalidArgument,
             "attributes transformed_height and transformed_width: expected 1 or more, got ", height, " and ", width);
  return {ctx.InputDim("ROIs")[0], ctx.InputDim("X")[1], height, width};
}

OpRegistrar&& PerspectiveInputs(OpRegistrar&& op, unsigned x_flags) {
  return std::move(op)
      .Input("X", x_flags == kPlain ? "[N, C, H, W]" : "as in the operator; only its dims are used", x_flags)
      .Input("ROIs", "[R, 8], the corners (x, y) clockwise from the upper left, with a LoD: a sequence for each image")
      .With(SpatialScaleAttr)
      .Attr<int32_t>("transformed_height", "height of the result")
      .Attr<int32_t>("transformed_width", "width of the result");
}

}  // namespace

HEADRACE_REGISTER_OP(roi_perspective_transform)
    .Comment("Regions of images with four corners, as rectangles.")
    .With(PerspectiveInputs, kPlain)
    .Output("Out", "[R, C, transformed_height, transformed_width]; 0 where it lies beyond region or image")
    .Output("Mask", "int32 [R, 1, transformed_height, transformed_width]: 1 where it does not")
    .Output("TransformMatrix", "[R, 9]: rows of the matrices that map (column, row, 1) to places in X")
    .Output("Out2InIdx", "not written: memory for intermediate results in Fluid", kDispensable)
    .Output("Out2InWeights", "not written: memory for intermediate results in Fluid", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = CheckPerspective(ctx);
      SetOutput(ctx, "Out", dims, ctx.InputType("X"));
      SetOutput(ctx, "Mask", {dims[0], 1, dims[2], dims[3]}, DataType::kInt32);
      SetOutput(ctx, "TransformMatrix", {dims[0], kMatrixSize}, ctx.InputType("X"));
      ctx.ShareLoD("ROIs", "Out");
    })
    .Kernel<float>(PerspectiveKernel<float>)
    .Kernel<double>(PerspectiveKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "ROIs"}, .outputs = {}, .no_gradient = {"ROIs"}}));

HEADRACE_REGISTER_OP(roi_perspective_transform_grad)
    .Comment("Gradient of roi_perspective_transform.")
    .With(PerspectiveInputs, kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Input("Mask@GRAD", "not used", kDispensable)
    .Input("TransformMatrix@GRAD", "not used", kDispensable)
    .Input("Out2InIdx@GRAD", "not used", kDispensable)
    .Input("Out2InWeights@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", CheckPerspective(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(PerspectiveGradKernel<float>)
    .Kernel<double>(PerspectiveGradKernel<double>);

}  // namespace headrace::ops
