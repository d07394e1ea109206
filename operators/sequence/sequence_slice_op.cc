// sequence_slice: parts of sequences.
#include <cstdint>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/sequence/sequence_rows.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

struct SequenceSlice : SequenceRowsOp {
  static constexpr const char* kOut = "Out";
  static SequenceRows Of(const ExecutionContext& ctx) {
    const LoDOffsets& offsets = CheckedLevel(ctx, "X");
    const auto n = static_cast<int64_t>(offsets.size()) - 1;
    const int64_t* begin = PerSequence(ctx, "Offset", n);
    const int64_t* length = PerSequence(ctx, "Length", n);
    PoolVector<int64_t> from;
    LoDOffsets lod = {0};
    for (int64_t s = 0; s < n; ++s) {
      const auto first = static_cast<int64_t>(offsets[static_cast<size_t>(s)]);
      const auto rows = static_cast<int64_t>(offsets[static_cast<size_t>(s) + 1]) - first;
      HR_ENFORCE(begin[s] >= 0 && length[s] >= 0 && begin[s] <= rows && length[s] <= rows - begin[s], OutOfRange,
                 "inputs Offset and Length: expected a part of sequence ", s, " of ", rows, " rows, got ", length[s],
                 " rows from ", begin[s], " on");
      AppendRange(&from, first + begin[s], first + begin[s] + length[s]);
      lod.push_back(from.size());
    }
    return TakeRows(ctx, "X", std::move(from), {std::move(lod)});
  }
  static int32_t LoDLevel(const InferShapeContext&) { return 1; }
  static void Check(const InferShapeContext& ctx) {
    EnforceLengths(ctx, "Offset", -1);
    EnforceLengths(ctx, "Length", -1);
  }
};

HEADRACE_REGISTER_OPS(sequence_slice) {
  RegisterSequenceRows<SequenceSlice>("sequence_slice", "A part of each sequence.", "[rows, ...] with LoD",
                                      "[..., ...], with LoD", NoAttrs,
                                      {{"Offset", "int64 [number of sequences, 1]: where each part begins"},
                                       {"Length", "int64 [number of sequences, 1]: how long it is"}});
}

}  // namespace
}  // namespace headrace::ops
