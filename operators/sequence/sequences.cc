#include "operators/sequence/sequences.h"

#include <numeric>

#include "framework/errors.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"

namespace headrace::ops {

const LoDOffsets& SequencesOf(const ExecutionContext& ctx, HashedName slot, size_t i) {
  const LoDTensor& x = ctx.Input(slot, i);
  HR_ENFORCE(!x.lod().empty(), InvalidArgument, "input ", slot, ": expected a LoD of one level or more, variable '",
             ctx.InputVar(slot, i)->name(), "' has none (dims ", ToString(x.dims()), ")");
  HR_ENFORCE(!x.dims().empty(), InvalidArgument, "input ", slot, ": expected rows, got a scalar with a LoD");
  CheckLoD(x.lod(), x.dims()[0]);
  return x.lod().back();
}

const LoDOffsets& SequencesOrNoneOf(const ExecutionContext& ctx, HashedName slot) {
  const LoDTensor& x = ctx.Input(slot);
  const bool none =
      x.lod_level() == 1 && x.lod()[0].size() >= 2 && x.lod()[0].back() == 0 && !x.dims().empty() && x.dims()[0] == 1;
  if (!none) {
    return SequencesOf(ctx, slot);
  }
  CheckLoD(x.lod(), 0);
  return x.lod()[0];
}

void EnforceSequences(const InferShapeContext& ctx, HashedName slot, size_t rank) {
  EnforceRankAtLeast(ctx, slot, rank);
  HR_ENFORCE(!ctx.IsRuntime() || ctx.InputLoDLevel(slot) > 0, InvalidArgument, "input ", slot,
             ": expected a LoD of one level or more, got none (dims ", ToString(ctx.InputDim(slot)), ")");
}

void EnforceLengths(const InferShapeContext& ctx, HashedName slot, int64_t count, DataType type) {
  EnforceDims(ctx, slot, ctx.InputDim(slot).size() == 2 ? DDim{count, 1} : DDim{count});
  EnforceType(ctx, slot, type);
}

PoolVector<int64_t> LengthsOf(const ExecutionContext& ctx, HashedName slot, int64_t max) {
  PoolVector<int64_t> lengths = IntegerInput(ctx, slot);
  for (size_t s = 0; s < lengths.size(); ++s) {
    HR_ENFORCE(0 <= lengths[s] && lengths[s] <= max, OutOfRange, "input ", slot, ": sequence ", s, " has length ",
               lengths[s], ", expected one in [0, ", max, "]");
  }
  return lengths;
}

SequenceRanges::SequenceRanges(const ExecutionContext& ctx, HashedName slot, HashedName lengths, Also also) {
  if (!ctx.HasInput(lengths)) {
    offsets_ = also == Also::kNone ? &SequencesOrNoneOf(ctx, slot) : &SequencesOf(ctx, slot);
    count_ = SequenceCount(*offsets_);
    return;
  }
  const DDim& dims = ctx.Input(slot).dims();
  count_ = dims[0];
  width_ = dims[1];
  if (also == Also::kOneColumn) {
    lengths_ = IntegerInput(ctx, lengths);
    const auto count = static_cast<int64_t>(lengths_.size());
    // Where each sequence is one row of one element, both are the same.
    if (width_ == 1 && std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0}) == dims[0]) {
      lengths_ = LengthsOf(ctx, lengths, dims[0]);
      column_.push_back(0);
      for (const int64_t length : lengths_) {
        column_.push_back(column_.back() + static_cast<size_t>(length));
      }
      offsets_ = &column_;
      count_ = count;
      return;
    }
    HR_ENFORCE(count_ == count, InvalidArgument, "input ", slot, ": expected ", count, " rows, or [n, 1] for the n of ",
               lengths, ", got dims ", ToString(dims));
  }
  lengths_ = LengthsOf(ctx, lengths, width_);
}

std::string SequenceRanges::Place(int64_t s, int64_t i) const {
  return padded() ? StrCat("sequence ", s, ", row ", i - Begin(s)) : StrCat("row ", i);
}

}  // namespace headrace::ops
