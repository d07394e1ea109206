// sequence_reverse: the rows of sequences in the reverse order.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/sequence/sequence_rows.h"

namespace headrace::ops {
namespace {

struct SequenceReverse : SequenceRowsOp {
  static constexpr const char* kOut = "Y";
  static SequenceRows Of(const ExecutionContext& ctx) {
    const LoDOffsets& offsets = CheckedLevel(ctx, "X");
    PoolVector<int64_t> from;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      AppendRange(&from, static_cast<int64_t>(offsets[s]), static_cast<int64_t>(offsets[s + 1]));
      std::reverse(from.begin() + static_cast<std::ptrdiff_t>(offsets[s]), from.end());
    }
    return TakeRows(ctx, "X", std::move(from), ctx.Input("X").lod());
  }
  static int32_t LoDLevel(const InferShapeContext& ctx) { return ctx.InputLoDLevel("X"); }
};

HEADRACE_REGISTER_OPS(sequence_reverse) {
  RegisterSequenceRows<SequenceReverse>("sequence_reverse", "The rows of each sequence in the reverse order.",
                                        "[rows, ...] with LoD", "dims, dtype and LoD of X", NoAttrs, {});
}

}  // namespace
}  // namespace headrace::ops
