// affine_grid: where the pixels of images come from that affine maps distort.
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/op_args.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"

namespace headrace::ops {
namespace {

constexpr int64_t kCoordinates = 2;  // x, y
constexpr int64_t kAffineRow = 3;    // what x, y and 1 are multiplied by

// The dims of Output: [N, H, W, 2]. H and W are -1 where they are not known.
DDim AffineGridDims(const OpArgs& args, const DDim& theta) {
  const IntsArg shape = args.Ints({"output_shape", "OutputShape", ""}, 4);
  HR_ENFORCE(shape.size() == 4, InvalidArgument, shape.Name(), ": expected [N, C, H, W], got ", shape.Values());
  DDim dims{theta[0], -1, -1, kCoordinates};
  for (const size_t i : {1, 2}) {
    const int64_t extent = shape[i + 1];
    if (extent != kUnknown) {
      HR_ENFORCE(extent > 0, InvalidArgument, shape.Name(), ": expected images that are not empty, got ",
                 shape.Values());
      dims[i] = extent;
    }
  }
  return dims;
}

// From -1 to 1, the centers of the first and the last pixel. A single one is at -1.
template <typename T>
T PlaceOfPixel(int64_t i, int64_t extent) {
  return extent == 1 ? T(-1) : static_cast<T>(-1 + 2 * static_cast<double>(i) / static_cast<double>(extent - 1));
}

template <typename T>
void AffineGridKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Output");
  const DDim dims = AffineGridDims(ctx, ctx.Input("Theta").dims());
  out_tensor->Resize(dims);
  const T* theta = ctx.Input("Theta").data<T>();
  T* out = out_tensor->mutable_data<T>();
  const int64_t height = dims[1];
  const int64_t width = dims[2];
  ParallelFor(dims[0] * height, RowsPerBlock(4 * width), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* map = theta + row / height * kCoordinates * kAffineRow;
      const T y = PlaceOfPixel<T>(row % height, height);
      for (int64_t col = 0; col < width; ++col) {
        const T x = PlaceOfPixel<T>(col, width);
        for (int64_t c = 0; c < kCoordinates; ++c) {
          const T* factors = map + c * kAffineRow;
          out[(row * width + col) * kCoordinates + c] = factors[0] * x + factors[1] * y + factors[2];
        }
      }
    }
  });
}

template <typename T>
void AffineGridGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Output@GRAD");
  const T* d = out_grad.data<T>();
  T* dtheta = ctx.Output("Theta@GRAD")->mutable_data<T>();
  const int64_t height = out_grad.dims()[1];
  const int64_t width = out_grad.dims()[2];
  const int64_t pixels = height * width;
  ParallelFor(out_grad.dims()[0] * kCoordinates, RowsPerBlock(8 * pixels), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* of_image = d + i / kCoordinates * pixels * kCoordinates + i % kCoordinates;
      const auto value = [=](int64_t pixel) { return of_image[pixel * kCoordinates]; };
      T* row = dtheta + i * kAffineRow;
      row[0] = SumOf<T>(pixels, [=](int64_t p) { return value(p) * PlaceOfPixel<T>(p % width, width); });
      row[1] = SumOf<T>(pixels, [=](int64_t p) { return value(p) * PlaceOfPixel<T>(p / width, height); });
      row[2] = SumOf<T>(pixels, value);
    }
  });
}

// The dims of Output.
DDim CheckAffineGrid(const InferShapeContext& ctx) {
  EnforceDims(ctx, "Theta", {-1, kCoordinates, kAffineRow});
  return AffineGridDims(ctx, ctx.InputDim("Theta"));
}

OpRegistrar&& AffineGridShape(OpRegistrar&& op) {
  return std::move(op)
      .Input("OutputShape", "int32 or int64 [4]: [N, C, H, W] of the image, instead of the attribute", kDispensable)
      .Attr<std::vector<int32_t>>("output_shape", "[N, C, H, W] of the image; N and C make no difference", {});
}

}  // namespace

HEADRACE_REGISTER_OP(affine_grid)
    .Comment("Where each pixel of an image comes from that an affine map distorts: Theta (x, y, 1).")
    .Input("Theta", "[N, 2, 3]: the map of each image")
    .With(AffineGridShape)
    .Output("Output",
            "[N, H, W, 2]: column and row of each place; -1 and 1 are the centers of the border pixels; LoD "
            "of Theta")
    .KernelTypeFrom("Theta")
    .InferShape([](InferShapeContext& ctx) {
      SetKnownOutput(ctx, "Output", CheckAffineGrid(ctx), ctx.InputType("Theta"));
      ctx.ShareLoD("Theta", "Output");
    })
    .Kernel<float>(AffineGridKernel<float>)
    .Kernel<double>(AffineGridKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Theta", "OutputShape"}, .outputs = {}, .no_gradient = {"OutputShape"}}));

HEADRACE_REGISTER_OP(affine_grid_grad)
    .Comment("Gradient of affine_grid.")
    .Input("Theta", "as in the operator; only its dims are used", kShapeOnly)
    .With(AffineGridShape)
    .Input("Output@GRAD", "gradient of Output")
    .Output("Theta@GRAD", "dims of Theta")
    .KernelTypeFrom("Output@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Output@GRAD", CheckAffineGrid(ctx));
      EnforceSameType(ctx, "Output@GRAD", "Theta");
      InferGradients(ctx, {"Theta"});
    })
    .Kernel<float>(AffineGridGradKernel<float>)
    .Kernel<double>(AffineGridGradKernel<double>);

}  // namespace headrace::ops
