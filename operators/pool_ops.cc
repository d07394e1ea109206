// pool2d: the maximum or the average of sliding windows.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/window.h"

namespace headrace::ops {
namespace {

// The sizes of a pooling. At compile time those of the input may be -1.
struct PoolShape {
  PoolShape(const OpDesc& op, const DDim& x)
      : max(op.Attr<std::string>("pooling_type") == "max"), exclusive(op.Attr<bool>("exclusive")) {
    HR_ENFORCE(x.size() == 4, InvalidArgument, "input X: expected dims [N, C, H, W], got ", ToString(x));
    dims = x;
    height = x[2];
    width = x[3];
    if (op.Attr<bool>("global_pooling")) {
      HR_ENFORCE(height != 0 && width != 0, InvalidArgument, "input X: expected images that are not empty, got dims ",
                 ToString(x));
      rows = {height, 1, 0};
      cols = {width, 1, 0};
      out_height = out_width = 1;
    } else {
      const Pair size = PairAttr(op, "ksize", 1);
      const Pair strides = PairAttr(op, "strides", 1);
      const Pair paddings = PairAttr(op, "paddings", 0);
      HR_ENFORCE(paddings.height < size.height && paddings.width < size.width, InvalidArgument,
                 "attribute paddings: expected less than ksize, so that every window meets the image, got ",
                 ToString(Attribute(op.Attr<std::vector<int32_t>>("paddings"))));
      rows = {size.height, strides.height, paddings.height};
      cols = {size.width, strides.width, paddings.width};
      const bool ceil = op.Attr<bool>("ceil_mode");
      out_height = OutputSize(rows, height, ceil, "X", "height");
      out_width = OutputSize(cols, width, ceil, "X", "width");
    }
    dims[2] = out_height;
    dims[3] = out_width;
  }

  bool max;
  bool exclusive;
  int64_t height;
  int64_t width;
  int64_t out_height;
  int64_t out_width;
  DDim dims;  // of the result
  Window rows{};
  Window cols{};
};

// The part [begin, end) of a window that lies inside the image. With ceil_mode, that of the last one may be empty.
struct Clipped {
  Clipped(const Window& window, int64_t o, int64_t inputs)
      : begin(std::clamp<int64_t>(window.InputAt(o, 0), 0, inputs)),
        end(std::min(window.InputAt(o, window.size), inputs)) {}
  int64_t size() const { return end - begin; }
  int64_t begin;
  int64_t end;
};

// What an average divides by; that of nothing is 0.
int64_t Divisor(const PoolShape& s, const Clipped& y, const Clipped& x) {
  return s.exclusive ? std::max<int64_t>(y.size() * x.size(), 1) : s.rows.size * s.cols.size;
}

// Row by row of the result, and offset by offset of the window within it, so that the inner loop runs along memory.
template <typename T>
void MaxPoolImage(const PoolShape& s, const T* x, T* out) {
  for (int64_t oy = 0; oy < s.out_height; ++oy, out += s.out_width) {
    std::fill_n(out, s.out_width, -std::numeric_limits<T>::infinity());
    const Clipped y(s.rows, oy, s.height);
    for (int64_t iy = y.begin; iy < y.end; ++iy) {
      for (int64_t k = 0; k < s.cols.size; ++k) {
        const Window::Range range = s.cols.OutputsInside(k, s.width, s.out_width);
        const T* from = x + iy * s.width + s.cols.InputAt(0, k);
        const int64_t stride = s.cols.stride;
        for (int64_t ox = range.begin; ox < range.end; ++ox) {
          const T value = from[ox * stride];
          out[ox] = value > out[ox] || IsNaN(value) ? value : out[ox];
        }
      }
    }
    // Fluid's maximum of nothing. Of the windows of a row no other than the last can be empty.
    if (y.size() == 0) {
      std::fill_n(out, s.out_width, std::numeric_limits<T>::lowest());
    } else if (Clipped(s.cols, s.out_width - 1, s.width).size() == 0) {
      out[s.out_width - 1] = std::numeric_limits<T>::lowest();
    }
  }
}

template <typename T>
void AveragePoolImage(const PoolShape& s, const T* x, T* out) {
  for (int64_t oy = 0; oy < s.out_height; ++oy, out += s.out_width) {
    std::fill_n(out, s.out_width, T(0));
    const Clipped y(s.rows, oy, s.height);
    for (int64_t iy = y.begin; iy < y.end; ++iy) {
      for (int64_t k = 0; k < s.cols.size; ++k) {
        const Window::Range range = s.cols.OutputsInside(k, s.width, s.out_width);
        const T* from = x + iy * s.width + s.cols.InputAt(0, k);
        const int64_t stride = s.cols.stride;
        for (int64_t ox = range.begin; ox < range.end; ++ox) {
          out[ox] += from[ox * stride];
        }
      }
    }
    for (int64_t ox = 0; ox < s.out_width; ++ox) {
      out[ox] /= static_cast<T>(Divisor(s, y, Clipped(s.cols, ox, s.width)));
    }
  }
}

// Where the first element of a window is that equals its maximum, -1 if there is none. Looks at all elements, from the
// last to the first: leaving the loop early would cost more in mispredicted branches.
template <typename T>
int64_t FindMaximum(const T* x, int64_t width, const Clipped& rows, const Clipped& cols, T max) {
  int64_t found = -1;
  const auto visit = [&](auto&& is_maximum) {
    for (int64_t y = rows.end - 1; y >= rows.begin; --y) {
      for (int64_t at = y * width + cols.end - 1; at >= y * width + cols.begin; --at) {
        found = is_maximum(x[at]) ? at : found;
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

// The first of the greatest elements of a window gets its gradient.
template <typename T>
void MaxPoolImageGrad(const PoolShape& s, const T* x, const T* out, const T* out_grad, T* x_grad) {
  for (int64_t oy = 0; oy < s.out_height; ++oy) {
    const Clipped y(s.rows, oy, s.height);
    for (int64_t ox = 0; ox < s.out_width; ++ox, ++out, ++out_grad) {
      const Clipped c(s.cols, ox, s.width);
      if (y.size() == 0 || c.size() == 0) {
        continue;
      }
      const int64_t found = FindMaximum(x, s.width, y, c, *out);
      HR_ENFORCE(found >= 0, InvalidArgument, "input Out: expected the maxima of X, got ", *out,
                 ", which its window does not contain");
      x_grad[found] += *out_grad;
    }
  }
}

template <typename T>
void AveragePoolImageGrad(const PoolShape& s, const T* out_grad, T* x_grad) {
  for (int64_t oy = 0; oy < s.out_height; ++oy) {
    const Clipped y(s.rows, oy, s.height);
    for (int64_t ox = 0; ox < s.out_width; ++ox, ++out_grad) {
      const Clipped c(s.cols, ox, s.width);
      const T share = *out_grad / static_cast<T>(Divisor(s, y, c));
      for (int64_t iy = y.begin; iy < y.end; ++iy) {
        for (int64_t ix = c.begin; ix < c.end; ++ix) {
          x_grad[iy * s.width + ix] += share;
        }
      }
    }
  }
}

template <typename T>
void PoolKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const PoolShape s(ctx.op(), x_tensor.dims());
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const int64_t images = s.dims[0] * s.dims[1];
  for (int64_t i = 0; i < images; ++i, x += s.height * s.width, out += s.out_height * s.out_width) {
    s.max ? MaxPoolImage(s, x, out) : AveragePoolImage(s, x, out);
  }
}

template <typename T>
void PoolGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const PoolShape s(ctx.op(), x_tensor.dims());
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* out = ctx.Input("Out").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  std::fill_n(dx, x_tensor.numel(), T(0));
  const int64_t images = s.dims[0] * s.dims[1];
  const int64_t x_size = s.height * s.width;
  const int64_t out_size = s.out_height * s.out_width;
  for (int64_t i = 0; i < images; ++i, x += x_size, dx += x_size, out += out_size, d += out_size) {
    s.max ? MaxPoolImageGrad(s, x, out, d, dx) : AveragePoolImageGrad(s, d, dx);
  }
}

OpRegistrar&& PoolAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::string>("pooling_type", "'max' or 'avg'", "max",
                         [](const std::string& type) {
                           HR_ENFORCE(type == "max" || type == "avg", InvalidArgument,
                                      "attribute pooling_type: expected 'max' or 'avg', got '", type, "'");
                         })
      .Attr<std::vector<int32_t>>("ksize", "size of the window: height, width; not used with global_pooling", {1, 1})
      .Attr<std::vector<int32_t>>("strides", "step of the window: height, width", {1, 1})
      .Attr<std::vector<int32_t>>("paddings", "border around the image on either side, less than ksize: height, width",
                                  {0, 0})
      .Attr<bool>("global_pooling", "whether the window is the whole image", false)
      .Attr<bool>(
          "ceil_mode",
          "whether a last window may hang over the border; if it meets padding only, its average is 0, its maximum the "
          "lowest number",
          false)
      .Attr<bool>("exclusive", "whether averages leave the padding out", true);
}

}  // namespace

HEADRACE_REGISTER_OP(pool2d)
    .Comment("The maximum or the average of each window. Padding never counts as a maximum.")
    .Input("X", "[N, C, H, W]")
    .Output("Out", "[N, C, OH, OW], OH = (H + 2 padding - ksize) / stride + 1, rounded up in ceil_mode, OW likewise")
    .With(PoolAttrs)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Out", PoolShape(ctx.op(), ctx.InputDim("X")).dims, ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Kernel<float>(PoolKernel<float>)
    .Kernel<double>(PoolKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Out"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(pool2d_grad)
    .Comment("Gradient of pool2d. Of equally great elements of a window, the first gets the gradient.")
    .Input("X", "as in the operator")
    .Input("Out", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(PoolAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim out = PoolShape(ctx.op(), ctx.InputDim("X")).dims;
      for (const char* slot : {"Out", "Out@GRAD"}) {
        EnforceDims(ctx, slot, out);
        EnforceSameType(ctx, slot, "X");
      }
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(PoolGradKernel<float>)
    .Kernel<double>(PoolGradKernel<double>);

}  // namespace headrace::ops
