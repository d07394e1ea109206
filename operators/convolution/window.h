// Windows that slide over images or volumes: convolution and pooling. An image is a volume of depth 1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/op_registry.h"

namespace headrace::ops {

// One dimension of a sliding window: output position `o`, window offset `k` meets the input at o · stride − padding + k
// · dilation.
struct Window {
  int64_t size;
  int64_t stride;
  int64_t padding;  // before the input
  int64_t dilation = 1;
  int64_t padding_after = padding;

  int64_t Paddings() const { return padding + padding_after; }
  int64_t InputAt(int64_t o, int64_t k) const { return o * stride - padding + k * dilation; }

  // The output positions [first, second) of [0, outputs) at which offset `k` meets an input in [0, inputs).
  struct Range {
    int64_t begin;
    int64_t end;
  };
  Range OutputsInside(int64_t k, int64_t inputs, int64_t outputs) const;
};

// A number for each dimension of a volume.
struct Extents {
  int64_t depth;
  int64_t height;
  int64_t width;

  int64_t Volume() const { return depth * height * width; }
};

// The values of an attribute, each at least `min`: height and width if `dimensions` is 2, with `flat` as the depth;
// depth, height and width if it is 3. Throws InvalidArgument naming the attribute.
Extents ExtentsAttr(const AttributeIndex& op, HashedName attr, size_t dimensions, int64_t min, int64_t flat);

// Windows of `size` as the attributes strides, paddings, padding_algorithm and, where an operator has it, dilations
// say, over an input of `in`, whose extents may be -1 (unknown). Throws InvalidArgument naming the attribute.
struct Windows {
  Window planes;
  Window rows;
  Window cols;
};
Windows WindowsOf(const AttributeIndex& op, size_t dimensions, const Extents& size, const Extents& in);

// Those of `dims`, [N, C, H, W] or [N, C, D, H, W] as `dimensions` says, or with the channels last. Throws
// InvalidArgument naming the input `slot` unless `dims` has that rank. An image has depth 1.
Extents ExtentsOf(const DDim& dims, size_t dimensions, HashedName slot, bool channels_last = false);

// The attributes paddings and padding_algorithm, for WindowsOf. `what` is around the input.
OpRegistrar&& PaddingAttrs(OpRegistrar&& op, size_t dimensions, const std::string& what);

// The dims of `count` maps of `extents` for each of `images` images or volumes.
DDim MapDims(int64_t images, int64_t count, const Extents& extents, size_t dimensions, bool channels_last = false);

// "height, width" or "depth, height, width".
std::string_view DimensionNames(size_t dimensions);

// Number of positions of `window` over `inputs`; -1 if `inputs` is. With `ceil` a last window may hang over the padded
// end, and even lie beyond it, as in Fluid. Throws InvalidArgument if there is no position; `slot` and `dimension` say
// where.
int64_t OutputSize(const Window& window, int64_t inputs, bool ceil, HashedName slot, std::string_view dimension);

}  // namespace headrace::ops
