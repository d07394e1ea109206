// What the operators on a rank table share: sequences taken step by step, the longest first, so that those which have
// ended are always the last and nothing is padded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "framework/lod_rank_table.h"
#include "framework/lod_tensor.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/sequence/lod_units.h"

namespace headrace::ops {

// Checks that `x` has the sequences of the table. Returns the offsets of their parts.
const LoDOffsets& PartsOf(const LoDRankTable& table, const LoDTensor& x);

// Calls visit(part, rows, lod) for the parts of step `step`, in the order of the table; `lod` as of
// operators/sequence/lod_units.h.
template <typename Visit>
void ForEachPartOfStep(const LoDRankTable& table, const LoDTensor& x, size_t step, LoD* lod, Visit&& visit) {
  const LoDOffsets& parts = x.lod()[table.level()];
  for (const auto& item : table.items()) {
    if (item.length <= step) {
      return;
    }
    visit(Unit(x, table.level() + 1, parts[item.index] + step, lod));
  }
}

// Checks the kind of a variable that is not nullptr. `slot`: what it is, for the message.
void EnforceKind(const VarDesc* desc, VarKind kind, HashedName slot);

// Declares the input RankTable.
OpRegistrar&& TableSlot(OpRegistrar&& op);
void EnforceTable(const InferShapeContext& ctx);

// Dims of X, but for the rows.
DDim StepDims(const InferShapeContext& ctx, HashedName slot);

// A gradient operator that reads some slots of the operator; if one of X and Out is an array, its gradient is changed
// in place.
GradientMaker RankGradient(std::vector<std::string> inputs, std::string array_slot);

}  // namespace headrace::ops
