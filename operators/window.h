// Windows that slide over the two last dimensions of an image: convolution and pooling.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "framework/operator.h"

namespace headrace::ops {

// One dimension of a sliding window: output position `o`, window offset `k` meets the input at o · stride − padding + k
// · dilation.
struct Window {
  int64_t size;
  int64_t stride;
  int64_t padding;
  int64_t dilation = 1;

  int64_t InputAt(int64_t o, int64_t k) const { return o * stride - padding + k * dilation; }

  // The output positions [first, second) of [0, outputs) at which offset `k` meets an input in [0, inputs).
  struct Range {
    int64_t begin;
    int64_t end;
  };
  Range OutputsInside(int64_t k, int64_t inputs, int64_t outputs) const;
};

// The two values (height, width) of an attribute, each at least `min`. Throws InvalidArgument naming the attribute.
struct Pair {
  int64_t height;
  int64_t width;
};
Pair PairAttr(const OpDesc& op, std::string_view attr, int64_t min);

// Number of positions of `window` over `inputs`; -1 if `inputs` is. With `ceil` a last window may hang over the padded
// end, and even lie beyond it, as in Fluid. Throws InvalidArgument if there is no position; `slot` and `dimension` say
// where.
int64_t OutputSize(const Window& window, int64_t inputs, bool ceil, std::string_view slot, std::string_view dimension);

}  // namespace headrace::ops
