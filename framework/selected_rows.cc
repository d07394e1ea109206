#include "framework/selected_rows.h"

#include "framework/errors.h"

namespace headrace {

DDim SelectedRows::complete_dims() const {
  DDim dims = value_.dims();
  if (dims.empty()) {
    return {height_};
  }
  dims[0] = height_;
  return dims;
}

void SelectedRows::Check() const {
  HR_ENFORCE(value_.initialized(), FailedPrecondition, "the selected rows have no value yet");
  HR_ENFORCE(!value_.dims().empty() && static_cast<size_t>(value_.dims()[0]) == rows_.size(), InvalidArgument,
             "selected rows: expected a value of ", rows_.size(), " rows, got dims ", ToString(value_.dims()));
  for (const int64_t row : rows_) {
    HR_ENFORCE(0 <= row && row < height_, OutOfRange, "selected rows: expected rows in [0, ", height_, "), got ", row);
  }
}

}  // namespace headrace
