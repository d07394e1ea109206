// The maximum or the average of windows that slide over images or volumes, for the operators that pool.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "operators/convolution/window.h"

namespace headrace::ops {

// One dimension of a pooling.
struct PoolAxis {
  PoolAxis() = default;
  // `window` at each of `outputs` positions over `inputs` elements. At compile time both may be -1.
  PoolAxis(const Window& window, int64_t inputs, int64_t outputs);
  // `outputs` windows of nearly the same size that cover `inputs` elements.
  static PoolAxis Adaptive(int64_t inputs, int64_t outputs);

  // The part [begin, end) of window `o` that lies inside the input; it may be empty.
  struct Span {
    int64_t begin;
    int64_t end;
    int64_t size() const { return end - begin; }
  };
  Span At(int64_t o) const {
    if (adaptive) {
      return {o * inputs / outputs, ((o + 1) * inputs + outputs - 1) / outputs};
    }
    const int64_t begin = std::clamp<int64_t>(window.InputAt(o, 0), 0, inputs);
    return {begin, std::clamp(window.InputAt(o, window.size), begin, inputs)};
  }

  // Whether the only window is the whole input.
  bool HasOneWindow() const { return outputs == 1 && At(0).size() == inputs; }

  Window window{1, 1, 0};
  int64_t inputs = 1;
  int64_t outputs = 1;
  bool adaptive = false;
  // The positions [first, end) whose windows lie inside the input as a whole; with adaptive none counts.
  int64_t first_whole = 0;
  int64_t end_whole = 0;
};

// The sizes of a pooling.
struct PoolShape {
  PoolShape() = default;
  // As the attributes of `op` say (see PoolAttrs), over `x`: [N, C, H, W] if `spatial` is 2, [N, C, D, H, W] if it is
  // 3, or with the channels last where attribute data_format says so. At compile time dims may be -1.
  PoolShape(const AttributeIndex& op, size_t spatial, const DDim& x);

  int64_t MapSize() const { return planes.inputs * rows.inputs * cols.inputs; }  // of X
  // Whether the only window of a map is all of it.
  bool HasOneWindow() const { return planes.HasOneWindow() && rows.HasOneWindow() && cols.HasOneWindow(); }
  int64_t OutputSizeOfMap() const { return planes.outputs * rows.outputs * cols.outputs; }
  // What the average of the given parts of a window divides by; that of nothing is 0.
  int64_t Divisor(const PoolAxis::Span& z, const PoolAxis::Span& y, const PoolAxis::Span& x) const {
    return exclusive || cols.adaptive ? std::max<int64_t>(z.size() * y.size() * x.size(), 1)
                                      : planes.window.size * rows.window.size * cols.window.size;
  }

  bool max = true;
  bool exclusive = true;
  bool channels_last = false;  // in the tensors of the operator, not in a map
  DDim dims;                   // of the result
  int64_t maps = 0;            // N · C
  PoolAxis planes;
  PoolAxis rows;
  PoolAxis cols;
};

// Pools one map. T is float or double. A NaN is greater than everything. The maximum of nothing is the lowest number,
// as in Fluid.
template <typename T>
void PoolMap(const PoolShape& s, const T* x, T* out);

// Adds the gradient of one map of the input to `x_grad`. Of equally great elements of a window, the first gets it.
template <typename T>
void PoolMapGrad(const PoolShape& s, const T* x, const T* out, const T* out_grad, T* x_grad);

// The attributes that all poolings have: ksize, strides, paddings, global_pooling, adaptive.
OpRegistrar&& WindowAttrs(OpRegistrar&& op, size_t spatial);
// pooling_type.
OpRegistrar&& PoolingTypeAttr(OpRegistrar&& op);

}  // namespace headrace::ops
