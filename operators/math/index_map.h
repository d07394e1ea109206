// Operators that move elements: each dimension of the result has a map from its indices to those of the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
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

  // Calls visit(to, from, n, step) for each run of n elements that lie side by side in the result, and `step` apart
  // from element `from` on in the input; `from` is -1 for those that come from nowhere. From several threads, in any
  // order.
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

  // The transpose of Move, by several threads: x_grad, which has its dims, becomes the sum of the elements of
  // `out_grad` that came from each of its elements, in their order but for those side by side (see SumOf).
  template <typename T>
  void AddBack(const LoDTensor& out_grad, LoDTensor* x_grad) const;

 private:
  struct Segment {
    int64_t to;
    int64_t from;
    int64_t n;
    int64_t step;
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
        visit(r * plan.row + segment.to, inside && segment.from >= 0 ? base + segment.from : -1, segment.n,
              segment.step);
      }
    }
  }

  // ForEachRun from several threads, each of which has, in the order of `to`, those that come from some indices of
  // outer dimension `d`.
  template <typename Visit>
  void ForEachRunByIndex(const Plan& plan, size_t d, const Visit& visit) const {
    const PoolVector<int64_t>& map = maps_[d];
    // The indices in `to` that come from index i of `from`: order[ends[i - 1]] to order[ends[i]], not included.
    PoolVector<int64_t> ends(static_cast<size_t>(from_dims_[d]) + 1, 0);
    for (const int64_t from : map) {
      ends[static_cast<size_t>(from + 1)] += 1;  // the first: those from nowhere
    }
    const auto nowhere = static_cast<size_t>(ends[0]);
    ends[0] = 0;
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    PoolVector<int64_t> order(map.size() - nowhere);
    PoolVector<int64_t> places = ends;
    for (size_t i = 0; i < map.size(); ++i) {
      if (map[i] >= 0) {
        order[static_cast<size_t>(places[static_cast<size_t>(map[i])]++)] = static_cast<int64_t>(i);
      }
    }
    const auto extent = static_cast<int64_t>(map.size());
    const auto index = static_cast<std::ptrdiff_t>(d);
    const int64_t before = std::accumulate(to_dims_.begin(), to_dims_.begin() + index, int64_t{1}, std::multiplies<>());
    const int64_t rows = plan.rows / before / extent;  // of one index
    const int64_t work = plan.rows * plan.row / from_dims_[d];
    ParallelFor(from_dims_[d], RowsPerBlock(work), [&](int64_t begin, int64_t end) {
      const int64_t last = ends[static_cast<size_t>(end)];
      for (int64_t b = 0; b < before; ++b) {
        for (int64_t k = ends[static_cast<size_t>(begin)]; k < last;) {
          const int64_t first = order[static_cast<size_t>(k)];
          int64_t n = 1;  // neighbours together
          for (++k; k < last && order[static_cast<size_t>(k)] == first + n; ++k) {
            ++n;
          }
          const int64_t row = (b * extent + first) * rows;
          ForEachRunOf(plan, row, row + n * rows, 0, plan.segments.size(), visit);
        }
      }
    });
  }

  static bool Empty(const DDim& dims);
  Plan MakePlan() const;

  DDim from_dims_;
  DDim to_dims_;
  PoolVector<PoolVector<int64_t>> maps_;
};

}  // namespace headrace::ops
