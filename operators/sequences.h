// The sequences of an input: the deepest level of its LoD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "framework/operator.h"

namespace headrace::ops {

// Where the sequences of variable `i` of input `slot` begin and where the last one ends. Throws InvalidArgument naming
// the slot if the variable has no LoD, or one that does not fit its rows.
const LoDOffsets& SequencesOf(const ExecutionContext& ctx, std::string_view slot, size_t i = 0);

// Checks that an input has at least `rank` dimensions and, at run time, a LoD: a program need not declare the LoD of
// what it is fed. Throws InvalidArgument naming the slot.
void EnforceSequences(const InferShapeContext& ctx, std::string_view slot, size_t rank);

inline int64_t SequenceCount(const LoDOffsets& offsets) { return static_cast<int64_t>(offsets.size()) - 1; }

// Calls visit(sequence, first row, last row + 1) for each sequence.
template <typename Visit>
void ForEachSequence(const LoDOffsets& offsets, Visit&& visit) {
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    visit(static_cast<int64_t>(s), static_cast<int64_t>(offsets[s]), static_cast<int64_t>(offsets[s + 1]));
  }
}

}  // namespace headrace::ops
