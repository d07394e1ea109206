// Sizes of tensors that are seen as matrices, or as what lies before, along and behind one dimension.
#pragma once

#include <cstddef>
#include <cstdint>

#include "framework/ddim.h"
#include "framework/export.h"
#include "framework/lod_tensor.h"

namespace headrace::ops {

// Number of elements of dims[begin, end), -1 if one of them is unknown. Throws InvalidArgument if it overflows.
HEADRACE_API int64_t Numel(const DDim& dims, size_t begin, size_t end);
inline int64_t Numel(const DDim& dims) { return Numel(dims, 0, dims.size()); }

// A tensor seen as a matrix: the dims before `split` make its rows, the others its columns. Without columns it has no
// rows. Known dims only.
struct HEADRACE_API MatrixSize {
  MatrixSize(const DDim& dims, size_t split);
  // The last dimension makes the columns.
  explicit MatrixSize(const LoDTensor& x) : MatrixSize(x.dims(), x.dims().size() - 1) {}
  int64_t rows;
  int64_t cols;
};

// A tensor seen as [outer, extent, inner], `extent` being that of dimension `axis`. Without elements `outer` is 0.
// Known dims only.
struct HEADRACE_API AxisSize {
  AxisSize(const DDim& dims, size_t axis);
  int64_t outer;
  int64_t extent;
  int64_t inner;
};

}  // namespace headrace::ops
