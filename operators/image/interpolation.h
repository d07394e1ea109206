// What bilinear_interp, nearest_interp and trilinear_interp share: images or volumes of another size, whose elements
// come from places in between those of the input.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/op_args.h"
#include "operators/common/shape_inference.h"
#include "operators/convolution/window.h"
#include "operators/math/element_loop.h"
#include "operators/math/layout.h"

namespace headrace::ops {

// Where an element of the result comes from along one dimension, and by which weights.
struct PixelSource {
  int64_t low;
  int64_t high;
  double low_weight = 1;
  double high_weight = 0;
};

// The weights of an element of the input by its plane, row and column.
template <typename T>
struct PixelWeights {
  T plane;
  T row;
  T col;
  T Product() const { return plane * (row * col); }
};

// How places of the result map to those of the input.
struct PixelAlignment {
  explicit PixelAlignment(const AttributeIndex& op);

  // How far apart in the input the sources of two neighbours of the result are; 0 where the result has one place.
  template <typename Real>
  Real Ratio(int64_t in, int64_t out) const {
    if (out <= 1) {
      return 0;
    }
    const int64_t shared = corners ? 1 : 0;
    return static_cast<Real>(in - shared) / static_cast<Real>(out - shared);
  }

  bool corners;  // those of both images coincide
  bool centers;  // pixels are areas, of which the centers are compared
};

// Below, `spatial` is 2 for images, whose depth is 1, or 3 for volumes.

// The dims of the result for `x`.
DDim ResizedDims(const AttributeIndex& op, size_t spatial, const DDim& x, const Extents& size);
// The size of the result: of the first of SizeTensor, OutSize, Scale that is given, or of the attributes.
Extents ReadOutSize(const ExecutionContext& ctx, size_t spatial);
// Checks the inputs that operator and gradient share; returns the dims of Out, as far as they are known.
DDim CheckInterpolate(const InferShapeContext& ctx, size_t spatial);
OpRegistrar&& InterpolateAttrs(OpRegistrar&& op, size_t spatial);

// How the elements of the result come from those of the input. An element is one of each of `channels` that lie side by
// side; with the channels first each channel of an image counts as an image.
//
// Interpolation::Sources<Real>(alignment, extent of X, extent of Out) gives a PoolVector<PixelSource>, one for each
// place of the result, computed in Real; where Interpolation::kLinear is false, `low` alone counts.
// Interpolation::kSpatial is 2 or 3.
template <typename T, typename Interpolation, typename Real = double>
struct InterpolationPlan {
  static constexpr size_t kSpatial = Interpolation::kSpatial;

  InterpolationPlan(const ExecutionContext& ctx, const Extents& out) {
    const DDim& x = ctx.Input("X").dims();
    const bool channels_last = HasChannelsLast(ctx.attrs());
    const Extents in = ExtentsOf(x, kSpatial, "X", channels_last);
    const PixelAlignment alignment(ctx.attrs());
    planes = Interpolation::template Sources<Real>(alignment, in.depth, out.depth);
    rows = Interpolation::template Sources<Real>(alignment, in.height, out.height);
    cols = Interpolation::template Sources<Real>(alignment, in.width, out.width);
    channels = channels_last ? x.back() : 1;
    images = channels_last ? x[0] : x[0] * x[1];
    in_width = in.width;
    in_size = in.height * in.width;
    in_volume = in.Volume();
  }

  // Calls visit(place in the input, place in the result, PixelWeights<T>) for all that count, from several threads,
  // each of which has images of its own.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    if (channels == 1) {
      ForEachOf(std::integral_constant<int64_t, 1>(), visit);
    } else {
      ForEachOf(channels, visit);
    }
  }

  template <typename Channels, typename Visit>
  void ForEachOf(Channels n, const Visit& visit) const {
    const auto volume = static_cast<int64_t>(planes.size() * rows.size() * cols.size()) * n;  // of the result
    ParallelFor(images, RowsPerBlock(16 * volume),
                [&](int64_t begin, int64_t end) { ForEachOfImages(n, begin, end, begin * volume, visit); });
  }

  // Of images [begin, end), of which the first has place `at` in the result.
  template <typename Channels, typename Visit>
  void ForEachOfImages(Channels n, int64_t begin, int64_t end, int64_t at, const Visit& visit) const {
    const auto visit_all = [&](int64_t from, const PixelWeights<T>& weights) {
      for (int64_t c = 0; c < n; ++c) {
        visit(from * n + c, at + c, weights);
      }
    };
    // Of one plane, with `share` of the weight. The order of the four is Fluid's, on which sums of bytes depend.
    const auto visit_plane = [&](int64_t base, const PixelSource& y, const PixelSource& x, T share) {
      const int64_t low = base + y.low * in_width;
      if constexpr (Interpolation::kLinear) {
        const int64_t high = base + y.high * in_width;
        const auto top = static_cast<T>(y.low_weight);
        const auto bottom = static_cast<T>(y.high_weight);
        const auto left = static_cast<T>(x.low_weight);
        const auto right = static_cast<T>(x.high_weight);
        visit_all(low + x.low, {share, top, left});
        if constexpr (kSpatial == 3) {
          visit_all(low + x.high, {share, top, right});
          visit_all(high + x.low, {share, bottom, left});
        } else {
          visit_all(high + x.low, {share, bottom, left});
          visit_all(low + x.high, {share, top, right});
        }
        visit_all(high + x.high, {share, bottom, right});
      } else {
        visit_all(low + x.low, {share, T(1), T(1)});
      }
    };
    for (int64_t image = begin; image < end; ++image) {
      const int64_t base = image * in_volume;
      for (const PixelSource& z : planes) {
        for (const PixelSource& y : rows) {
          for (const PixelSource& x : cols) {
            if constexpr (kSpatial == 3) {
              visit_plane(base + z.low * in_size, y, x, static_cast<T>(z.low_weight));
              visit_plane(base + z.high * in_size, y, x, static_cast<T>(z.high_weight));
            } else {
              visit_plane(base, y, x, T(1));
            }
            at += n;
          }
        }
      }
    }
  }

  PoolVector<PixelSource> planes;
  PoolVector<PixelSource> rows;
  PoolVector<PixelSource> cols;
  int64_t images;
  int64_t channels;
  int64_t in_width;
  int64_t in_size;    // of a plane
  int64_t in_volume;  // of all planes
};

template <typename T, typename Interpolation>
void InterpolateKernel(const ExecutionContext& ctx) {
  constexpr size_t kSpatial = Interpolation::kSpatial;
  const Extents size = ReadOutSize(ctx, kSpatial);
  const LoDTensor& x_tensor = ctx.Input("X");
  LoDTensor* out_tensor = ctx.Output("Out");
  out_tensor->Resize(ResizedDims(ctx.attrs(), kSpatial, x_tensor.dims(), size));
  T* out = out_tensor->mutable_data<T>();
  if (out_tensor->numel() == 0) {
    return;
  }
  const T* x = x_tensor.data<T>();
  if constexpr (!Interpolation::kLinear) {
    InterpolationPlan<T, Interpolation>(ctx, size).ForEach(
        [=](int64_t from, int64_t to, const PixelWeights<T>&) { out[to] = x[from]; });
  } else if constexpr (std::is_floating_point_v<T>) {
    ParallelFill(out, out_tensor->numel(), T(0));
    InterpolationPlan<T, Interpolation>(ctx, size).ForEach(
        [=](int64_t from, int64_t to, const PixelWeights<T>& weights) { out[to] += weights.Product() * x[from]; });
  } else {
    // What a sum falls short of a whole number by rounding counts, since it is cut: each step is Fluid's, in float.
    PoolVector<float> sums(static_cast<size_t>(out_tensor->numel()), 0.0F);
    float* to_sums = sums.data();
    InterpolationPlan<float, Interpolation, float>(ctx, size).ForEach(
        [=](int64_t from, int64_t to, const PixelWeights<float>& weights) {
          to_sums[to] += static_cast<float>(x[from]) * weights.plane * weights.row * weights.col;
        });
    std::transform(sums.begin(), sums.end(), out, [](float sum) { return static_cast<T>(sum); });
  }
}

template <typename T, typename Interpolation>
void InterpolateGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  T* dx = x_grad->mutable_data<T>();
  ParallelFill(dx, x_grad->numel(), T(0));
  if (out_grad.numel() == 0) {
    return;
  }
  const T* d = out_grad.data<T>();
  const Extents out = ExtentsOf(out_grad.dims(), Interpolation::kSpatial, "Out@GRAD", HasChannelsLast(ctx.attrs()));
  InterpolationPlan<T, Interpolation>(ctx, out).ForEach(
      [=](int64_t from, int64_t to, const PixelWeights<T>& weights) { dx[from] += weights.Product() * d[to]; });
}

// Registers an operator and its gradient.
template <typename Interpolation>
void RegisterInterpolation(const std::string& type, const std::string& comment) {
  constexpr size_t kSpatial = Interpolation::kSpatial;
  OpRegistrar(type)
      .Comment(comment)
      .Input("X", LayoutNames(kSpatial))
      .Output("Out", "as X, of the size that is asked for")
      .With(InterpolateAttrs, kSpatial)
      .InferShape([](InferShapeContext& ctx) {
        SetKnownOutput(ctx, "Out", CheckInterpolate(ctx, kSpatial), ctx.InputType("X"));
        ctx.ShareLoD("X", "Out");
      })
      .template Kernel<float>(InterpolateKernel<float, Interpolation>)
      .template Kernel<double>(InterpolateKernel<double, Interpolation>)
      .template Kernel<uint8_t>(InterpolateKernel<uint8_t, Interpolation>)
      .template Kernel<int32_t>(InterpolateKernel<int32_t, Interpolation>)
      .Gradient(DefaultGradient({.inputs = {"X", "SizeTensor", "OutSize", "Scale"},
                                 .outputs = {},
                                 .no_gradient = {"SizeTensor", "OutSize", "Scale"}}))
      .Register();
  OpRegistrar(type + "_grad")
      .Comment("Gradient of " + type + ".")
      .Input("X", "as in the operator; only its dims are used", kShapeOnly)
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X")
      .With(InterpolateAttrs, kSpatial)
      .InferShape([](InferShapeContext& ctx) {
        EnforceDims(ctx, "Out@GRAD", CheckInterpolate(ctx, kSpatial));
        EnforceSameType(ctx, "Out@GRAD", "X");
        InferGradients(ctx, {"X"});
      })
      .template Kernel<float>(InterpolateGradKernel<float, Interpolation>)
      .template Kernel<double>(InterpolateGradKernel<double, Interpolation>)
      .Register();
}

}  // namespace headrace::ops
