// The sequences of an input: the deepest level of its LoD, or, of a padded one, what another input says of their
// lengths.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/data_type.h"
#include "framework/memory_pool.h"
#include "framework/operator.h"
#include "framework/thread_pool.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {

// Where the sequences of variable `i` of input `slot` begin and where the last one ends. Throws InvalidArgument naming
// the slot if the variable has no LoD, or one that does not fit its rows.
const LoDOffsets& SequencesOf(const ExecutionContext& ctx, HashedName slot, size_t i = 0);

// As SequencesOf; and takes what ctc_align gives where no label stays: sequences that are all empty, and one row that
// belongs to none of them. To be called by operators that look at the rows of sequences only.
const LoDOffsets& SequencesOrNoneOf(const ExecutionContext& ctx, HashedName slot);

// Checks that an input has at least `rank` dimensions and, at run time, a LoD: a program need not declare the LoD of
// what it is fed. Throws InvalidArgument naming the slot.
void EnforceSequences(const InferShapeContext& ctx, HashedName slot, size_t rank);

inline int64_t SequenceCount(const LoDOffsets& offsets) { return static_cast<int64_t>(offsets.size()) - 1; }

// Calls visit(sequence, first row, last row + 1) for each sequence.
template <typename Visit>
void ForEachSequence(const LoDOffsets& offsets, Visit&& visit) {
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    visit(static_cast<int64_t>(s), static_cast<int64_t>(offsets[s]), static_cast<int64_t>(offsets[s + 1]));
  }
}

// The same, from several threads. `work`: what a row costs, in elements of which little is made.
template <typename Visit>
void ForEachSequenceInParallel(const LoDOffsets& offsets, int64_t work, const Visit& visit) {
  const int64_t count = SequenceCount(offsets);
  const int64_t rows = count == 0 ? 0 : static_cast<int64_t>(offsets.back());
  ParallelFor(count, RowsPerBlock(work * rows / std::max<int64_t>(1, count)), [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      const auto at = static_cast<size_t>(s);
      visit(s, static_cast<int64_t>(offsets[at]), static_cast<int64_t>(offsets[at + 1]));
    }
  });
}

// Checks an input that says how long each of `count` sequences is: [count] or [count, 1].
void EnforceLengths(const InferShapeContext& ctx, HashedName slot, int64_t count, DataType type = DataType::kInt64);

// The lengths that such an input holds. Throws OutOfRange naming the slot and the sequence unless each is in [0, max].
PoolVector<int64_t> LengthsOf(const ExecutionContext& ctx, HashedName slot, int64_t max);

// Where the sequences of input `slot` lie among its rows: one behind the other, as its LoD says, or, if there is an
// input `lengths`, padded: sequence s begins with row s * dims[1].
class SequenceRanges {
 public:
  // What the input may be besides.
  enum class Also {
    kNothing,
    kNone,       // no sequences, see SequencesOrNoneOf
    kOneColumn,  // with `lengths`: [sum of the lengths, 1], one sequence behind the other
  };

  // Throws as SequencesOf, SequencesOrNoneOf or LengthsOf does; InvalidArgument if `lengths` are neither of the rows
  // nor of one column.
  SequenceRanges(const ExecutionContext& ctx, HashedName slot, HashedName lengths, Also also = Also::kNothing);
  SequenceRanges(const SequenceRanges&) = delete;
  SequenceRanges& operator=(const SequenceRanges&) = delete;

  bool padded() const { return offsets_ == nullptr; }
  int64_t count() const { return count_; }
  int64_t Begin(int64_t s) const {
    return padded() ? s * width_ : static_cast<int64_t>((*offsets_)[static_cast<size_t>(s)]);
  }
  int64_t Length(int64_t s) const { return padded() ? lengths_[static_cast<size_t>(s)] : Begin(s + 1) - Begin(s); }
  int64_t End(int64_t s) const { return Begin(s) + Length(s); }
  // For messages: row `i` of all, which is one of sequence `s`.
  std::string Place(int64_t s, int64_t i) const;

 private:
  int64_t count_ = 0;
  int64_t width_ = 0;
  PoolVector<int64_t> lengths_;
  LoDOffsets column_;
  const LoDOffsets* offsets_ = nullptr;
};

}  // namespace headrace::ops
