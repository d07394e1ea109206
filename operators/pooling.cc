#include "operators/pooling.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace headrace::ops {

PoolAxis::PoolAxis(const Window& sliding, int64_t input_count, int64_t output_count)
    : window(sliding), inputs(input_count), outputs(output_count), end_inside(output_count) {
  while (first_inside < end_inside && At(first_inside).size() == 0) {
    ++first_inside;
  }
  while (first_inside < end_inside && At(end_inside - 1).size() == 0) {
    --end_inside;
  }
}

PoolAxis PoolAxis::Adaptive(int64_t inputs, int64_t outputs) {
  PoolAxis axis;
  axis.inputs = inputs;
  axis.outputs = axis.end_inside = outputs;
  axis.adaptive = true;
  return axis;
}

namespace {

bool Flag(const OpDesc& op, const char* name) { return op.attrs.contains(name) && op.Attr<bool>(name); }

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
  const int64_t outputs = OutputSize(window, inputs, ceil, "X", dimension);
  if (outputs < 0) {
    PoolAxis axis;
    axis.inputs = axis.outputs = -1;
    return axis;
  }
  return {window, inputs, outputs};
}

}  // namespace

PoolShape::PoolShape(const OpDesc& op, size_t spatial, const DDim& x)
    : max(!op.attrs.contains("pooling_type") || op.Attr<std::string>("pooling_type") == "max"),
      exclusive(!op.attrs.contains("exclusive") || op.Attr<bool>("exclusive")) {
  const Extents in = ExtentsOf(x, spatial, "X");
  maps = Numel(x, 0, 2);
  const bool adaptive = op.Attr<bool>("adaptive");
  if (adaptive || op.Attr<bool>("global_pooling")) {
    HR_ENFORCE(in.depth != 0 && in.height != 0 && in.width != 0, InvalidArgument,
               "input X: expected images that are not empty, got dims ", ToString(x));
  }
  if (op.Attr<bool>("global_pooling")) {
    planes = WholeAxis(in.depth);
    rows = WholeAxis(in.height);
    cols = WholeAxis(in.width);
  } else if (adaptive) {
    const Extents size = ExtentsAttr(op, "ksize", spatial, 1, 1);
    planes = PoolAxis::Adaptive(in.depth, size.depth);
    rows = PoolAxis::Adaptive(in.height, size.height);
    cols = PoolAxis::Adaptive(in.width, size.width);
  } else {
    const Extents size = ExtentsAttr(op, "ksize", spatial, 1, 1);
    const Extents strides = ExtentsAttr(op, "strides", spatial, 1, 1);
    const Extents paddings = ExtentsAttr(op, "paddings", spatial, 0, 0);
    HR_ENFORCE(paddings.depth < size.depth && paddings.height < size.height && paddings.width < size.width,
               InvalidArgument,
               "attribute paddings: expected less than ksize, so that every window meets the image, got ",
               ToString(Attribute(op.Attr<std::vector<int32_t>>("paddings"))));
    const bool ceil = Flag(op, "ceil_mode");
    planes = SlidingAxis({size.depth, strides.depth, paddings.depth}, in.depth, ceil, "depth");
    rows = SlidingAxis({size.height, strides.height, paddings.height}, in.height, ceil, "height");
    cols = SlidingAxis({size.width, strides.width, paddings.width}, in.width, ceil, "width");
  }
  dims = MapDims(x[0], x[1], {planes.outputs, rows.outputs, cols.outputs}, spatial);
}

namespace {

// Combines one row of the input, `x`, into the windows of one row of the result, offset by offset of the window, so
// that the inner loop runs along memory.
template <typename T, typename Combine>
void CombineRow(const PoolAxis& cols, const T* x, T* out, Combine&& combine) {
  if (cols.adaptive) {
    for (int64_t o = 0; o < cols.outputs; ++o) {
      const PoolAxis::Span span = cols.At(o);
      for (int64_t i = span.begin; i < span.end; ++i) {
        out[o] = combine(x[i], out[o]);
      }
    }
    return;
  }
  const int64_t stride = cols.window.stride;
  for (int64_t k = 0; k < cols.window.size; ++k) {
    const Window::Range range = cols.window.OutputsInside(k, cols.inputs, cols.outputs);
    const int64_t from = cols.window.InputAt(0, k);
    for (int64_t o = range.begin; o < range.end; ++o) {
      out[o] = combine(x[from + o * stride], out[o]);
    }
  }
}

// Row by row of the result. finish(z, y, out) turns a row of combined elements into one of results.
template <typename T, typename Combine, typename Finish>
void PoolRows(const PoolShape& s, const T* x, T* out, T initial, Combine&& combine, Finish&& finish) {
  for (int64_t oz = 0; oz < s.planes.outputs; ++oz) {
    const PoolAxis::Span z = s.planes.At(oz);
    for (int64_t oy = 0; oy < s.rows.outputs; ++oy, out += s.cols.outputs) {
      const PoolAxis::Span y = s.rows.At(oy);
      std::fill_n(out, s.cols.outputs, initial);
      for (int64_t iz = z.begin; iz < z.end; ++iz) {
        for (int64_t iy = y.begin; iy < y.end; ++iy) {
          CombineRow(s.cols, x + (iz * s.rows.inputs + iy) * s.cols.inputs, out, combine);
        }
      }
      finish(z, y, out);
    }
  }
}

// Where the first element of a window is that equals its maximum, -1 if there is none. Looks at all elements, from the
// last to the first: leaving the loop early would cost more in mispredicted branches.
template <typename T>
int64_t FindMaximum(const PoolShape& s, const T* x, const PoolAxis::Span& planes, const PoolAxis::Span& rows,
                    const PoolAxis::Span& cols, T max) {
  int64_t found = -1;
  const auto visit = [&](auto&& is_maximum) {
    for (int64_t z = planes.end - 1; z >= planes.begin; --z) {
      for (int64_t y = rows.end - 1; y >= rows.begin; --y) {
        const int64_t row = (z * s.rows.inputs + y) * s.cols.inputs;
        for (int64_t at = row + cols.end - 1; at >= row + cols.begin; --at) {
          found = is_maximum(x[at]) ? at : found;
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

}  // namespace

template <typename T>
void PoolMap(const PoolShape& s, const T* x, T* out) {
  if (!s.max) {
    PoolRows(
        s, x, out, T(0), [](T value, T sum) { return value + sum; },
        [&s](const PoolAxis::Span& z, const PoolAxis::Span& y, T* row) {
          for (int64_t o = 0; o < s.cols.outputs; ++o) {
            row[o] /= static_cast<T>(s.Divisor(z, y, s.cols.At(o)));
          }
        });
    return;
  }
  PoolRows(
      s, x, out, -std::numeric_limits<T>::infinity(),
      [](T value, T greatest) { return value > greatest || IsNaN(value) ? value : greatest; },
      [&s](const PoolAxis::Span& z, const PoolAxis::Span& y, T* row) {
        const bool empty = z.size() == 0 || y.size() == 0;
        const int64_t first = empty ? s.cols.outputs : s.cols.first_inside;
        const int64_t end = empty ? s.cols.outputs : s.cols.end_inside;
        std::fill_n(row, first, std::numeric_limits<T>::lowest());
        std::fill_n(row + end, s.cols.outputs - end, std::numeric_limits<T>::lowest());
      });
}

namespace {

// Calls visit(window in planes, rows and columns, its element of the result) for each window.
template <typename Visit>
void ForEachWindow(const PoolShape& s, Visit&& visit) {
  int64_t o = 0;
  for (int64_t oz = 0; oz < s.planes.outputs; ++oz) {
    const PoolAxis::Span z = s.planes.At(oz);
    for (int64_t oy = 0; oy < s.rows.outputs; ++oy) {
      const PoolAxis::Span y = s.rows.At(oy);
      for (int64_t ox = 0; ox < s.cols.outputs; ++ox, ++o) {
        visit(z, y, s.cols.At(ox), o);
      }
    }
  }
}

}  // namespace

template <typename T>
void PoolMapGrad(const PoolShape& s, const T* x, const T* out, const T* out_grad, T* x_grad) {
  if (s.max) {
    return ForEachWindow(s, [&](const auto& z, const auto& y, const auto& c, int64_t o) {
      if (z.size() == 0 || y.size() == 0 || c.size() == 0) {
        return;
      }
      const int64_t found = FindMaximum(s, x, z, y, c, out[o]);
      HR_ENFORCE(found >= 0, InvalidArgument, "input Out: expected the maxima of X, got ", out[o],
                 ", which its window does not contain");
      x_grad[found] += out_grad[o];
    });
  }
  ForEachWindow(s, [&](const auto& z, const auto& y, const auto& c, int64_t o) {
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
      .Attr<std::vector<int32_t>>("paddings", "border around the input on either side, less than ksize" + names,
                                  std::vector<int32_t>(spatial, 0))
      .Attr<bool>("global_pooling", "whether the window is the whole input", false)
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
