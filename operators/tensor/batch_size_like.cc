#include "operators/tensor/batch_size_like.h"

#include <vector>

#include "operators/common/shape_inference.h"

namespace headrace::ops {
namespace {

// A batch of sequences has the size of their number, not of their rows.
bool CountsSequences(const AttributeIndex& op, size_t lod_level) {
  return lod_level > 0 && op.Attr<int32_t>("input_dim_idx") == 0;
}

}  // namespace

OpRegistrar&& BatchSizeLikeSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("Input", "the tensor whose dimension is taken; of one with a LoD, dimension 0 counts its sequences",
             kShapeOnly)
      .Attr<std::vector<int64_t>>("shape", "dims of Out")
      .Attr<int32_t>("input_dim_idx", "the dimension of Input that is taken", 0)
      .Attr<int32_t>("output_dim_idx", "the dimension of Out that it becomes", 0);
}

void InferBatchSizeLike(InferShapeContext& ctx) {
  DDim shape = ctx.Attr<std::vector<int64_t>>("shape");
  const DDim like = ctx.InputDim("Input");
  const size_t from = FrontAxis(ctx.Attr<int32_t>("input_dim_idx"), like.size(), "input_dim_idx");
  const size_t to = FrontAxis(ctx.Attr<int32_t>("output_dim_idx"), shape.size(), "output_dim_idx");
  for (size_t d = 0; d < shape.size(); ++d) {
    HR_ENFORCE(d == to || shape[d] >= 0, InvalidArgument,
               "attribute shape: expected known dimensions, apart from dimension ", to, ", got ", ToString(shape));
  }
  const bool sequences = CountsSequences(ctx.attrs(), static_cast<size_t>(ctx.InputLoDLevel("Input")));
  shape[to] = sequences && !ctx.IsRuntime() ? -1 : like[from];
  SetOutput(ctx, "Out", shape, TypeAttr(ctx, "dtype"));
}

void ResizeLikeBatch(const ExecutionContext& ctx, LoDTensor* out) {
  const LoDTensor& like = ctx.Input("Input");
  if (CountsSequences(ctx.attrs(), like.lod_level())) {
    DDim dims = out->dims();
    dims[FrontAxis(ctx.Attr<int32_t>("output_dim_idx"), dims.size(), "output_dim_idx")] =
        static_cast<int64_t>(like.lod().back().size()) - 1;
    out->Resize(dims);
  }
}

}  // namespace headrace::ops
