// grid_sampler: images at places between pixels.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/image/pixels_around.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

struct GridShape {
  explicit GridShape(const ExecutionContext& ctx) {
    const DDim& x = ctx.Input("X").dims();
    const DDim& grid = ctx.Input("Grid").dims();
    images = x[0];
    channels = x[1];
    height = x[2];
    width = x[3];
    places = grid[1] * grid[2];
  }

  int64_t MapSize() const { return height * width; }

  int64_t images;
  int64_t channels;
  int64_t height;
  int64_t width;
  int64_t places;  // of an image
};

// Some places of an image, one beside the other, which all of its maps share.
template <typename T>
class Places {
 public:
  static constexpr int64_t kMax = 128;
  static constexpr int64_t kPixels = 4;  // around each

  // Those that `count` pairs of coordinates name.
  Places(const GridShape& s, const T* grid, int64_t count) : count_(count) {
    for (int64_t i = 0; i < count; ++i) {
      const PixelsAround<T> place((grid[2 * i + 1] + 1) * static_cast<T>(s.height - 1) / 2,
                                  (grid[2 * i] + 1) * static_cast<T>(s.width - 1) / 2, s.height, s.width);
      const T nothing = place.is_number ? T(0) : std::numeric_limits<T>::quiet_NaN();
      below_[i] = place.below + nothing;
      beside_[i] = place.beside + nothing;
      for (int64_t k = 0; k < kPixels; ++k) {
        pixel_[k][i] = 0;
        weight_[k][i] = kOutside + nothing;
      }
      place.ForEachOf(s.width, [&](int64_t k, int64_t pixel, T weight) {
        pixel_[k][i] = pixel;
        weight_[k][i] = weight;
      });
    }
  }

  // What is there in `map`.
  void Values(const T* map, T* values) const {
    for (int64_t i = 0; i < count_; ++i) {
      T sum = 0;
      for (int64_t k = 0; k < kPixels; ++k) {
        const T pixel = map[pixel_[k][i]];  // read in any case: a branch would cost more
        sum += weight_[k][i] < 0 ? T(0) : weight_[k][i] * pixel;
      }
      values[i] = sum;
    }
  }

  // The transpose: adds each of `values` to the pixels of `map` around its place.
  void AddTo(const T* values, T* map) const {
    for (int64_t i = 0; i < count_; ++i) {
      for (int64_t k = 0; k < kPixels; ++k) {
        map[pixel_[k][i]] += weight_[k][i] >= 0 ? weight_[k][i] * values[i] : T(0);
      }
    }
  }

  // Adds how the values change with the column and with the row of each place, `by` times.
  void AddSlopes(const T* map, const T* by, T* across, T* down) const {
    for (int64_t i = 0; i < count_; ++i) {
      T at[kPixels];
      for (int64_t k = 0; k < kPixels; ++k) {
        const T pixel = map[pixel_[k][i]];
        at[k] = weight_[k][i] < 0 ? T(0) : pixel;
      }
      across[i] += by[i] * ((1 - below_[i]) * (at[1] - at[0]) + below_[i] * (at[3] - at[2]));
      down[i] += by[i] * ((1 - beside_[i]) * (at[2] - at[0]) + beside_[i] * (at[3] - at[1]));
    }
  }

 private:
  static constexpr T kOutside = -1;  // in place of the weight of a pixel that there is not

  int64_t count_;
  int64_t pixel_[kPixels][kMax];
  T weight_[kPixels][kMax];
  T below_[kMax];
  T beside_[kMax];
};

// Calls visit(image, first place, Places) for the places of all images, part by part, from several threads.
template <typename T, typename Visit>
void ForEachPart(const GridShape& s, const T* grid, const Visit& visit) {
  const int64_t parts = (s.places + Places<T>::kMax - 1) / Places<T>::kMax;
  const auto visit_part = [=](int64_t part) {
    const int64_t image = part / parts;
    const int64_t first = part % parts * Places<T>::kMax;
    visit(image, first,
          Places<T>(s, grid + 2 * (image * s.places + first), std::min(Places<T>::kMax, s.places - first)));
  };
  ParallelForEach(s.images * parts, visit_part, 16 * s.channels * Places<T>::kMax);
}

template <typename T>
void GridSamplerKernel(const ExecutionContext& ctx) {
  const GridShape s(ctx);
  const T* x = ctx.Input("X").data<T>();
  T* out = ctx.Output("Output")->mutable_data<T>();
  ForEachPart(s, ctx.Input("Grid").data<T>(), [=](int64_t image, int64_t first, const Places<T>& places) {
    for (int64_t map = image * s.channels; map < (image + 1) * s.channels; ++map) {
      places.Values(x + map * s.MapSize(), out + map * s.places + first);
    }
  });
}

template <typename T>
void GridSamplerGradKernel(const ExecutionContext& ctx) {
  const GridShape s(ctx);
  const T* x = ctx.Input("X").data<T>();
  const T* grid = ctx.Input("Grid").data<T>();
  const T* d = ctx.Input("Output@GRAD").data<T>();
  if (T* dx = MutableOrNull<T>(ctx, "X@GRAD")) {
    ParallelFill(dx, ctx.Input("X").numel(), T(0));
    // Each thread has maps of its own, a few at a time for the sake of the places, which it has to find again.
    constexpr int64_t kMaps = 16;
    const int64_t groups = (s.channels + kMaps - 1) / kMaps;
    const auto add_to_group = [=](int64_t group) {
      const int64_t image = group / groups;
      const int64_t first_map = image * s.channels + group % groups * kMaps;
      const int64_t end_map = std::min(first_map + kMaps, (image + 1) * s.channels);
      for (int64_t first = 0; first < s.places; first += Places<T>::kMax) {
        const Places<T> places(s, grid + 2 * (image * s.places + first), std::min(Places<T>::kMax, s.places - first));
        for (int64_t map = first_map; map < end_map; ++map) {
          places.AddTo(d + map * s.places + first, dx + map * s.MapSize());
        }
      }
    };
    ParallelForEach(s.images * groups, add_to_group, kMaps * 16 * s.places);
  }
  if (T* dgrid = MutableOrNull<T>(ctx, "Grid@GRAD")) {
    ForEachPart(s, grid, [=](int64_t image, int64_t first, const Places<T>& places) {
      T across[Places<T>::kMax] = {};
      T down[Places<T>::kMax] = {};
      for (int64_t map = image * s.channels; map < (image + 1) * s.channels; ++map) {
        places.AddSlopes(x + map * s.MapSize(), d + map * s.places + first, across, down);
      }
      T* to = dgrid + 2 * (image * s.places + first);
      for (int64_t i = 0; i < std::min(Places<T>::kMax, s.places - first); ++i) {
        to[2 * i] = across[i] * static_cast<T>(s.width - 1) / 2;
        to[2 * i + 1] = down[i] * static_cast<T>(s.height - 1) / 2;
      }
    });
  }
}

// The dims of Output.
DDim CheckGrid(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 4);
  const DDim x = ctx.InputDim("X");
  EnforceDims(ctx, "Grid", {x[0], -1, -1, 2});
  EnforceSameType(ctx, "Grid", "X");
  const DDim grid = ctx.InputDim("Grid");
  return {x[0] < 0 ? grid[0] : x[0], x[1], grid[1], grid[2]};
}

}  // namespace

HEADRACE_REGISTER_OP(grid_sampler)
    .Comment(
        "Images at the places of a grid, from the four pixels around each (M. Jaderberg et al., Spatial Transformer"
        " Networks, 2015).")
    .Input("X", "[N, C, H, W]")
    .Input("Grid", "[N, GH, GW, 2]: column and row of each place; -1 and 1 are the centers of the border pixels")
    .Output("Output", "[N, C, GH, GW]")
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Output", CheckGrid(ctx), ctx.InputType("X"));
      ctx.ShareLoD("X", "Output");
    })
    .Kernel<float>(GridSamplerKernel<float>)
    .Kernel<double>(GridSamplerKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Grid"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(grid_sampler_grad)
    .Comment("Gradient of grid_sampler.")
    .Input("X", "as in the operator")
    .Input("Grid", "as in the operator")
    .Input("Output@GRAD", "gradient of Output")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Grid@GRAD", "dims of Grid", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Output@GRAD", CheckGrid(ctx));
      EnforceSameType(ctx, "Output@GRAD", "X");
      InferGradients(ctx, {"X", "Grid"});
    })
    .Kernel<float>(GridSamplerGradKernel<float>)
    .Kernel<double>(GridSamplerGradKernel<double>);

}  // namespace headrace::ops
