// The gradient of a table of which an operator reads a few rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "framework/errors.h"
#include "framework/memory_pool.h"
#include "framework/operator.h"
#include "operators/common/kernel_data.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {

// In an output slot: zeros for the whole table or, if sparse, for SelectedRows. The kernel adds to them.
template <typename T>
class RowGradient {
 public:
  // `table`: the input slot, a table of `height` rows, which is its first dimension if the gradient is sparse; `rows`:
  // those that a sparse gradient has, sorted, each once. Lasts as long as this.
  RowGradient(const ExecutionContext& ctx, HashedName slot, const char* table, int64_t height, bool sparse,
              const PoolVector<int64_t>& rows)
      : rows_(sparse ? &rows : nullptr) {
    if (!ctx.HasOutput(slot)) {
      return;
    }
    if (!sparse) {
      data_ = ZerosOrNull<T>(ctx, slot);
    }
    width_ = height == 0 ? 0 : ctx.Input(table).numel() / height;
    if (sparse) {
      DDim dims = ctx.Input(table).dims();
      SelectedRows* gradient = ctx.OutputRows(slot);
      gradient->set_height(height);
      *gradient->mutable_rows() = rows;
      dims[0] = static_cast<int64_t>(rows.size());
      data_ = gradient->mutable_value()->Resize(dims).template mutable_data<T>();
      ParallelFill(data_, gradient->value().numel(), T(0));
    }
  }

  // Whether it is wanted.
  explicit operator bool() const { return data_ != nullptr; }

  // The gradient of a row of the table, which must be one of `rows` if sparse.
  T* Row(int64_t row) const {
    if (rows_ != nullptr) {
      row = std::lower_bound(rows_->begin(), rows_->end(), row) - rows_->begin();
    }
    return data_ + row * width_;
  }

 private:
  const PoolVector<int64_t>* rows_;
  int64_t width_ = 0;
  T* data_ = nullptr;
};

// Sorts, and leaves each number once.
inline PoolVector<int64_t> SortedOnce(PoolVector<int64_t> rows) {
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

}  // namespace headrace::ops
