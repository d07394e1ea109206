// Selected rows, each once: occurrences of the same row are added up, in the order in which they occur.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/selected_rows.h"
#include "framework/thread_pool.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {

// (row, its place) for each of `rows`, by row and then by place.
inline PoolVector<std::pair<int64_t, int64_t>> SortedRows(const PoolVector<int64_t>& rows) {
  PoolVector<std::pair<int64_t, int64_t>> sorted;
  sorted.reserve(rows.size());
  for (const int64_t row : rows) {
    sorted.emplace_back(row, static_cast<int64_t>(sorted.size()));
  }
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

// Elements of a row.
inline int64_t RowWidth(const SelectedRows& x) {
  return x.value().dims().empty() ? 0 : Numel(x.value().dims(), 1, x.value().dims().size());
}

// Calls visit(row, elements) for each of the rows whose first occurrence is one of sorted[begin, end), which SortedRows
// gave, in ascending order. `elements` are good until visit returns.
template <typename T, typename Visit>
void ForEachMergedRowOf(const SelectedRows& x, const PoolVector<std::pair<int64_t, int64_t>>& sorted, size_t begin,
                        size_t end, const Visit& visit) {
  const int64_t width = RowWidth(x);
  const T* values = x.value().data<T>();
  PoolVector<T> sum;
  const auto continues = [&sorted](size_t i) {
    return i > 0 && i < sorted.size() && sorted[i].first == sorted[i - 1].first;
  };
  while (begin < end && continues(begin)) {
    ++begin;
  }
  for (size_t i = begin; i < end;) {
    const int64_t row = sorted[i].first;
    const T* first = values + sorted[i].second * width;
    ++i;
    if (!continues(i)) {
      visit(row, first);
      continue;
    }
    sum.assign(first, first + width);
    for (; continues(i); ++i) {
      const T* next = values + sorted[i].second * width;
      std::transform(sum.begin(), sum.end(), next, sum.begin(), [](T a, T b) { return a + b; });
    }
    visit(row, sum.data());
  }
}

// Calls visit(row, elements) for each row of `x`, in ascending order. `elements` are good until visit returns.
template <typename T, typename Visit>
void ForEachMergedRow(const SelectedRows& x, const Visit& visit) {
  const auto sorted = SortedRows(x.rows());
  ForEachMergedRowOf<T>(x, sorted, 0, sorted.size(), visit);
}

// The same from several threads, each of which has some of the rows.
template <typename T, typename Visit>
void ForEachMergedRowInParallel(const SelectedRows& x, const Visit& visit) {
  const auto sorted = SortedRows(x.rows());
  // A row that is not in a cache takes as long as many that are.
  ParallelFor(static_cast<int64_t>(sorted.size()), RowsPerBlock(RowWidth(x) + 64), [&](int64_t begin, int64_t end) {
    ForEachMergedRowOf<T>(x, sorted, static_cast<size_t>(begin), static_cast<size_t>(end), visit);
  });
}

// `x` with each of its rows once. `out` may not be `x`.
template <typename T>
void MergeRows(const SelectedRows& x, SelectedRows* out) {
  PoolVector<int64_t>& rows = *out->mutable_rows();
  rows = x.rows();
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  DDim dims = x.value().dims();
  dims[0] = static_cast<int64_t>(rows.size());
  out->set_height(x.height());
  T* to = out->mutable_value()->Resize(std::move(dims)).template mutable_data<T>();
  const int64_t width = RowWidth(x);
  ForEachMergedRow<T>(x, [&](int64_t, const T* elements) { to = std::copy_n(elements, width, to); });
}

}  // namespace headrace::ops
