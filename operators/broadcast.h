// A small tensor over a large one: broadcast into it (elementwise operators) or reduced from it (reductions).
// Neighbouring dimensions of the same kind are merged, so that what remains is a few loops over long runs.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "framework/ddim.h"

namespace headrace::ops {

class BroadcastPlan {
 public:
  // `kept[d]` says whether the small tensor has dimension d of `large`; the others are 1 in it.
  BroadcastPlan(const DDim& large, const std::vector<bool>& kept) {
    for (size_t d = 0; d < large.size(); ++d) {
      if (large[d] == 1) {
        continue;
      }
      if (!groups_.empty() && groups_.back().kept == kept[d]) {
        groups_.back().extent *= large[d];
      } else {
        groups_.push_back({large[d], kept[d], 0, 0});
      }
    }
    if (groups_.empty()) {
      groups_.push_back({1, true, 0, 0});
    }
    int64_t stride = 1;
    for (size_t g = groups_.size(); g > 0; --g) {
      Group& group = groups_[g - 1];
      if (group.kept) {
        group.small_stride = stride;
        stride *= group.extent;
      }
    }
  }

  // Calls run(large_offset, small_offset, n, kept) for each innermost run of n elements of the large tensor, in their
  // order: if `kept`, they meet n elements of the small tensor, else the one at small_offset.
  template <typename Run>
  void ForEachRun(Run&& run) const {
    const Group& inner = groups_.back();
    int64_t runs = 1;
    for (size_t g = 0; g + 1 < groups_.size(); ++g) {
      runs *= groups_[g].extent;
    }
    if (inner.extent == 0) {
      return;
    }
    std::vector<Group> outer(groups_.begin(), groups_.end() - 1);
    int64_t small_offset = 0;
    for (int64_t r = 0; r < runs; ++r) {
      run(r * inner.extent, small_offset, inner.extent, inner.kept);
      for (size_t g = outer.size(); g > 0; --g) {
        Group& group = outer[g - 1];
        small_offset += group.small_stride;
        if (++group.index < group.extent) {
          break;
        }
        small_offset -= group.small_stride * group.extent;
        group.index = 0;
      }
    }
  }

 private:
  struct Group {
    int64_t extent;
    bool kept;
    int64_t small_stride;  // 0 unless kept
    int64_t index;
  };
  std::vector<Group> groups_;  // outermost first
};

}  // namespace headrace::ops
