// edit_distance: how many insertions, deletions and substitutions turn one sequence into another (V. Levenshtein,
// 1966).
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/scratch.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// `row`: n + 1 elements to work with.
int64_t Distance(const int64_t* a, int64_t m, const int64_t* b, int64_t n, int64_t* row) {
  std::iota(row, row + n + 1, 0);
  for (int64_t i = 0; i < m; ++i) {
    int64_t diagonal = row[0];
    row[0] = i + 1;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t substitution = diagonal + static_cast<int64_t>(a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substitution});
    }
  }
  return row[n];
}

void EditDistanceKernel(const ExecutionContext& ctx) {
  const SequenceRanges hyps(ctx, "Hyps", "HypsLength", SequenceRanges::Also::kNone);
  const SequenceRanges refs(ctx, "Refs", "RefsLength", SequenceRanges::Also::kNone);
  HR_ENFORCE(hyps.count() == refs.count(), InvalidArgument, "input Refs: expected ", hyps.count(),
             " sequences, as Hyps has, got ", refs.count());
  const bool normalized = ctx.Attr<bool>("normalized");
  const int64_t* a = ctx.Input("Hyps").data<int64_t>();
  const int64_t* b = ctx.Input("Refs").data<int64_t>();
  float* out = ctx.Output("Out")->Resize({hyps.count(), 1}).mutable_data<float>();
  *ctx.Output("SequenceNum")->mutable_data<int64_t>() = hyps.count();
  int64_t work = 0;
  for (int64_t s = 0; s < refs.count(); ++s) {
    work += 4 * hyps.Length(s) * refs.Length(s);
  }
  const auto compare = [=, &hyps, &refs](int64_t s) {
    const int64_t n = refs.Length(s);
    HR_ENFORCE(n > 0 || !normalized, InvalidArgument, "input Refs: sequence ", s,
               " is empty; a normalized distance is divided by its length");
    Tensor row_memory;
    const int64_t distance =
        Distance(a + hyps.Begin(s), hyps.Length(s), b + refs.Begin(s), n, Scratch<int64_t>(&row_memory, n + 1));
    out[s] = static_cast<float>(distance) / (normalized ? static_cast<float>(n) : 1.0F);
  };
  ParallelForEach(refs.count(), compare, work / std::max<int64_t>(1, refs.count()));
}

void InferEditDistance(InferShapeContext& ctx) {
  const bool padded = ctx.HasInput("HypsLength");
  HR_ENFORCE(padded == ctx.HasInput("RefsLength"), InvalidArgument,
             "inputs HypsLength and RefsLength: expected both or none of them");
  for (const std::string slot : {"Hyps", "Refs"}) {
    if (padded) {
      EnforceRank(ctx, slot, 2);
      EnforceDims(ctx, slot, {ctx.InputDim("Hyps")[0], -1});
      EnforceLengths(ctx, slot + "Length", ctx.InputDim("Hyps")[0]);
    } else {
      EnforceSequences(ctx, slot, 2);
      EnforceDims(ctx, slot, {-1, 1});
    }
    EnforceType(ctx, slot, DataType::kInt64);
  }
  SetOutput(ctx, "SequenceNum", {1}, DataType::kInt64);
  if (!ctx.IsRuntime()) {  // otherwise the kernel knows how many there are
    SetOutput(ctx, "Out", {padded ? ctx.InputDim("Hyps")[0] : -1, 1}, DataType::kFloat32);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(edit_distance)
    .Comment("How many insertions, deletions and substitutions turn each sequence of Hyps into that of Refs.")
    .Input("Hyps", "int64 [rows, 1] with LoD, or [N, rows] with HypsLength")
    .Input("Refs", "int64 [rows, 1] with LoD, or [N, rows] with RefsLength; as many sequences")
    .Input("HypsLength", "int64 [N] or [N, 1]: how many rows each sequence of Hyps has; the others are padding",
           kDispensable)
    .Input("RefsLength", "the same of Refs; both or none are given", kDispensable)
    .Output("Out", "float32 [number of sequences, 1]")
    .Output("SequenceNum", "int64 [1]: the number of sequences")
    .Attr<bool>("normalized", "whether distances are divided by the length of the sequence of Refs", false)
    .InferShape(InferEditDistance)
    .Kernel<int64_t>(EditDistanceKernel);

}  // namespace headrace::ops
