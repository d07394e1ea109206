#include "operators/math/row_merge.h"

#include <algorithm>

#include "framework/thread_pool.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {

SortedRows Sorted(const PoolVector<int64_t>& rows) {
  SortedRows sorted;
  sorted.reserve(rows.size());
  for (const int64_t row : rows) {
    sorted.emplace_back(row, static_cast<int64_t>(sorted.size()));
  }
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

template <typename T>
void ForEachMergedRowOf(const SelectedRows& x, const SortedRows& sorted, size_t begin, size_t end,
                        const VisitRow<T>& visit) {
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

template <typename T>
void ForEachMergedRow(const SelectedRows& x, const VisitRow<T>& visit) {
  const SortedRows sorted = Sorted(x.rows());
  ForEachMergedRowOf<T>(x, sorted, 0, sorted.size(), visit);
}

template <typename T>
void ForEachMergedRowInParallel(const SelectedRows& x, const VisitRow<T>& visit) {
  const SortedRows sorted = Sorted(x.rows());
  // A row that is not in a cache takes as long as many that are.
  ParallelFor(static_cast<int64_t>(sorted.size()), RowsPerBlock(RowWidth(x) + 64), [&](int64_t begin, int64_t end) {
    ForEachMergedRowOf<T>(x, sorted, static_cast<size_t>(begin), static_cast<size_t>(end), visit);
  });
}

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

#define HEADRACE_INSTANTIATE(T)                                                                                    \
  template void ForEachMergedRow<T>(const SelectedRows&, const VisitRow<T>&);                                      \
  template void ForEachMergedRowOf<T>(const SelectedRows&, const SortedRows&, size_t, size_t, const VisitRow<T>&); \
  template void ForEachMergedRowInParallel<T>(const SelectedRows&, const VisitRow<T>&);                            \
  template void MergeRows<T>(const SelectedRows&, SelectedRows*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
HEADRACE_INSTANTIATE(int32_t);
HEADRACE_INSTANTIATE(int64_t);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
