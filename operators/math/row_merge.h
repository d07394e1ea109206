// Selected rows, each once: occurrences of the same row are added up, in the order in which they occur.
#pragma once

#include <cstdint>
#include <utility>

#include "framework/function_ref.h"
#include "framework/memory_pool.h"
#include "framework/selected_rows.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {

// T is float, double, int32_t or int64_t.

using SortedRows = PoolVector<std::pair<int64_t, int64_t>>;

// (row, its place) for each of `rows`, by row and then by place.
SortedRows Sorted(const PoolVector<int64_t>& rows);

// Elements of a row.
inline int64_t RowWidth(const SelectedRows& x) {
  return x.value().dims().empty() ? 0 : Numel(x.value().dims(), 1, x.value().dims().size());
}

// `elements` are good until it returns.
template <typename T>
using VisitRow = FunctionRef<void(int64_t row, const T* elements)>;

// Visits each row of `x`, in ascending order.
template <typename T>
void ForEachMergedRow(const SelectedRows& x, const VisitRow<T>& visit);

// The same for the rows whose first occurrence is one of sorted[begin, end).
template <typename T>
void ForEachMergedRowOf(const SelectedRows& x, const SortedRows& sorted, size_t begin, size_t end,
                        const VisitRow<T>& visit);

// The same from several threads, each of which has some of the rows.
template <typename T>
void ForEachMergedRowInParallel(const SelectedRows& x, const VisitRow<T>& visit);

// `x` with each of its rows once. `out` may not be `x`.
template <typename T>
void MergeRows(const SelectedRows& x, SelectedRows* out);

}  // namespace headrace::ops
