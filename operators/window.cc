#include "operators/window.h"

#include <algorithm>

#include "framework/errors.h"

namespace headrace::ops {

Window::Range Window::OutputsInside(int64_t k, int64_t inputs, int64_t outputs) const {
  const int64_t at0 = InputAt(0, k);
  const auto divided = [this](int64_t n) { return stride == 1 ? n : n / stride; };  // a division takes long
  const int64_t begin = at0 >= 0 ? 0 : divided(-at0 + stride - 1);
  const int64_t end = at0 >= inputs ? 0 : divided(inputs - 1 - at0) + 1;
  return {std::min(begin, outputs), std::clamp(end, std::min(begin, outputs), outputs)};
}

Extents ExtentsAttr(const OpDesc& op, std::string_view attr, size_t dimensions, int64_t min, int64_t flat) {
  // Larger values would overflow in the arithmetic of positions; no image is that large.
  constexpr int64_t kMax = 1 << 20;
  const auto& values = op.Attr<std::vector<int32_t>>(attr);
  HR_ENFORCE(values.size() == dimensions &&
                 std::all_of(values.begin(), values.end(), [min](int64_t v) { return min <= v && v <= kMax; }),
             InvalidArgument, "attribute ", attr, ": expected ", dimensions == 2 ? "two" : "three", " numbers (",
             DimensionNames(dimensions), ") in [", min, ", ", kMax, "], got ", ToString(Attribute(values)));
  return {dimensions == 2 ? flat : values[0], values[dimensions - 2], values[dimensions - 1]};
}

Extents ExtentsOf(const DDim& dims, size_t dimensions, std::string_view slot) {
  HR_ENFORCE(dims.size() == 2 + dimensions, InvalidArgument, "input ", slot, ": expected dims ",
             dimensions == 2 ? "[N, C, H, W]" : "[N, C, D, H, W]", ", got ", ToString(dims));
  return {dimensions == 2 ? 1 : dims[2], dims[dimensions], dims[dimensions + 1]};
}

DDim MapDims(int64_t images, int64_t count, const Extents& extents, size_t dimensions) {
  if (dimensions == 2) {
    return {images, count, extents.height, extents.width};
  }
  return {images, count, extents.depth, extents.height, extents.width};
}

std::string_view DimensionNames(size_t dimensions) {
  return dimensions == 2 ? "height, width" : "depth, height, width";
}

int64_t OutputSize(const Window& window, int64_t inputs, bool ceil, std::string_view slot, std::string_view dimension) {
  if (inputs < 0) {
    return -1;
  }
  const int64_t extent = AddExtents(MultiplyExtents(window.dilation, window.size - 1), 1);
  const int64_t padded = AddExtents(inputs, 2 * window.padding);
  const int64_t free = padded - extent;
  HR_ENFORCE(inputs > 0 && free >= 0, InvalidArgument, "input ", slot, ": its ", dimension, " is ", inputs,
             ", with padding ", padded, ", expected at least the extent of the window, ", extent);
  return AddExtents(free, ceil ? window.stride - 1 : 0) / window.stride + 1;
}

}  // namespace headrace::ops
