#include "framework/selected_rows.h"

#include <algorithm>
#include <limits>

#include "framework/errors.h"

namespace headrace {

DDim SelectedRows::complete_dims() const {
  DDim dims = value_.dims();
  if (dims.empty()) {
    dims.push_back(0);
  }
  dims[0] = height_ == 0 && !rows_.empty() ? *std::max_element(rows_.begin(), rows_.end()) + 1 : height_;
  return dims;
}

void SelectedRows::Check() const {
  HR_ENFORCE(value_.initialized(), FailedPrecondition, "the selected rows have no value yet");
  HR_ENFORCE(!value_.dims().empty() && static_cast<size_t>(value_.dims()[0]) == rows_.size(), InvalidArgument,
             "selected rows: expected a value of ", rows_.size(), " rows, got dims ", ToString(value_.dims()));
  const int64_t end = height_ == 0 ? std::numeric_limits<int64_t>::max() : height_;
  for (const int64_t row : rows_) {
    HR_ENFORCE(0 <= row && row < end, OutOfRange, "selected rows: expected rows in [0, ", end, "), got ", row);
  }
}

}  // namespace headrace
