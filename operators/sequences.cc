#include "operators/sequences.h"

#include "framework/errors.h"
#include "operators/kernel_util.h"

namespace headrace::ops {

const LoDOffsets& SequencesOf(const ExecutionContext& ctx, std::string_view slot, size_t i) {
  const LoDTensor& x = ctx.Input(slot, i);
  HR_ENFORCE(!x.lod().empty(), InvalidArgument, "input ", slot, ": expected a LoD of one level or more, variable '",
             ctx.op().Input(slot)[i], "' has none (dims ", ToString(x.dims()), ")");
  HR_ENFORCE(!x.dims().empty(), InvalidArgument, "input ", slot, ": expected rows, got a scalar with a LoD");
  CheckLoD(x.lod(), x.dims()[0]);
  return x.lod().back();
}

void EnforceSequences(const InferShapeContext& ctx, std::string_view slot, size_t rank) {
  EnforceRankAtLeast(ctx, slot, rank);
  HR_ENFORCE(!ctx.IsRuntime() || ctx.InputLoDLevel(slot) > 0, InvalidArgument, "input ", slot,
             ": expected a LoD of one level or more, got none (dims ", ToString(ctx.InputDim(slot)), ")");
}

}  // namespace headrace::ops
