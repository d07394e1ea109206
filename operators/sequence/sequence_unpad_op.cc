// sequence_unpad: the rows of padded sequences without the padding.
#include <cstdint>
#include <utility>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/sequence/sequence_rows.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// The dims of padded sequences without the first; rows of single elements have a width of 1, as in Fluid.
DDim UnpaddedDims(const DDim& x) {
  DDim dims(x.begin() + 1, x.end());
  if (dims.size() == 1) {
    dims.push_back(1);
  }
  return dims;
}

struct Unpad : SequenceRowsOp {
  static constexpr const char* kOut = "Out";
  static SequenceRows Of(const ExecutionContext& ctx) {
    const DDim& x = ctx.Input("X").dims();
    const int64_t* length = PerSequence(ctx, "Length", x[0]);
    SequenceRows rows;
    LoDOffsets lod = {0};
    for (int64_t s = 0; s < x[0]; ++s) {
      HR_ENFORCE(0 <= length[s] && length[s] <= x[1], OutOfRange, "input Length: sequence ", s, " has length ",
                 length[s], ", expected one in [0, ", x[1], "]");
      AppendRange(&rows.from, s * x[1], s * x[1] + length[s]);
      lod.push_back(rows.from.size());
    }
    rows.dims = UnpaddedDims(x);
    rows.dims[0] = static_cast<int64_t>(rows.from.size());
    rows.lod = {std::move(lod)};
    return rows;
  }
  static DDim RowDims(const DDim& x) {
    DDim dims = UnpaddedDims(x);
    dims[0] = MultiplyExtents(x[0], x[1]);
    return dims;
  }
  static DDim DeclaredDims(const InferShapeContext& ctx) {
    DDim dims = UnpaddedDims(ctx.InputDim("X"));
    dims[0] = -1;
    return dims;
  }
  static int32_t LoDLevel(const InferShapeContext&) { return 1; }
  static void Check(const InferShapeContext& ctx) { EnforceLengths(ctx, "Length", ctx.InputDim("X")[0]); }
};

HEADRACE_REGISTER_OPS(sequence_unpad) {
  RegisterSequenceRows<Unpad>("sequence_unpad", "The rows of padded sequences without the padding.",
                              "[number of sequences, length, ...]", "[rows, ...], with LoD; [rows, 1] if X has rank 2",
                              NoAttrs,
                              {{"Length", "int64 [number of sequences] or [number of sequences, 1]: their lengths"}});
}

}  // namespace
}  // namespace headrace::ops
