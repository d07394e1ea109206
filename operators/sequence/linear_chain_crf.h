// The conditional random field that linear_chain_crf and crf_decoding share: labels of the rows of a sequence that
// depend on their neighbours (J. Lafferty, A. McCallum and F. Pereira, Conditional random fields, 2001).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "framework/lod_tensor.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/math/element_loop.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {

// Fluid's Transition [K + 2, K]: the weights of a label at the start, at the end, and of one label after another.
template <typename T>
struct CrfWeights {
  CrfWeights(const T* transition, int64_t count)
      : labels(count), start(transition), end(transition + count), next(transition + 2 * count) {}
  T Next(int64_t from, int64_t to) const { return next[from * labels + to]; }
  int64_t labels;
  const T* start;
  const T* end;
  const T* next;
};

// Labels without a LoD are taken to have that of Emission; padded ones need none.
inline void EnforceSequencesOfLabels(const ExecutionContext& ctx) {
  if (ctx.HasInput("Length")) {
    return;
  }
  const LoDTensor& label = ctx.Input("Label");
  const LoDOffsets& offsets = ctx.Input("Emission").lod().back();
  HR_ENFORCE(label.lod().empty() || label.lod().back() == offsets, InvalidArgument,
             "input Label: expected the sequences of input Emission, ", ToString(LoD{offsets}), ", got ",
             ToString(label.lod()));
}

// Calls visit(sequence, first row, rows) for each sequence that is not empty, from several threads. `work`: what a row
// costs, in elements of which little is made.
template <typename Visit>
void ForEachFilledSequence(const SequenceRanges& sequences, int64_t work, const Visit& visit) {
  const int64_t count = sequences.count();
  int64_t rows = 0;
  for (int64_t s = 0; s < count; ++s) {
    rows += sequences.Length(s);
  }
  const auto visit_if_filled = [&](int64_t s) {
    if (sequences.Length(s) > 0) {
      visit(s, sequences.Begin(s), sequences.Length(s));
    }
  };
  ParallelForEach(count, visit_if_filled, work * rows / std::max<int64_t>(1, count));
}

// What a row of the dynamic programs costs: a weight for each pair of labels.
inline int64_t WorkOfRow(int64_t labels, int64_t work_of_pair) { return labels * labels * work_of_pair; }

// Checks the inputs that the operators share; returns the dims of the labels: [rows, 1], or [N, rows of each].
inline DDim CheckCrf(const InferShapeContext& ctx) {
  const bool padded = ctx.HasInput("Length");
  EnforceRank(ctx, "Emission", padded ? 3 : 2);
  const DDim emission = ctx.InputDim("Emission");
  const int64_t labels = emission.back();
  HR_ENFORCE(labels != 0, InvalidArgument, "input Emission: expected at least one label, got dims ",
             ToString(emission));
  EnforceDims(ctx, "Transition", {labels < 0 ? -1 : AddExtents(labels, 2), labels});
  EnforceSameType(ctx, "Transition", "Emission");
  const DDim label = {emission[0], padded ? emission[1] : 1};
  if (ctx.HasInput("Label")) {
    const bool column = padded && ctx.InputDim("Label").size() == 3;
    EnforceDims(ctx, "Label", column ? DDim{label[0], label[1], 1} : label);
    EnforceNumbers(ctx, "Label");
  }
  if (padded) {
    EnforceElements(ctx, "Length", emission[0]);
    EnforceType(ctx, "Length", DataType::kInt64);
  }
  return label;
}

// Declares the input Length.
inline OpRegistrar&& CrfLength(OpRegistrar&& op) {
  return std::move(op).Input(
      "Length", "int64 [N], a column or a row: how many rows each sequence has; the others are padding", kDispensable);
}

}  // namespace headrace::ops
