// Operators that move elements: each dimension of the result has a map from its indices to those of the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "framework/ddim.h"
#include "framework/lod_tensor.h"
#include "framework/memory_pool.h"
#include "framework/thread_pool.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {

// Where the elements of a result come from. Known dims only.
class IndexMap {
 public:
  // Element i of dimension d of a tensor of dims `to` is element from(d, i) of one of dims `from_dims`, of the same
  // rank; -1: it comes from nowhere.
  template <typename From>
  IndexMap(const DDim& from_dims, const DDim& to, From&& from) : from_dims_(from_dims), to_dims_(to) {
    for (size_t d = 0; d < to.size() && !Empty(to); ++d) {
      PoolVector<int64_t>& map = maps_.emplace_back(static_cast<size_t>(to[d]));
      for (int64_t i = 0; i < to[d]; ++i) {
        map[static_cast<size_t>(i)] = from(d, i);
      }
    }
  }

  // Element rows[i] of the first dimension becomes element i; the others stay.
  static IndexMap OfRows(const DDim& from_dims, const PoolVector<int64_t>& rows);

  // Calls visit(to, from, n) for each run of n elements that lie side by side in both tensors; `from` is -1 for those
  // that come from nowhere. In the order of `to`.
  template <typename Visit>
  void ForEachRun(const Visit& visit) const {
    if (!Empty(to_dims_)) {
      const Plan plan = MakePlan();
      ForEachRunOf(plan, 0, plan.rows, 0, plan.segments.size(), visit);
    }
  }

  // The same, from several threads, in any order.
  template <typename Visit>
  void ForEachRunInParallel(const Visit& visit) const {
    if (Empty(to_dims_)) {
      return;
    }
    const Plan plan = MakePlan();
    if (plan.rows > 1) {
      ParallelFor(plan.rows, RowsPerBlock(plan.row),
                  [&](int64_t begin, int64_t end) { ForEachRunOf(plan, begin, end, 0, plan.segments.size(), visit); });
      return;
    }
    const auto segments = static_cast<int64_t>(plan.segments.size());
    ParallelFor(segments, RowsPerBlock(plan.row / segments), [&](int64_t begin, int64_t end) {
      ForEachRunOf(plan, 0, 1, static_cast<size_t>(begin), static_cast<size_t>(end), visit);
    });
  }

  // Fills `out`, which has its dims, with the elements of `x`, and with `fill` (an element of x's dtype, zero if
  // nullptr) where they come from nowhere.
  void Move(const LoDTensor& x, LoDTensor* out, const void* fill = nullptr) const;

  // The transpose of Move: x_grad, which has its dims, becomes the sum of the elements of `out_grad` that came from
  // each of its elements.
  template <typename T>
  void AddBack(const LoDTensor& out_grad, LoDTensor* x_grad) const;

 private:
  struct Segment {
    int64_t to;
    int64_t from;
    int64_t n;
  };
  struct Plan {
    PoolVector<int64_t> outer;     // strides in `from` of the dimensions that are walked over one by one
    PoolVector<Segment> segments;  // of what is left
    int64_t rows = 1;              // combinations of indices of the outer dimensions
    int64_t row = 0;               // elements of all segments
  };

  // ForEachRun for rows [begin, end) and these segments of each.
  template <typename Visit>
  void ForEachRunOf(const Plan& plan, int64_t begin, int64_t end, size_t first, size_t last, const Visit& visit) const {
    for (int64_t r = begin; r < end; ++r) {
      int64_t base = 0;
      bool inside = true;
      int64_t rest = r;
      for (size_t d = plan.outer.size(); d-- > 0;) {
        const auto extent = static_cast<int64_t>(maps_[d].size());
        const int64_t from = maps_[d][static_cast<size_t>(rest % extent)];
        rest /= extent;
        inside = inside && from >= 0;
        base += from * plan.outer[d];
      }
      for (size_t k = first; k < last; ++k) {
        const Segment& segment = plan.segments[k];
        visit(r * plan.row + segment.to, inside && segment.from >= 0 ? base + segment.from : -1, segment.n);
      }
    }
  }

  static bool Empty(const DDim& dims);
  Plan MakePlan() const;

  DDim from_dims_;
  DDim to_dims_;
  PoolVector<PoolVector<int64_t>> maps_;
};

}  // namespace headrace::ops
