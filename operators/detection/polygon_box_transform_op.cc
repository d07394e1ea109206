// polygon_box_transform: from offsets of corners to corners (X. Zhou et al., EAST, 2017).
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// How many pixels of the image a pixel of the maps stands for.
constexpr int64_t kPixelsPerCell = 4;

template <typename T>
void PolygonBoxTransformKernel(const ExecutionContext& ctx) {
  const LoDTensor& input = ctx.Input("Input");
  const T* x = input.data<T>();
  T* out = ctx.Output("Output")->mutable_data<T>();
  const DDim& dims = input.dims();
  ParallelFor(input.numel() == 0 ? 0 : dims[0] * dims[1] * dims[2], RowsPerBlock(dims[3]),
              [&, channels = dims[1], height = dims[2], width = dims[3]](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const bool is_x = row / height % channels % 2 == 0;
                  for (int64_t column = 0; column < width; ++column) {
                    const int64_t i = row * width + column;
                    out[i] = static_cast<T>(kPixelsPerCell * (is_x ? column : row % height)) - x[i];
                  }
                }
              });
}

}  // namespace

HEADRACE_REGISTER_OP(polygon_box_transform)
    .Comment("The corners of polygons, of how far each pixel lies from them; four pixels of the image make one here.")
    .Input("Input", "[N, C, H, W], C even: x and y of each corner, seen from the pixel")
    .Output("Output", "dims of Input: x and y of each corner, in pixels of the image")
    .InPlace("Output", "Input")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "Input", 4);
      const DDim dims = ctx.InputDim("Input");
      HR_ENFORCE(dims[1] < 0 || dims[1] % 2 == 0, InvalidArgument,
                 "input Input: expected an even number of channels, got dims ", ToString(dims));
      SetOutput(ctx, "Output", ctx.InputDim("Input"), ctx.InputType("Input"));
    })
    .Kernel<float>(PolygonBoxTransformKernel<float>)
    .Kernel<double>(PolygonBoxTransformKernel<double>);

}  // namespace headrace::ops
