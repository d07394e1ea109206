// The sequences of a tensor, longest first: the order in which a dynamic RNN takes them, so that those which have ended
// are always the last.
#pragma once

#include <cstddef>
#include <vector>

#include "framework/export.h"
#include "framework/lod_tensor.h"

namespace headrace {

class HEADRACE_API LoDRankTable {
 public:
  struct Item {
    size_t index;   // which sequence
    size_t length;  // its number of parts at `level`
  };

  // Sorts the sequences of level `level` of `lod` by length, longest first; equal ones keep their order. Throws
  // InvalidArgument if there is no such level.
  void Reset(const LoD& lod, size_t level);

  const std::vector<Item>& items() const { return items_; }
  size_t level() const { return level_; }
  // The levels above `level`, which none of the operators changes.
  const LoD& coarse_lod() const { return coarse_lod_; }
  size_t max_length() const { return items_.empty() ? 0 : items_.front().length; }
  // How many sequences have a part number `step`.
  size_t ActiveAt(size_t step) const;

 private:
  std::vector<Item> items_;
  size_t level_ = 0;
  LoD coarse_lod_;
};

}  // namespace headrace
