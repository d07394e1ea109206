#include "operators/sequence/sequence_rows.h"

namespace headrace::ops {
namespace {

// The dims of `x` with another number of rows.
DDim WithRows(DDim x, int64_t rows) {
  x[0] = rows;
  return x;
}

}  // namespace

DDim SequenceRowsOp::DeclaredDims(const InferShapeContext& ctx) { return WithRows(ctx.InputDim("X"), -1); }

const LoDOffsets& CheckedLevel(const ExecutionContext& ctx, HashedName slot, int64_t level) {
  const LoDTensor& tensor = ctx.Input(slot);
  const LoD& lod = tensor.lod();
  HR_ENFORCE(!lod.empty(), InvalidArgument, "input ", slot, ": expected a LoD of one level or more, got none (dims ",
             ToString(tensor.dims()), ")");
  HR_ENFORCE(!tensor.dims().empty(), InvalidArgument, "input ", slot, ": expected rows, got a scalar with a LoD");
  CheckLoD(lod, tensor.dims()[0]);
  const auto depth = static_cast<int64_t>(lod.size());
  HR_ENFORCE(-1 <= level && level < depth, InvalidArgument, "attribute ref_level: expected a level of input ", slot,
             ", which has ", depth, ", or -1, got ", level);
  return lod[static_cast<size_t>(level < 0 ? depth - 1 : level)];
}

void AppendRange(PoolVector<int64_t>* rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    rows->push_back(row);
  }
}

SequenceRows TakeRows(const ExecutionContext& ctx, HashedName slot, PoolVector<int64_t> from, LoD lod) {
  const auto count = static_cast<int64_t>(from.size());
  return {std::move(from), WithRows(ctx.Input(slot).dims(), count), std::move(lod)};
}

const int64_t* PerSequence(const ExecutionContext& ctx, HashedName slot, int64_t n) {
  const LoDTensor& tensor = ctx.Input(slot);
  HR_ENFORCE(tensor.numel() == n, InvalidArgument, "input ", slot, ": expected ", n,
             " elements, one for each sequence, got dims ", ToString(tensor.dims()));
  return tensor.data<int64_t>();
}

}  // namespace headrace::ops
