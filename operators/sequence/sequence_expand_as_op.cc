// sequence_expand_as: rows repeated as often as the sequences of another input are long.
#include <cstdint>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/sequence/sequence_rows.h"

namespace headrace::ops {
namespace {

struct SequenceExpandAs : SequenceRowsOp {
  static constexpr const char* kOut = "Out";
  static SequenceRows Of(const ExecutionContext& ctx) {
    const LoDOffsets& lengths = CheckedLevel(ctx, "Y");
    const LoDTensor& x = ctx.Input("X");
    HR_ENFORCE(x.dims()[0] == static_cast<int64_t>(lengths.size()) - 1, InvalidArgument, "input X: expected ",
               lengths.size() - 1, " rows, one for each sequence of Y, got dims ", ToString(x.dims()));
    PoolVector<int64_t> from;
    for (size_t s = 0; s + 1 < lengths.size(); ++s) {
      from.insert(from.end(), lengths[s + 1] - lengths[s], static_cast<int64_t>(s));
    }
    return TakeRows(ctx, "X", std::move(from), {lengths});
  }
  static int32_t LoDLevel(const InferShapeContext&) { return 1; }
};

HEADRACE_REGISTER_OPS(sequence_expand_as) {
  RegisterSequenceRows<SequenceExpandAs>(
      "sequence_expand_as", "Each row of X as often as the sequence of Y at its place is long.",
      "[number of sequences of Y, ...]", "[rows of Y, ...], with the deepest level of Y's LoD", NoAttrs,
      {{"Y", "any tensor with a LoD; only that is used"}});
}

}  // namespace
}  // namespace headrace::ops
