// A small tensor over a large one: broadcast into it (elementwise operators) or reduced from it (reductions).
// Neighbouring dimensions of the same kind are merged, so that what remains is a few loops over long runs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "framework/ddim.h"
#include "framework/memory_pool.h"
#include "framework/thread_pool.h"
#include "operators/math/element_loop.h"
#include "operators/math/scratch.h"

namespace headrace::ops {

class BroadcastPlan {
 public:
  // `kept[d]` says whether the small tensor has dimension d of `large`; the others are 1 in it.
  BroadcastPlan(const DDim& large, const PoolVector<bool>& kept) {
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
    PoolVector<Group> outer(groups_.begin(), groups_.end() - 1);
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

  // As ForEachRun, but from several threads, which share the large tensor; runs may be cut in pieces.
  template <typename Run>
  void ForEachRunInParallel(const Run& run) const {
    if (groups_.size() > kMaxGroups) {
      ForEachRun(run);
      return;
    }
    ParallelFor(Total(), kElementsPerBlock, [&](int64_t begin, int64_t end) { ForEachRunBetween(begin, end, run); });
  }

  // Calls add(to, large_offset, small_offset, n, kept), from several threads, for each run as ForEachRun, to combine
  // its elements with those of `to` at small_offset. `results` are as many as the small tensor has elements, and
  // `first` before, which combined with anything is that. The order depends on the dims alone: if they are few, and the
  // outermost dimension is reduced, parts of that have results of their own, which are combined in the order of the
  // parts.
  template <typename T, typename Combine, typename Add>
  void ReduceInParallel(T* results, T first, const Combine& combine, const Add& add) const {
    constexpr int64_t kMaxResults = 4096;  // more make runs that are long enough for threads to share
    constexpr int64_t kMaxParts = 64;
    constexpr int64_t kElementsPerResult = 32;  // of a part, at least
    const int64_t total = Total();
    const int64_t extent = groups_.front().extent;
    const int64_t small = SmallElements();
    const int64_t row = extent == 0 ? 0 : total / extent;
    const int64_t size = row == 0 ? extent
                                  : std::max({RowsPerBlock(row), (kElementsPerResult * small + row - 1) / row,
                                              (extent + kMaxParts - 1) / kMaxParts});
    if (groups_.front().kept || groups_.size() > kMaxGroups || small > kMaxResults || size >= extent) {
      ForEachRunInParallelBySmall(
          [&, results](int64_t at, int64_t small_at, int64_t n, bool kept) { add(results, at, small_at, n, kept); });
      return;
    }
    const int64_t parts = (extent + size - 1) / size;
    Tensor memory;
    T* of_parts = Scratch<T>(&memory, parts * small);
    std::fill_n(of_parts, parts * small, first);
    ParallelFor(extent, size, [&](int64_t begin, int64_t end) {
      ForEachRunOf(0, begin, end,
                   [&, to = of_parts + begin / size * small](int64_t at, int64_t small_at, int64_t n, bool kept) {
                     add(to, at, small_at, n, kept);
                   });
    });
    for (int64_t part = 0; part < parts; ++part) {
      for (int64_t i = 0; i < small; ++i) {
        results[i] = combine(results[i], of_parts[part * small + i]);
      }
    }
  }

  // The same of sums, which are 0 before. A single one is that of all elements in one run, which `add` may share out.
  template <typename T, typename Add>
  void SumInParallel(T* sums, const Add& add) const {
    if (groups_.size() == 1) {
      ForEachRunInParallelBySmall(
          [&, sums](int64_t at, int64_t small_at, int64_t n, bool kept) { add(sums, at, small_at, n, kept); });
      return;
    }
    ReduceInParallel(sums, T(0), std::plus<>(), add);
  }

  // As ForEachRun, but from several threads, each of which has elements of the small tensor of its own. For each such
  // element the order is that of ForEachRun; where the small tensor has long runs, they are cut in pieces.
  template <typename Run>
  void ForEachRunInParallelBySmall(const Run& run) const {
    const size_t split = LargestKept();
    const int64_t total = Total();
    if (total <= kElementsPerBlock || split == groups_.size() || groups_.size() > kMaxGroups || PoolThreads() == 1) {
      ForEachRun(run);
      return;
    }
    // Few pieces: each goes through the whole large tensor, and narrow ones would read little of it at a place.
    const bool is_last = split + 1 == groups_.size();
    const int64_t extent = groups_[split].extent;
    const int64_t pieces = int64_t{is_last ? 1 : 4} * PoolThreads();
    int64_t width = std::max(RowsPerBlock(total / extent), (extent + pieces - 1) / pieces);
    if (is_last) {
      // They are cut where vectors end, or the sign of a NaN would depend on the number of threads.
      constexpr int64_t kVectors = 64;
      width = (width + kVectors - 1) / kVectors * kVectors;
    }
    ParallelFor(extent, width, [&](int64_t begin, int64_t end) { ForEachRunOf(split, begin, end, run); });
  }

 private:
  static constexpr size_t kMaxGroups = 8;  // of a plan that is run in parallel

  // Elements of the large tensor.
  int64_t Total() const {
    int64_t total = 1;
    for (const Group& group : groups_) {
      total *= group.extent;
    }
    return total;
  }

  // Elements of the small tensor.
  int64_t SmallElements() const {
    int64_t elements = 1;
    for (const Group& group : groups_) {
      elements *= group.kept ? group.extent : 1;
    }
    return elements;
  }

  // groups_.size() if there is none.
  size_t LargestKept() const {
    size_t largest = groups_.size();
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].kept && (largest == groups_.size() || groups_[g].extent > groups_[largest].extent)) {
        largest = g;
      }
    }
    return largest;
  }

  // Visits elements [begin, end) of the large tensor, begin < end.
  template <typename Run>
  void ForEachRunBetween(int64_t begin, int64_t end, const Run& run) const {
    const size_t last = groups_.size() - 1;
    std::array<int64_t, kMaxGroups> index{};
    int64_t small_at = 0;
    int64_t rest = begin;
    for (size_t g = last + 1; g-- > 0;) {
      index[g] = rest % groups_[g].extent;
      rest /= groups_[g].extent;
      small_at += index[g] * groups_[g].small_stride;
    }
    for (int64_t at = begin; at < end;) {
      const int64_t n = std::min(end - at, groups_[last].extent - index[last]);
      run(at, small_at, n, groups_[last].kept);
      at += n;
      small_at -= index[last] * groups_[last].small_stride;
      index[last] = 0;
      for (size_t g = last; g-- > 0;) {
        small_at += groups_[g].small_stride;
        if (++index[g] < groups_[g].extent) {
          break;
        }
        small_at -= groups_[g].small_stride * groups_[g].extent;
        index[g] = 0;
      }
    }
  }

  // Visits the runs of a plan without empty groups whose index in group `split` is in [begin, end).
  template <typename Run>
  void ForEachRunOf(size_t split, int64_t begin, int64_t end, const Run& run) const {
    const size_t last = groups_.size() - 1;
    std::array<int64_t, kMaxGroups> stride{};  // in the large tensor
    std::array<int64_t, kMaxGroups> extent{};
    std::array<int64_t, kMaxGroups> index{};
    int64_t elements = 1;
    for (size_t g = last + 1; g-- > 0;) {
      stride[g] = elements;
      elements *= groups_[g].extent;
      extent[g] = g == split ? end - begin : groups_[g].extent;
    }
    int64_t at = begin * stride[split];
    int64_t small_at = begin * groups_[split].small_stride;
    for (;;) {
      run(at, small_at, extent[last], groups_[last].kept);
      size_t g = last;
      for (; g > 0; --g) {
        at += stride[g - 1];
        small_at += groups_[g - 1].small_stride;
        if (++index[g - 1] < extent[g - 1]) {
          break;
        }
        at -= stride[g - 1] * extent[g - 1];
        small_at -= groups_[g - 1].small_stride * extent[g - 1];
        index[g - 1] = 0;
      }
      if (g == 0) {
        return;
      }
    }
  }

  struct Group {
    int64_t extent;
    bool kept;
    int64_t small_stride;  // 0 unless kept
    int64_t index;
  };
  PoolVector<Group> groups_;  // outermost first
};

}  // namespace headrace::ops
