#include "operators/convolution/pooling.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "operators/math/element_loop.h"
#include "operators/math/layout.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {

PoolAxis::PoolAxis(const Window& sliding, int64_t input_count, int64_t output_count)
    : window(sliding), inputs(input_count), outputs(output_count) {
  const Window::Range first = window.OutputsInside(0, inputs, outputs);
  const Window::Range last = window.OutputsInside(window.size - 1, inputs, outputs);
  first_whole = std::max(first.begin, last.begin);
  end_whole = std::max(first_whole, std::min(first.end, last.end));
}

PoolAxis PoolAxis::Adaptive(int64_t inputs, int64_t outputs) {
  PoolAxis axis;
  axis.inputs = inputs;
  axis.outputs = outputs;
  axis.adaptive = true;
  return axis;
}

namespace {

bool Flag(const AttributeIndex& op, HashedName name) { return op.Has(name) && op.Attr<bool>(name); }

// Known at compile time, or -1.
PoolAxis WholeAxis(int64_t inputs) {
  if (inputs < 0) {
    PoolAxis axis;
    axis.inputs = inputs;
    return axis;
  }
  return {{inputs, 1, 0}, inputs, 1};
}

PoolAxis SlidingAxis(const Window& window, int64_t inputs, bool ceil, const char* dimension) {
  // Fluid's number of positions is a quotient that is truncated towards 0: where the window hangs over the end by less
  // than its stride, there is one.
  const int64_t over = window.size - (inputs + window.Paddings());
  if (inputs > 0 && over > 0 && over < window.stride + (ceil ? window.stride - 1 : 0)) {
    return {window, inputs, 1};
  }
  const int64_t outputs = OutputSize(window, inputs, ceil, "X", dimension);
  if (outputs < 0) {
    PoolAxis axis;
    axis.inputs = axis.outputs = -1;
    return axis;
  }
  return {window, inputs, outputs};
}

}  // namespace

PoolShape::PoolShape(const AttributeIndex& op, size_t spatial, const DDim& x)
    : max(!op.Has("pooling_type") || op.Text("pooling_type") == "max"),
      exclusive(!op.Has("exclusive") || op.Attr<bool>("exclusive")),
      channels_last(HasChannelsLast(op)) {
  const Extents in = ExtentsOf(x, spatial, "X", channels_last);
  const int64_t channels = ChannelsOf(x, channels_last);
  maps = Numel({x[0], channels});
  const bool adaptive = op.Attr<bool>("adaptive");
  if (adaptive || op.Attr<bool>("global_pooling")) {
    HR_ENFORCE(in.depth != 0 && in.height != 0 && in.width != 0, InvalidArgument,
               "input X: expected images that are not empty, got dims ", ToString(x));
  }
  if (adaptive) {
    // Fluid's: with global_pooling ksize is the size of X, so that every element is a window.
    const Extents size = op.Attr<bool>("global_pooling") ? in : ExtentsAttr(op, "ksize", spatial, 1, 1);
    planes = PoolAxis::Adaptive(in.depth, size.depth);
    rows = PoolAxis::Adaptive(in.height, size.height);
    cols = PoolAxis::Adaptive(in.width, size.width);
  } else if (op.Attr<bool>("global_pooling")) {
    planes = WholeAxis(in.depth);
    rows = WholeAxis(in.height);
    cols = WholeAxis(in.width);
  } else {
    const Extents size = ExtentsAttr(op, "ksize", spatial, 1, 1);
    const Windows windows = WindowsOf(op, spatial, size, in);
    const auto meets = [](const Window& w) { return w.padding < w.size && w.padding_after < w.size; };
    HR_ENFORCE(meets(windows.planes) && meets(windows.rows) && meets(windows.cols), InvalidArgument,
               "attribute paddings: expected less than ksize, so that every window meets the image, got ",
               ToString(Attribute(op.Attr<std::vector<int32_t>>("paddings"))));
    const bool ceil = Flag(op, "ceil_mode");
    planes = SlidingAxis(windows.planes, in.depth, ceil, "depth");
    rows = SlidingAxis(windows.rows, in.height, ceil, "height");
    cols = SlidingAxis(windows.cols, in.width, ceil, "width");
  }
  dims = MapDims(x[0], channels, {planes.outputs, rows.outputs, cols.outputs}, spatial, channels_last);
}

namespace {

// One row of the result: finish(folded elements, window in planes, rows and columns), where the elements are folded in
// their order, starting with `value`. Windows that meet no border go together, row by row of the input, in a loop that
// the compiler vectorises: kSize and kStride are those of the columns, or both 0.
template <int64_t kSize, int64_t kStride, typename T, typename Combine, typename Finish>
void PoolRow(const PoolShape& s, const T* x, const PoolAxis::Span& z, const PoolAxis::Span& y, T value,
             const Combine& combine, const Finish& finish, T* __restrict out) {
  const PoolAxis& cols = s.cols;
  const int64_t size = kSize > 0 ? kSize : cols.window.size;
  const int64_t stride = kStride > 0 ? kStride : cols.window.stride;
  const int64_t first_whole = cols.first_whole;
  const int64_t end_whole = cols.end_whole;
  const auto border = [&](const T* row, int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const PoolAxis::Span c = cols.At(o);
      for (int64_t k = c.begin; k < c.end; ++k) {
        out[o] = combine(row[k], out[o]);
      }
    }
  };
  std::fill_n(out, cols.outputs, value);
  for (int64_t iz = z.begin; iz < z.end; ++iz) {
    for (int64_t iy = y.begin; iy < y.end; ++iy) {
      const T* row = x + (iz * s.rows.inputs + iy) * cols.inputs;
      border(row, 0, first_whole);
      const T* from = row + cols.window.InputAt(first_whole, 0);
      for (int64_t o = first_whole; o < end_whole; ++o, from += stride) {
        T folded = out[o];
        for (int64_t k = 0; k < size; ++k) {
          folded = combine(from[k], folded);
        }
        out[o] = folded;
      }
      border(row, end_whole, cols.outputs);
    }
  }
  const auto finish_from = [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      out[o] = finish(out[o], z, y, cols.At(o));
    }
  };
  finish_from(0, first_whole);
  const PoolAxis::Span whole = cols.At(first_whole);  // the others are as large
  for (int64_t o = first_whole; o < end_whole; ++o) {
    out[o] = finish(out[o], z, y, whole);
  }
  finish_from(end_whole, cols.outputs);
}

template <typename T, typename Combine, typename Finish>
void PoolRows(const PoolShape& s, const T* x, T value, const Combine& combine, const Finish& finish, T* out) {
  const Window& window = s.cols.window;
  const auto pool = [&]<int64_t kSize, int64_t kStride>() {
    for (int64_t oz = 0; oz < s.planes.outputs; ++oz) {
      for (int64_t oy = 0; oy < s.rows.outputs; ++oy, out += s.cols.outputs) {
        PoolRow<kSize, kStride>(s, x, s.planes.At(oz), s.rows.At(oy), value, combine, finish, out);
      }
    }
  };
  if (window.size == 2 && window.stride == 2) {
    pool.template operator()<2, 2>();
  } else if (window.size == 3 && window.stride == 2) {
    pool.template operator()<3, 2>();
  } else {
    pool.template operator()<0, 0>();
  }
}

// Calls visit(window in planes, rows and columns, its element of the result, size) for each window: `size` is a
// std::integral_constant, the number of its rows and of its columns if that is kSize, else 0. Only windows at a border
// are compared with it.
template <int kSize, typename Visit>
void ForEachWindowOfSize(const PoolShape& s, const Visit& visit) {
  const PoolAxis& cols = s.cols;
  int64_t o = 0;
  for (int64_t oz = 0; oz < s.planes.outputs; ++oz) {
    const PoolAxis::Span z = s.planes.At(oz);
    for (int64_t oy = 0; oy < s.rows.outputs; ++oy) {
      const PoolAxis::Span y = s.rows.At(oy);
      const auto border = [&](int64_t begin, int64_t end) {
        for (int64_t ox = begin; ox < end; ++ox, ++o) {
          visit(z, y, cols.At(ox), o, std::integral_constant<int, 0>());
        }
      };
      const auto inside = [&](auto size) {
        int64_t at = cols.window.InputAt(cols.first_whole, 0);
        for (int64_t ox = cols.first_whole; ox < cols.end_whole; ++ox, ++o, at += cols.window.stride) {
          visit(z, y, PoolAxis::Span{at, at + cols.window.size}, o, size);
        }
      };
      border(0, cols.first_whole);
      if (kSize > 0 && y.size() == kSize) {
        inside(std::integral_constant<int, kSize>());
      } else {
        inside(std::integral_constant<int, 0>());
      }
      border(cols.end_whole, cols.outputs);
    }
  }
}

template <typename Visit>
void ForEachWindow(const PoolShape& s, const Visit& visit) {
  const int64_t size = s.cols.adaptive || s.rows.window.size != s.cols.window.size ? 0 : s.cols.window.size;
  switch (size) {
    case 2:
      return ForEachWindowOfSize<2>(s, visit);
    case 3:
      return ForEachWindowOfSize<3>(s, visit);
    default:
      return ForEachWindowOfSize<0>(s, visit);
  }
}

// Where the first element of a window is that equals its maximum, -1 if there is none. Looks at all elements, from the
// last to the first: leaving the loop early would cost more in mispredicted branches.
template <int kSize, typename T>
int64_t FindMaximum(const PoolShape& s, const T* x, const PoolAxis::Span& planes, const PoolAxis::Span& rows,
                    const PoolAxis::Span& cols, T max) {
  int64_t found = -1;
  const int64_t height = kSize > 0 ? kSize : rows.size();
  const int64_t width = kSize > 0 ? kSize : cols.size();
  const auto visit = [&](auto&& is_maximum) {
    for (int64_t z = planes.end - 1; z >= planes.begin; --z) {
      const int64_t first = (z * s.rows.inputs + rows.begin) * s.cols.inputs + cols.begin;
      for (int64_t r = height - 1; r >= 0; --r) {
        const int64_t row = first + r * s.cols.inputs;
        for (int64_t k = width - 1; k >= 0; --k) {
          found = is_maximum(x[row + k]) ? row + k : found;
        }
      }
    }
  };
  if (!IsNaN(max)) {
    visit([max](T value) { return value >= max; });
  } else {
    visit([](T value) { return IsNaN(value); });  // which equals nothing
  }
  return found;
}

// Whether the windows are squares of two side by side, as most are, and none meets a border.
bool AreSquaresOfTwo(const PoolShape& s) {
  const auto has_whole = [](const PoolAxis& axis, int64_t size) {
    return !axis.adaptive && axis.window.size == size && axis.window.stride == size && axis.first_whole == 0 &&
           axis.end_whole == axis.outputs;
  };
  return has_whole(s.planes, 1) && has_whole(s.rows, 2) && has_whole(s.cols, 2);
}

// PoolMapGrad for `n` maxima of such windows side by side. No two share an element, so the compiler can vectorise the
// loop. Returns whether all maxima were found.
template <typename T>
bool SquaresOfTwoGrad(int64_t n, const T* __restrict upper, const T* __restrict lower, const T* __restrict out,
                      const T* __restrict out_grad, T* __restrict upper_grad, T* __restrict lower_grad) {
  int all = 1;
  for (int64_t o = 0; o < n; ++o) {
    const T max = out[o];
    const auto is_maximum = [max](T value) {
      return static_cast<int>(value >= max) | (static_cast<int>(value != value) & static_cast<int>(max != max));
    };
    const int a = is_maximum(upper[2 * o]);
    const int b = is_maximum(upper[2 * o + 1]) & ~a;
    const int c = is_maximum(lower[2 * o]) & ~(a | b);
    const int d = is_maximum(lower[2 * o + 1]) & ~(a | b | c);
    upper_grad[2 * o] += a != 0 ? out_grad[o] : T(0);
    upper_grad[2 * o + 1] += b != 0 ? out_grad[o] : T(0);
    lower_grad[2 * o] += c != 0 ? out_grad[o] : T(0);
    lower_grad[2 * o + 1] += d != 0 ? out_grad[o] : T(0);
    all &= a | b | c | d;
  }
  return all != 0;
}

}  // namespace

template <typename T>
void PoolMap(const PoolShape& s, const T* x, T* out) {
  using Span = PoolAxis::Span;
  if (s.max) {
    // Without a branch, which would be mispredicted as often as not.
    const auto greater = [](T value, T greatest) {
      return (static_cast<int>(value > greatest) | static_cast<int>(IsNaN(value))) != 0 ? value : greatest;
    };
    const auto of_some = [](T greatest, const Span& z, const Span& y, const Span& c) {
      return z.size() * y.size() * c.size() == 0 ? std::numeric_limits<T>::lowest() : greatest;
    };
    PoolRows(s, x, -std::numeric_limits<T>::infinity(), greater, of_some, out);
  } else {
    const auto add = [](T value, T total) { return value + total; };
    const auto divide = [&s](T total, const Span& z, const Span& y, const Span& c) {
      return total / static_cast<T>(s.Divisor(z, y, c));
    };
    if (s.HasOneWindow()) {
      *out = divide(Sum(s.MapSize(), x), s.planes.At(0), s.rows.At(0), s.cols.At(0));
      return;
    }
    PoolRows(s, x, T(0), add, divide, out);
  }
}

template <typename T>
void PoolMapGrad(const PoolShape& s, const T* x, const T* out, const T* out_grad, T* x_grad) {
  if (s.max && AreSquaresOfTwo(s)) {
    bool found = true;
    for (int64_t r = 0; r < s.planes.outputs * s.rows.outputs; ++r) {
      const int64_t plane = r / s.rows.outputs * s.rows.inputs * s.cols.inputs;
      const int64_t upper = plane + r % s.rows.outputs * 2 * s.cols.inputs;
      const int64_t lower = upper + s.cols.inputs;
      const int64_t o = r * s.cols.outputs;
      found &=
          SquaresOfTwoGrad(s.cols.outputs, x + upper, x + lower, out + o, out_grad + o, x_grad + upper, x_grad + lower);
    }
    if (found) {
      return;
    }  // else find out which one is missing
  }
  if (s.max) {
    return ForEachWindow(s, [&](const auto& z, const auto& y, const auto& c, int64_t o, auto size) {
      if (z.size() == 0 || y.size() == 0 || c.size() == 0) {
        return;
      }
      const int64_t found = FindMaximum<size()>(s, x, z, y, c, out[o]);
      HR_ENFORCE(found >= 0, InvalidArgument, "input Out: expected the maxima of X, got ", out[o],
                 ", which its window does not contain");
      x_grad[found] += out_grad[o];
    });
  }
  if (s.HasOneWindow()) {
    const T share = *out_grad / static_cast<T>(s.Divisor(s.planes.At(0), s.rows.At(0), s.cols.At(0)));
    for (int64_t i = 0; i < s.MapSize(); ++i) {
      x_grad[i] += share;
    }
    return;
  }
  ForEachWindow(s, [&](const auto& z, const auto& y, const auto& c, int64_t o, auto) {
    const T share = out_grad[o] / static_cast<T>(s.Divisor(z, y, c));
    for (int64_t iz = z.begin; iz < z.end; ++iz) {
      for (int64_t iy = y.begin; iy < y.end; ++iy) {
        T* row = x_grad + (iz * s.rows.inputs + iy) * s.cols.inputs;
        for (int64_t ix = c.begin; ix < c.end; ++ix) {
          row[ix] += share;
        }
      }
    }
  });
}

OpRegistrar&& WindowAttrs(OpRegistrar&& op, size_t spatial) {
  const std::string names = ": " + std::string(DimensionNames(spatial));
  const std::vector<int32_t> ones(spatial, 1);
  return std::move(op)
      .Attr<std::vector<int32_t>>(
          "ksize", "size of the window, or with adaptive of the result" + names + "; not used with global_pooling",
          ones)
      .Attr<std::vector<int32_t>>("strides", "step of the window" + names, ones)
      .With(PaddingAttrs, spatial, "border around the input, less than ksize")
      .Attr<bool>("global_pooling", "whether the window is the whole input, or with adaptive each element", false)
      .Attr<bool>("adaptive", "whether ksize windows of nearly the same size cover the input, instead of sliding ones",
                  false);
}

OpRegistrar&& PoolingTypeAttr(OpRegistrar&& op) {
  return std::move(op).Attr<std::string>("pooling_type", "'max' or 'avg'", "max", [](const std::string& type) {
    HR_ENFORCE(type == "max" || type == "avg", InvalidArgument,
               "attribute pooling_type: expected 'max' or 'avg', got '", type, "'");
  });
}

#define HEADRACE_INSTANTIATE(T)                             \
  template void PoolMap<T>(const PoolShape&, const T*, T*); \
  template void PoolMapGrad<T>(const PoolShape&, const T*, const T*, const T*, T*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
