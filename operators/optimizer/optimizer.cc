#include "operators/optimizer/optimizer.h"

#include <algorithm>

#include "framework/memory_pool.h"
#include "framework/thread_pool.h"
#include "operators/math/row_merge.h"

namespace headrace::ops {

template <typename T>
void ForEachRangeOfGradient(const ExecutionContext& ctx, OtherRows others, std::initializer_list<Update> updates,
                            const UpdateRange<T>& update) {
  const int64_t numel = ctx.Input("Param").numel();
  if (!ctx.IsSelectedRows("Grad")) {
    const T* grad = ctx.Input("Grad").data<T>();
    ParallelFor(numel, kElementsPerBlock,
                [&](int64_t begin, int64_t end) { update(begin, end - begin, grad + begin); });
    return;
  }
  const SelectedRows& grad = ctx.InputRows("Grad");
  const int64_t width = RowWidth(grad);
  if (others == OtherRows::kStay) {
    for (const Update& change : updates) {
      const T* from = ctx.Input(change.in).data<T>();
      if (T* to = ctx.Output(change.out)->mutable_data<T>(); to != from) {
        ParallelCopy(from, numel, to);
      }
    }
    ForEachMergedRowInParallel<T>(grad, [&](int64_t row, const T* g) { update(row * width, width, g); });
    return;
  }
  constexpr int64_t kBlock = 1024;
  const PoolVector<T> zeros(kBlock);
  const SortedRows sorted = Sorted(grad.rows());
  const auto place_of = [&sorted](int64_t row) {
    return static_cast<size_t>(std::lower_bound(sorted.begin(), sorted.end(), std::pair(row, int64_t{0})) -
                               sorted.begin());
  };
  ParallelFor(width == 0 ? 0 : numel / width, RowsPerBlock(width), [&](int64_t first_row, int64_t end_row) {
    int64_t done = first_row * width;
    const auto update_until = [&](int64_t end) {
      for (; done < end; done += std::min(kBlock, end - done)) {
        update(done, std::min(kBlock, end - done), zeros.data());
      }
    };
    ForEachMergedRowOf<T>(grad, sorted, place_of(first_row), place_of(end_row), [&](int64_t row, const T* g) {
      update_until(row * width);
      update(row * width, width, g);
      done += width;
    });
    update_until(end_row * width);
  });
}

template void ForEachRangeOfGradient<float>(const ExecutionContext&, OtherRows, std::initializer_list<Update>,
                                            const UpdateRange<float>&);
template void ForEachRangeOfGradient<double>(const ExecutionContext&, OtherRows, std::initializer_list<Update>,
                                             const UpdateRange<double>&);

}  // namespace headrace::ops
