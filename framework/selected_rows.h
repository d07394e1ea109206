// Some rows of a tall tensor: the gradient of a table of which a step has read a few rows.
//
// Row i of value() belongs to row rows()[i] of a tensor of dims complete_dims(). A row may occur several times; then
// its value is the sum of its occurrences. Rows that do not occur are zero.
//
// Thread-safety: as a Tensor.
#pragma once

#include <cstdint>

#include "framework/export.h"
#include "framework/lod_tensor.h"
#include "framework/memory_pool.h"

namespace headrace {

class HEADRACE_API SelectedRows {
 public:
  const PoolVector<int64_t>& rows() const { return rows_; }
  PoolVector<int64_t>* mutable_rows() { return &rows_; }

  // Rows of the tall tensor; 0, as it is at first: as many as the rows need.
  int64_t height() const { return height_; }
  void set_height(int64_t height) { height_ = height; }

  // [rows().size(), ...], without a LoD.
  const LoDTensor& value() const { return value_; }
  LoDTensor* mutable_value() { return &value_; }

  // The rows of the tall tensor, the rest as that of value().
  DDim complete_dims() const;

  // Throws FailedPrecondition if there is no value, InvalidArgument if value() does not have one row for each of
  // rows(), OutOfRange if one of them is not a row of the tall tensor.
  void Check() const;

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  PoolVector<int64_t> rows_;
  int64_t height_ = 0;
  LoDTensor value_;
};

}  // namespace headrace
