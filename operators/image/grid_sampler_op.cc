// grid_sampler: images at places between pixels.
#include <algorithm>
#include <cstdint>

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

template <typename T>
PixelsAround<T> PlaceOf(const GridShape& s, const T* grid) {
  return PixelsAround<T>((grid[1] + 1) * static_cast<T>(s.height - 1) / 2,
                         (grid[0] + 1) * static_cast<T>(s.width - 1) / 2, s.height, s.width);
}

template <typename T>
void GridSamplerKernel(const ExecutionContext& ctx) {
  const GridShape s(ctx);
  const T* x = ctx.Input("X").data<T>();
  const T* grid = ctx.Input("Grid").data<T>();
  T* out = ctx.Output("Output")->mutable_data<T>();
  ParallelFor(s.images * s.places, RowsPerBlock(16 * s.channels), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PixelsAround<T> place = PlaceOf(s, grid + 2 * i);
      const int64_t first_map = i / s.places * s.channels;
      for (int64_t map = first_map; map < first_map + s.channels; ++map) {
        out[map * s.places + i % s.places] = place.Value(x + map * s.MapSize(), s.width);
      }
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
    ParallelFor(s.images * s.channels, RowsPerBlock(s.MapSize() + 16 * s.places), [=](int64_t begin, int64_t end) {
      for (int64_t map = begin; map < end; ++map) {
        T* to = dx + map * s.MapSize();
        std::fill_n(to, s.MapSize(), T(0));
        for (int64_t i = 0; i < s.places; ++i) {
          const T value = d[map * s.places + i];
          PlaceOf(s, grid + 2 * (map / s.channels * s.places + i)).ForEach(s.width, [=](int64_t pixel, T weight) {
            to[pixel] += weight * value;
          });
        }
      }
    });
  }
  if (T* dgrid = MutableOrNull<T>(ctx, "Grid@GRAD")) {
    ParallelFor(s.images * s.places, RowsPerBlock(16 * s.channels), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const PixelsAround<T> place = PlaceOf(s, grid + 2 * i);
        T along_x = 0;
        T along_y = 0;
        const int64_t first_map = i / s.places * s.channels;
        for (int64_t map = first_map; map < first_map + s.channels; ++map) {
          const T value = d[map * s.places + i % s.places];
          along_x += value * place.SlopeAcross(x + map * s.MapSize(), s.width);
          along_y += value * place.SlopeDown(x + map * s.MapSize(), s.width);
        }
        dgrid[2 * i] = along_x * static_cast<T>(s.width - 1) / 2;
        dgrid[2 * i + 1] = along_y * static_cast<T>(s.height - 1) / 2;
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
