// pixel_shuffle: channels become pixels.
#include <cstddef>
#include <cstdint>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/permute.h"

namespace headrace::ops {
namespace {

void CheckUpscaleFactor(const int32_t& factor) {
  HR_ENFORCE(factor >= 1 && factor <= (1 << 15), InvalidArgument,
             "attribute upscale_factor: expected a number in [1, 32768], got ", factor);
}

OpRegistrar&& UpscaleFactor(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("upscale_factor", "how many rows and columns of pixels one pixel becomes", 1,
                                     CheckUpscaleFactor);
}

// Channel (c, row, column) of pixel (h, w) is channel c of pixel (h, row, w, column).
void PixelShuffleKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output("Out");
  const int64_t factor = ctx.Attr<int32_t>("upscale_factor");
  void* to = out->mutable_data(x.dtype());
  if (x.numel() != 0) {
    Permute({x.dims()[0], out->dims()[1], factor, factor, x.dims()[2], x.dims()[3]}, {0, 1, 4, 2, 5, 3},
            SizeOf(x.dtype()), x.raw_data(), to);
  }
}

void PixelShuffleGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& d = ctx.Input("Out@GRAD");
  LoDTensor* dx = ctx.Output("X@GRAD");
  const int64_t factor = ctx.Attr<int32_t>("upscale_factor");
  void* to = dx->mutable_data(d.dtype());
  if (d.numel() != 0) {
    Permute({d.dims()[0], d.dims()[1], dx->dims()[2], factor, dx->dims()[3], factor}, {0, 1, 3, 5, 2, 4},
            SizeOf(d.dtype()), d.raw_data(), to);
  }
}

// -1 if dimension `d` is unknown. Throws InvalidArgument unless `divisor` divides it.
int64_t ExtentOver(HashedName slot, const DDim& dims, size_t d, int64_t divisor) {
  HR_ENFORCE(dims[d] < 0 || dims[d] % divisor == 0, InvalidArgument, "input ", slot, ": expected dimension ", d,
             " to be a multiple of ", divisor, ", as attribute upscale_factor says, got dims ", ToString(dims));
  return dims[d] < 0 ? -1 : dims[d] / divisor;
}

int64_t ExtentTimes(int64_t extent, int64_t factor) { return extent < 0 ? -1 : MultiplyExtents(extent, factor); }

void InferPixelShuffle(InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 4);
  const DDim x = ctx.InputDim("X");
  const int64_t factor = ctx.Attr<int32_t>("upscale_factor");
  SetOutput(ctx, "Out",
            {x[0], ExtentOver("X", x, 1, factor * factor), ExtentTimes(x[2], factor), ExtentTimes(x[3], factor)},
            ctx.InputType("X"));
}

void InferPixelShuffleGrad(InferShapeContext& ctx) {
  EnforceRank(ctx, "Out@GRAD", 4);
  const DDim d = ctx.InputDim("Out@GRAD");
  const int64_t factor = ctx.Attr<int32_t>("upscale_factor");
  SetOutput(ctx, "X@GRAD",
            {d[0], ExtentTimes(d[1], factor * factor), ExtentOver("Out@GRAD", d, 2, factor),
             ExtentOver("Out@GRAD", d, 3, factor)},
            ctx.InputType("Out@GRAD"));
}

}  // namespace

HEADRACE_REGISTER_OP(pixel_shuffle)
    .Comment(
        "Larger images with fewer channels: upscale_factor² channels of a pixel become a square of pixels "
        "(W. Shi et al., 2016).")
    .Input("X", "[N, C, H, W]; C is a multiple of upscale_factor²")
    .Output("Out", "[N, C / upscale_factor², H upscale_factor, W upscale_factor]")
    .With(UpscaleFactor)
    .InferShape(InferPixelShuffle)
    .With(KernelForAllTypes, PixelShuffleKernel)
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(pixel_shuffle_grad)
    .Comment("Gradient of pixel_shuffle.")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(UpscaleFactor)
    .InferShape(InferPixelShuffleGrad)
    .Kernel<float>(PixelShuffleGradKernel)
    .Kernel<double>(PixelShuffleGradKernel);

}  // namespace headrace::ops
