// roi_align, psroi_pool, prroi_pool: averages over the bins of regions.
//
// In each, an element of the result is a sum over a rectangle of X in which a pixel's weight is that of its row times
// that of its column. They differ in how the weights along an axis follow from where the region begins and ends.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/regions.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// The weights of pixels begin, begin + 1, … of an axis; all others have none.
template <typename T>
struct PixelWeights {
  int64_t begin;
  int64_t count;
  const T* weights;
};

// Those of all bins of all regions along one axis.
template <typename T>
class BinWeights {
 public:
  // Adds the next bin, which has pixels [begin, end) at most. The result, for its weights, is valid until the next one
  // is added; they are zeros.
  T* Add(int64_t begin, int64_t end) {
    const int64_t count = std::max<int64_t>(end - begin, 0);
    bins_.push_back({begin, count, weights_.size()});
    weights_.resize(weights_.size() + static_cast<size_t>(count));
    return weights_.data() + bins_.back().at;
  }
  PixelWeights<T> operator[](int64_t bin) const {
    const Bin& found = bins_[static_cast<size_t>(bin)];
    return {found.begin, found.count, weights_.data() + found.at};
  }

 private:
  struct Bin {
    int64_t begin;
    int64_t count;
    size_t at;
  };
  PoolVector<Bin> bins_;
  PoolVector<T> weights_;
};

// An axis of X with `extent` pixels, of which a region has those from `low` to `high`, in the unit of ROIs.
struct RegionAxis {
  double low;
  double high;
  double scale;
  int64_t extent;
  int64_t bins;
};

// Each bin is the mean of X at `sampling_ratio`² places, or of about one for each pixel.
struct AlignedAverage {
  static constexpr const char* kType = "roi_align";
  static constexpr bool kByPosition = false;
  static constexpr bool kMovesRegions = false;

  static OpRegistrar&& Attrs(OpRegistrar&& op) {
    return std::move(op).Attr<int32_t>(
        "sampling_ratio", "how many rows and columns of places a bin has; 0 or less: one for each pixel, rounded up",
        -1);
  }

  explicit AlignedAverage(const ExecutionContext& ctx) : ratio(ctx.Attr<int32_t>("sampling_ratio")) {}

  // Places up to a pixel beyond the border count as on it; those further out are 0.
  template <typename T>
  void Add(const RegionAxis& axis, BinWeights<T>* to) const {
    const double first = axis.low * axis.scale;
    const double size = std::max((axis.high - axis.low) * axis.scale, 1.0) / static_cast<double>(axis.bins);
    const double places = ratio > 0 ? ratio : std::ceil(size);
    const double step = size / places;
    const auto last_pixel = static_cast<double>(axis.extent - 1);
    for (int64_t bin = 0; bin < axis.bins; ++bin) {
      const double begin = first + static_cast<double>(bin) * size;
      const int64_t low = PixelWithin(std::floor(begin), axis.extent);
      const int64_t high = PixelWithin(std::floor(begin + size) + 2, axis.extent);
      // A border pixel stands for places on both sides of it.
      const int64_t from = std::min(low, std::max<int64_t>(axis.extent - 1, 0));
      T* weights = to->Add(from, std::max(high, std::min<int64_t>(1, axis.extent)));
      // Places that may count, of which there may be far more.
      const auto skipped = static_cast<int64_t>(std::max(std::floor((-1 - begin) / step) - 1, 0.0));
      const auto end =
          static_cast<int64_t>(std::min(places, std::ceil((static_cast<double>(axis.extent) - begin) / step) + 1));
      for (int64_t k = skipped; k < end && axis.extent > 0; ++k) {
        const double place = begin + (static_cast<double>(k) + 0.5) * step;
        if (place < -1 || place > static_cast<double>(axis.extent)) {
          continue;
        }
        const double within = std::clamp(place, 0.0, last_pixel);
        const double pixel = std::floor(within);
        const double beyond = within - pixel;
        T* at = weights + (static_cast<int64_t>(pixel) - from);
        at[0] += static_cast<T>((1 - beyond) / places);
        if (beyond > 0) {
          at[1] += static_cast<T>(beyond / places);
        }
      }
    }
  }

  double ratio;
};

// Each bin is the mean of the pixels that it touches, in a channel of its own.
struct PositionAverage {
  static constexpr const char* kType = "psroi_pool";
  static constexpr bool kByPosition = true;
  static constexpr bool kMovesRegions = false;

  static OpRegistrar&& Attrs(OpRegistrar&& op) {
    return std::move(op).Attr<int32_t>("output_channels", "channels of Out");
  }

  explicit PositionAverage(const ExecutionContext& /*ctx*/) {}

  template <typename T>
  void Add(const RegionAxis& axis, BinWeights<T>* to) const {
    const double first = std::round(axis.low) * axis.scale;
    const double last = (std::round(axis.high) + 1) * axis.scale;
    const double size = std::max(last - first, 0.1) / static_cast<double>(axis.bins);
    for (int64_t bin = 0; bin < axis.bins; ++bin) {
      const int64_t begin = PixelWithin(std::floor(first + static_cast<double>(bin) * size), axis.extent);
      const int64_t end = PixelWithin(std::ceil(first + static_cast<double>(bin + 1) * size), axis.extent);
      T* weights = to->Add(begin, end);
      for (int64_t i = begin; i < end; ++i) {
        weights[i - begin] = static_cast<T>(1.0 / static_cast<double>(end - begin));
      }
    }
  }
};

// ∫ max(0, 1 - |t|) dt from -∞ to x: what a pixel at 0 has of a line that ends at x.
double PixelUpTo(double x) {
  const double t = std::clamp(x, -1.0, 1.0);
  return t < 0 ? 0.5 * (1 + t) * (1 + t) : 1 - 0.5 * (1 - t) * (1 - t);
}

// Each bin is the mean over its area of X, interpolated between pixels and 0 beyond those of the border.
struct PreciseAverage {
  static constexpr const char* kType = "prroi_pool";
  static constexpr bool kByPosition = false;
  static constexpr bool kMovesRegions = true;

  static OpRegistrar&& Attrs(OpRegistrar&& op) { return std::move(op); }

  explicit PreciseAverage(const ExecutionContext& /*ctx*/) {}

  static double BinSize(const RegionAxis& axis) {
    return std::max((axis.high - axis.low) * axis.scale, 0.0) / static_cast<double>(axis.bins);
  }

  template <typename T>
  void Add(const RegionAxis& axis, BinWeights<T>* to) const {
    const double size = BinSize(axis);
    for (int64_t bin = 0; bin < axis.bins; ++bin) {
      const double first = axis.low * axis.scale + static_cast<double>(bin) * size;
      const double last = first + size;
      const int64_t begin = PixelWithin(std::floor(first), axis.extent);
      const int64_t end = size > 0 ? PixelWithin(std::ceil(last) + 1, axis.extent) : begin;
      T* weights = to->Add(begin, end);
      for (int64_t i = begin; i < end; ++i) {
        const auto pixel = static_cast<double>(i);
        weights[i - begin] = static_cast<T>((PixelUpTo(last - pixel) - PixelUpTo(first - pixel)) / size);
      }
    }
  }

  // The weights of X at one place.
  template <typename T>
  static void AddPlace(double place, int64_t extent, BinWeights<T>* to) {
    const int64_t begin = PixelWithin(std::floor(place), extent);
    const int64_t end = PixelWithin(std::floor(place) + 2, extent);
    T* weights = to->Add(begin, end);
    for (int64_t i = begin; i < end; ++i) {
      weights[i - begin] = static_cast<T>(std::max(0.0, 1 - std::abs(place - static_cast<double>(i))));
    }
  }
};

template <typename T>
RegionAxis RowsOf(const RegionShape& s, const T* roi) {
  return {static_cast<double>(roi[1]), static_cast<double>(roi[3]), s.scale, s.height, s.bin_rows};
}

template <typename T>
RegionAxis ColsOf(const RegionShape& s, const T* roi) {
  return {static_cast<double>(roi[0]), static_cast<double>(roi[2]), s.scale, s.width, s.bin_cols};
}

template <typename T, typename Average>
struct AveragePlan {
  explicit AveragePlan(const ExecutionContext& ctx) : s(ctx) {
    const Average average(ctx);
    const T* roi = ctx.Input("ROIs").data<T>();
    for (int64_t r = 0; r < s.regions; ++r, roi += 4) {
      average.Add(RowsOf(s, roi), &rows);
      average.Add(ColsOf(s, roi), &cols);
    }
    channels = Average::kByPosition ? s.channels / s.Bins() : s.channels;
  }

  PixelWeights<T> Row(int64_t region, int64_t bin) const { return rows[region * s.bin_rows + bin]; }
  PixelWeights<T> Col(int64_t region, int64_t bin) const { return cols[region * s.bin_cols + bin]; }
  // The channel of X that bin `bin` of channel `c` of the result comes from.
  int64_t Source(int64_t c, int64_t bin) const { return Average::kByPosition ? c * s.Bins() + bin : c; }

  RegionShape s;
  BinWeights<T> rows;
  BinWeights<T> cols;
  int64_t channels;  // of the result
};

template <typename T>
T WeightedSum(const T* map, int64_t width, const PixelWeights<T>& rows, const PixelWeights<T>& cols) {
  T sum = 0;
  for (int64_t y = 0; y < rows.count; ++y) {
    const T* row = map + (rows.begin + y) * width + cols.begin;
    T of_row = 0;
    for (int64_t x = 0; x < cols.count; ++x) {
      of_row += cols.weights[x] * row[x];
    }
    sum += rows.weights[y] * of_row;
  }
  return sum;
}

template <typename T, typename Average>
void RegionAverageKernel(const ExecutionContext& ctx) {
  const AveragePlan<T, Average> plan(ctx);
  const RegionShape& s = plan.s;
  const T* x = ctx.Input("X").data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  ParallelFor(s.regions * plan.channels, RowsPerBlock(16 * s.Bins()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t region = i / plan.channels;
      const int64_t c = i % plan.channels;
      const T* image = x + s.ImageOf(region) * s.channels * s.MapSize();
      T* to = out + i * s.Bins();
      for (int64_t bin = 0; bin < s.Bins(); ++bin) {
        to[bin] = WeightedSum(image + plan.Source(c, bin) * s.MapSize(), s.width, plan.Row(region, bin / s.bin_cols),
                              plan.Col(region, bin % s.bin_cols));
      }
    }
  });
}

// Each block makes maps of its own, of all regions of their image.
template <typename T, typename Average>
void AverageGradientOfX(const ExecutionContext& ctx, const AveragePlan<T, Average>& plan, T* dx) {
  const RegionShape& s = plan.s;
  const T* d = ctx.Input("Out@GRAD").data<T>();
  ParallelFor(s.images * s.channels, RowsPerBlock(s.MapSize()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* map = dx + i * s.MapSize();
      std::fill_n(map, s.MapSize(), T(0));
      const auto image = static_cast<size_t>(i / s.channels);
      const int64_t source = i % s.channels;
      const int64_t c = Average::kByPosition ? source / s.Bins() : source;
      const int64_t first_bin = Average::kByPosition ? source % s.Bins() : 0;
      const int64_t last_bin = Average::kByPosition ? first_bin + 1 : s.Bins();
      for (auto region = static_cast<int64_t>(s.offsets[image]); region < static_cast<int64_t>(s.offsets[image + 1]);
           ++region) {
        for (int64_t bin = first_bin; bin < last_bin; ++bin) {
          const T value = d[(region * plan.channels + c) * s.Bins() + bin];
          const PixelWeights<T> rows = plan.Row(region, bin / s.bin_cols);
          const PixelWeights<T> cols = plan.Col(region, bin % s.bin_cols);
          for (int64_t y = 0; y < rows.count; ++y) {
            T* to = map + (rows.begin + y) * s.width + cols.begin;
            const T of_row = value * rows.weights[y];
            for (int64_t column = 0; column < cols.count; ++column) {
              to[column] += of_row * cols.weights[column];
            }
          }
        }
      }
    }
  });
}

// The mean over a bin changes as its end moves by what X is at that end less what the mean is; a corner of the region
// moves the ends of all its bins.
template <typename T>
void PreciseGradientOfRegions(const ExecutionContext& ctx, const AveragePlan<T, PreciseAverage>& plan, T* drois) {
  const RegionShape& s = plan.s;
  const T* x = ctx.Input("X").data<T>();
  const T* rois = ctx.Input("ROIs").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  ParallelFor(s.regions, RowsPerBlock(64 * s.channels * s.Bins()), [&](int64_t begin, int64_t end) {
    for (int64_t region = begin; region < end; ++region) {
      const T* roi = rois + 4 * region;
      T* to = drois + 4 * region;
      std::fill_n(to, 4, T(0));
      const RegionAxis axes[2] = {ColsOf(s, roi), RowsOf(s, roi)};
      const double sizes[2] = {PreciseAverage::BinSize(axes[0]), PreciseAverage::BinSize(axes[1])};
      if (sizes[0] <= 0 || sizes[1] <= 0) {
        continue;
      }
      BinWeights<T> ends[2];
      for (size_t a = 0; a < 2; ++a) {
        for (int64_t i = 0; i <= axes[a].bins; ++i) {
          PreciseAverage::AddPlace(axes[a].low * axes[a].scale + static_cast<double>(i) * sizes[a], axes[a].extent,
                                   &ends[a]);
        }
      }
      const T* map = x + s.ImageOf(region) * s.channels * s.MapSize();
      const T* value = d + region * s.channels * s.Bins();
      for (int64_t c = 0; c < s.channels; ++c, map += s.MapSize()) {
        for (int64_t bin = 0; bin < s.Bins(); ++bin, ++value) {
          const PixelWeights<T> bins[2] = {plan.Col(region, bin % s.bin_cols), plan.Row(region, bin / s.bin_cols)};
          const int64_t places[2] = {bin % s.bin_cols, bin / s.bin_cols};
          const T mean = WeightedSum(map, s.width, bins[1], bins[0]);
          for (size_t a = 0; a < 2; ++a) {
            const auto at = [&](int64_t i) {
              return a == 0 ? WeightedSum(map, s.width, bins[1], ends[0][i])
                            : WeightedSum(map, s.width, ends[1][i], bins[0]);
            };
            const T factor = *value * static_cast<T>(axes[a].scale / sizes[a]);
            const T of_begin = (mean - at(places[a])) * factor;
            const T of_end = (at(places[a] + 1) - mean) * factor;
            const auto count = static_cast<T>(axes[a].bins);
            const auto place = static_cast<T>(places[a]);
            to[a] += of_begin * (1 - place / count) + of_end * (1 - (place + 1) / count);
            to[2 + a] += of_begin * place / count + of_end * (place + 1) / count;
          }
        }
      }
    }
  });
}

template <typename T, typename Average>
void RegionAverageGradKernel(const ExecutionContext& ctx) {
  const AveragePlan<T, Average> plan(ctx);
  if (T* dx = MutableOrNull<T>(ctx, "X@GRAD")) {
    AverageGradientOfX(ctx, plan, dx);
  }
  if constexpr (Average::kMovesRegions) {
    if (T* drois = MutableOrNull<T>(ctx, "ROIs@GRAD")) {
      PreciseGradientOfRegions(ctx, plan, drois);
    }
  }
}

// The channels of Out.
template <typename Average>
int64_t PooledChannels(const InferShapeContext& ctx) {
  const int64_t channels = ctx.InputDim("X")[1];
  if constexpr (!Average::kByPosition) {
    return channels;
  } else {
    const int64_t bins = int64_t{ctx.Attr<int32_t>("pooled_height")} * ctx.Attr<int32_t>("pooled_width");
    const int64_t pooled = ctx.Attr<int32_t>("output_channels");
    HR_ENFORCE(pooled > 0, InvalidArgument, "attribute output_channels: expected 1 or more, got ", pooled);
    HR_ENFORCE(channels < 0 || (channels % bins == 0 && channels / bins == pooled), InvalidArgument,
               "input X: expected output_channels * pooled_height * pooled_width channels, ", pooled, " * ", bins,
               ", got dims ", ToString(ctx.InputDim("X")));
    return pooled;
  }
}

template <typename Average>
void RegisterRegionAverage(const char* comment) {
  const std::string type = Average::kType;
  OpRegistrar forward(type);
  OpRegistrar backward(type + "_grad");
  const std::vector<std::string> fixed =
      Average::kMovesRegions ? std::vector<std::string>{} : std::vector<std::string>{"ROIs"};
  More(forward)
      .Comment(comment)
      .Input("X", Average::kByPosition ? "[N, output_channels * pooled_height * pooled_width, H, W]" : "[N, C, H, W]")
      .Input("ROIs", "[R, 4] (left, upper, right, lower), with a LoD: a sequence for each image")
      .Output("Out", "[R, C or output_channels, pooled_height, pooled_width]")
      .With(RegionAttrs)
      .With(Average::Attrs)
      .InferShape([](InferShapeContext& ctx) {
        CheckRegions(ctx);
        SetOutput(ctx, "Out", PooledDims(ctx, PooledChannels<Average>(ctx)), ctx.InputType("X"));
      })
      .template Kernel<float>(RegionAverageKernel<float, Average>)
      .template Kernel<double>(RegionAverageKernel<double, Average>)
      .Gradient(DefaultGradient({.inputs = {"X", "ROIs"}, .outputs = {}, .no_gradient = fixed}))
      .Register();
  More(backward)
      .Comment("Gradient of " + type + ".")
      .Input("X", "as in the operator", Average::kMovesRegions ? kPlain : kShapeOnly)
      .Input("ROIs", "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X", Average::kMovesRegions ? kDispensable : kPlain)
      .With(RegionAttrs)
      .With(Average::Attrs)
      .InferShape([](InferShapeContext& ctx) {
        CheckRegionGradient(ctx, PooledChannels<Average>(ctx));
        InferGradients(ctx, {"X"});
        if constexpr (Average::kMovesRegions) {
          InferGradients(ctx, {"ROIs"});
        }
      })
      .template Kernel<float>(RegionAverageGradKernel<float, Average>)
      .template Kernel<double>(RegionAverageGradKernel<double, Average>);
  if constexpr (Average::kMovesRegions) {
    More(backward).Output("ROIs@GRAD", "dims of ROIs", kDispensable);
  }
  More(backward).Register();
}

HEADRACE_REGISTER_OPS(region_average_ops) {
  RegisterRegionAverage<AlignedAverage>(
      "The mean of each bin of regions of images, from places between pixels (K. He et al., Mask R-CNN, 2017).");
  RegisterRegionAverage<PositionAverage>(
      "The mean of each bin of regions of images, each in a channel of its own (J. Dai et al., R-FCN, 2016).");
  RegisterRegionAverage<PreciseAverage>(
      "The mean over the area of each bin of regions of images (B. Jiang et al., PrRoI pooling, 2018).");
}

}  // namespace
}  // namespace headrace::ops
