// space_to_depth: squares of pixels become channels.
#include <cstdint>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/permute.h"

namespace headrace::ops {
namespace {

// As in Fluid: a memory of [N, C / blocksize², H blocksize, W blocksize] gets channel (row, column, c) of pixel (h, w)
// as channel c of pixel (h, row, w, column), and counts as [N, C blocksize², H / blocksize, W / blocksize].
void SpaceToDepthKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const int64_t size = ctx.Attr<int64_t>("blocksize");
  void* to = ctx.Output("Out")->mutable_data(x.dtype());
  const DDim& dims = x.dims();
  if (x.numel() != 0) {
    Permute({dims[0], size, size, dims[1] / (size * size), dims[2], dims[3]}, {0, 3, 4, 1, 5, 2}, SizeOf(x.dtype()),
            x.raw_data(), to);
  }
}

void SpaceToDepthGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& d = ctx.Input("Out@GRAD");
  const int64_t size = ctx.Attr<int64_t>("blocksize");
  LoDTensor* dx = ctx.Output("X@GRAD");
  void* to = dx->mutable_data(d.dtype());
  const DDim& dims = dx->dims();
  if (d.numel() != 0) {
    Permute({dims[0], dims[1] / (size * size), dims[2], size, dims[3], size}, {0, 3, 5, 1, 2, 4}, SizeOf(d.dtype()),
            d.raw_data(), to);
  }
}

DDim SpaceToDepthDims(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 4);
  const DDim x = ctx.InputDim("X");
  const int64_t size = ctx.Attr<int64_t>("blocksize");
  for (const size_t d : {1, 2, 3}) {
    const int64_t divisor = d == 1 ? size * size : size;
    HR_ENFORCE(x[d] < 0 || x[d] % divisor == 0, InvalidArgument, "input X: expected dimension ", d,
               " to be a multiple of ", divisor, ", as attribute blocksize says, got dims ", ToString(x));
  }
  const auto over = [size](int64_t extent) { return extent < 0 ? -1 : extent / size; };
  return {x[0], x[1] < 0 ? -1 : MultiplyExtents(x[1], size * size), over(x[2]), over(x[3])};
}

OpRegistrar&& BlockSizeAttr(OpRegistrar&& op) {
  return std::move(op).Attr<int64_t>("blocksize", "how many rows and columns of pixels become one pixel", 2,
                                     [](const int64_t& size) {
                                       HR_ENFORCE(1 < size && size <= (1 << 15), InvalidArgument,
                                                  "attribute blocksize: expected a number in [2, 32768], got ", size);
                                     });
}

}  // namespace

HEADRACE_REGISTER_OP(space_to_depth)
    .Comment("Smaller images with more channels: squares of pixels become channels, in Fluid's order (YOLO v2's).")
    .Input("X", "[N, C, H, W]; C is a multiple of blocksize², H and W are multiples of blocksize")
    .Output("Out", "[N, C blocksize², H / blocksize, W / blocksize], LoD of X")
    .With(BlockSizeAttr)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Out", SpaceToDepthDims(ctx), ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .With(KernelForAllTypes, SpaceToDepthKernel)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(space_to_depth_grad)
    .Comment("Gradient of space_to_depth.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(BlockSizeAttr)
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", SpaceToDepthDims(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(SpaceToDepthGradKernel)
    .Kernel<double>(SpaceToDepthGradKernel);

}  // namespace headrace::ops
