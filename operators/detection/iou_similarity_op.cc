// iou_similarity: how much the boxes of two lists overlap.
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

template <typename T>
void IouSimilarityKernel(const ExecutionContext& ctx) {
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const T pixel = PixelOf<T>(ctx.Attr<bool>("box_normalized"));
  const MatrixSize s(*out_tensor);
  ParallelFor(s.rows, RowsPerBlock(8 * s.cols), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < s.cols; ++c) {
        out[r * s.cols + c] = BoxOverlap(x + r * kBoxSize, y + c * kBoxSize, pixel);
      }
    }
  });
}

}  // namespace

HEADRACE_REGISTER_OP(iou_similarity)
    .Comment("Intersection over union of each box of X with each box of Y; 0 if they do not meet.")
    .Input("X", "[N, 4]: xmin, ymin, xmax, ymax of each box")
    .Input("Y", "[M, 4], dtype of X")
    .Output("Out", "[N, M], LoD of X")
    .Attr<bool>("box_normalized", "false: boxes are made of pixels, of which the last one counts", true)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "X", {-1, kBoxSize});
      EnforceDims(ctx, "Y", {-1, kBoxSize});
      EnforceSameType(ctx, "Y", "X");
      SetOutput(ctx, "Out", {ctx.InputDim("X")[0], ctx.InputDim("Y")[0]}, ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Kernel<float>(IouSimilarityKernel<float>)
    .Kernel<double>(IouSimilarityKernel<double>);

}  // namespace headrace::ops
