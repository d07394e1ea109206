// gather_tree: whole sequences from the steps of a beam search.
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

template <typename T>
void GatherTreeKernel(const ExecutionContext& ctx) {
  const LoDTensor& ids_tensor = ctx.Input("Ids");
  const DDim& dims = ids_tensor.dims();
  const int64_t steps = dims[0];
  const int64_t beams = dims[2];
  const int64_t step_size = dims[1] * beams;
  const T* ids = ids_tensor.data<T>();
  const T* parents = ctx.Input("Parents").data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  if (ids_tensor.numel() == 0) {
    return;
  }
  const auto trace = [=](int64_t place) {
    const int64_t sentence = place / beams * beams;
    int64_t from = place;
    for (int64_t t = steps; t-- > 0;) {
      out[t * step_size + place] = ids[t * step_size + from];
      const int64_t parent = parents[t * step_size + from];
      HR_ENFORCE(0 <= parent && parent < beams, OutOfRange, "input Parents: expected numbers in [0, ", beams,
                 "), there is a ", parent, " in step ", t);
      from = sentence + parent;
    }
  };
  ParallelForEach(step_size, trace, 4 * steps);
}

}  // namespace

HEADRACE_REGISTER_OP(gather_tree)
    .Comment("The sequences that end in the beams of the last step of a beam search: from each, back along Parents.")
    .Input("Ids", "int32 or int64 [steps, N, beams]: the token that each step has chosen for each beam")
    .Input("Parents", "dims and dtype of Ids: the beam of the previous step that each continues, in [0, beams)")
    .Output("Out", "dims and dtype of Ids: the sequences")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "Ids", 3);
      EnforceDims(ctx, "Parents", ctx.InputDim("Ids"));
      EnforceSameType(ctx, "Parents", "Ids");
      SetOutput(ctx, "Out", ctx.InputDim("Ids"), ctx.InputType("Ids"));
    })
    .Kernel<int32_t>(GatherTreeKernel<int32_t>)
    .Kernel<int64_t>(GatherTreeKernel<int64_t>);

}  // namespace headrace::ops
