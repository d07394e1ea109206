#include "operators/convolution/window.h"

#include <algorithm>
#include <array>
#include <utility>

#include "framework/errors.h"
#include "operators/math/layout.h"

namespace headrace::ops {
namespace {

// Larger values would overflow in the arithmetic of positions; no image is that large.
constexpr int64_t kMaxExtent = 1 << 20;

}  // namespace

Window::Range Window::OutputsInside(int64_t k, int64_t inputs, int64_t outputs) const {
  const int64_t at0 = InputAt(0, k);
  const auto divided = [this](int64_t n) { return stride == 1 ? n : n / stride; };  // a division takes long
  const int64_t begin = at0 >= 0 ? 0 : divided(-at0 + stride - 1);
  const int64_t end = at0 >= inputs ? 0 : divided(inputs - 1 - at0) + 1;
  return {std::min(begin, outputs), std::clamp(end, std::min(begin, outputs), outputs)};
}

Extents ExtentsAttr(const AttributeIndex& op, HashedName attr, size_t dimensions, int64_t min, int64_t flat) {
  const auto& values = op.Attr<std::vector<int32_t>>(attr);
  HR_ENFORCE(values.size() == dimensions &&
                 std::all_of(values.begin(), values.end(), [min](int64_t v) { return min <= v && v <= kMaxExtent; }),
             InvalidArgument, "attribute ", attr, ": expected ", dimensions == 2 ? "two" : "three", " numbers (",
             DimensionNames(dimensions), ") in [", min, ", ", kMaxExtent, "], got ", ToString(Attribute(values)));
  return {dimensions == 2 ? flat : values[0], values[dimensions - 2], values[dimensions - 1]};
}

namespace {

// What SAME puts before and after the input, so that there are as many outputs as strides begin within it.
Window SamePadding(Window window, int64_t inputs) {
  const int64_t outputs = (inputs + window.stride - 1) / window.stride;
  const int64_t sum = std::max<int64_t>(0, (outputs - 1) * window.stride + window.size - inputs);
  window.padding = sum / 2;
  window.padding_after = sum - window.padding;
  window.dilation = 1;  // Fluid's
  return window;
}

bool HasAlgorithm(const AttributeIndex& op, HashedName algorithm) {
  return op.Has("padding_algorithm") && op.Text("padding_algorithm") == algorithm;
}

// Before and after depth, height and width.
using Paddings = std::array<std::pair<int64_t, int64_t>, 3>;

Paddings PaddingsAttr(const AttributeIndex& op, size_t dimensions) {
  const auto& values = op.Attr<std::vector<int32_t>>("paddings");
  if (values.size() != 2 * dimensions) {
    const Extents around = ExtentsAttr(op, "paddings", dimensions, 0, 0);
    return {{{around.depth, around.depth}, {around.height, around.height}, {around.width, around.width}}};
  }
  HR_ENFORCE(std::all_of(values.begin(), values.end(), [](int64_t v) { return 0 <= v && v <= kMaxExtent; }),
             InvalidArgument, "attribute paddings: expected numbers in [0, ", kMaxExtent, "], got ",
             ToString(Attribute(values)));
  Paddings paddings{};
  for (size_t d = 0; d < dimensions; ++d) {
    paddings[3 - dimensions + d] = {values[2 * d], values[2 * d + 1]};
  }
  return paddings;
}

}  // namespace

Windows WindowsOf(const AttributeIndex& op, size_t dimensions, const Extents& size, const Extents& in) {
  const Extents strides = ExtentsAttr(op, "strides", dimensions, 1, 1);
  const Extents dilations = op.Has("dilations") ? ExtentsAttr(op, "dilations", dimensions, 1, 1) : Extents{1, 1, 1};
  const auto paddings = PaddingsAttr(op, dimensions);
  const bool is_same = HasAlgorithm(op, "SAME");
  const bool is_explicit = !is_same && !HasAlgorithm(op, "VALID");
  const auto window = [&](size_t d, int64_t length, int64_t stride, int64_t dilation, int64_t inputs) {
    const auto [before, after] = is_explicit ? paddings[d] : std::pair<int64_t, int64_t>();
    const Window plain{length, stride, before, dilation, after};
    // Where the input is unknown, so is the number of outputs: no padding is needed.
    return is_same && inputs > 0 ? SamePadding(plain, inputs) : plain;
  };
  return {window(0, size.depth, strides.depth, dilations.depth, in.depth),
          window(1, size.height, strides.height, dilations.height, in.height),
          window(2, size.width, strides.width, dilations.width, in.width)};
}

OpRegistrar&& PaddingAttrs(OpRegistrar&& op, size_t dimensions, const std::string& what) {
  return std::move(op)
      .Attr<std::vector<int32_t>>("paddings",
                                  what + ", on either side: " + std::string(DimensionNames(dimensions)) +
                                      "; twice as many numbers: before and after each of them",
                                  std::vector<int32_t>(dimensions, 0))
      .Attr<std::string>("padding_algorithm",
                         "'EXPLICIT': paddings; 'SAME': as much as makes the result as large as the input by strides, "
                         "without dilations; 'VALID': none",
                         "EXPLICIT", [](const std::string& algorithm) {
                           HR_ENFORCE(algorithm == "EXPLICIT" || algorithm == "SAME" || algorithm == "VALID",
                                      InvalidArgument,
                                      "attribute padding_algorithm: expected 'EXPLICIT', 'SAME' or "
                                      "'VALID', got '",
                                      algorithm, "'");
                         });
}

Extents ExtentsOf(const DDim& dims, size_t dimensions, HashedName slot, bool channels_last) {
  HR_ENFORCE(dims.size() == 2 + dimensions, InvalidArgument, "input ", slot, ": expected dims ",
             LayoutName(dimensions, channels_last), ", got ", ToString(dims));
  const size_t first = channels_last ? 1 : 2;
  return {dimensions == 2 ? 1 : dims[first], dims[first + dimensions - 2], dims[first + dimensions - 1]};
}

DDim MapDims(int64_t images, int64_t count, const Extents& extents, size_t dimensions, bool channels_last) {
  DDim dims = {images};
  if (!channels_last) {
    dims.push_back(count);
  }
  if (dimensions == 3) {
    dims.push_back(extents.depth);
  }
  dims.push_back(extents.height);
  dims.push_back(extents.width);
  if (channels_last) {
    dims.push_back(count);
  }
  return dims;
}

std::string_view DimensionNames(size_t dimensions) {
  return dimensions == 2 ? "height, width" : "depth, height, width";
}

int64_t OutputSize(const Window& window, int64_t inputs, bool ceil, HashedName slot, std::string_view dimension) {
  if (inputs < 0) {
    return -1;
  }
  const int64_t extent = AddExtents(MultiplyExtents(window.dilation, window.size - 1), 1);
  const int64_t padded = AddExtents(inputs, window.Paddings());
  const int64_t free = padded - extent;
  HR_ENFORCE(inputs > 0 && free >= 0, InvalidArgument, "input ", slot, ": its ", dimension, " is ", inputs, " (",
             padded, " with padding), expected at least the extent of the window, ", extent);
  return AddExtents(free, ceil ? window.stride - 1 : 0) / window.stride + 1;
}

}  // namespace headrace::ops
