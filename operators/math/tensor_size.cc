#include "operators/math/tensor_size.h"

#include "framework/errors.h"

namespace headrace::ops {

int64_t Numel(const DDim& dims, size_t begin, size_t end) {
  int64_t product = 1;
  for (size_t d = begin; d < end; ++d) {
    if (dims[d] < 0) {
      return -1;
    }
    product = MultiplyExtents(product, dims[d]);
  }
  return product;
}

namespace {

// `axis`, which has to be one of the dimensions.
size_t AxisOf(const DDim& dims, size_t axis) {
  HR_ENFORCE(axis < dims.size(), InvalidArgument, "expected an axis below ", dims.size(), ", the number of dimensions ",
             "of dims ", ToString(dims), ", got ", axis);
  return axis;
}

// `end`, which has to be a number of dimensions that `dims` has.
size_t Within(const DDim& dims, size_t end) {
  HR_ENFORCE(end <= dims.size(), InvalidArgument, "expected at least ", end, " dimensions, got dims ", ToString(dims));
  return end;
}

}  // namespace

MatrixSize::MatrixSize(const DDim& dims, size_t split)
    : rows(Numel(dims, 0, Within(dims, split))), cols(Numel(dims, split, dims.size())) {
  if (cols == 0) {
    rows = 0;
  }
}

AxisSize::AxisSize(const DDim& dims, size_t axis)
    : outer(Numel(dims, 0, AxisOf(dims, axis))), extent(dims[axis]), inner(Numel(dims, axis + 1, dims.size())) {
  if (extent == 0 || inner == 0) {
    outer = 0;
  }
}

}  // namespace headrace::ops
