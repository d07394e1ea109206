// unfold: the patches of images as columns.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/convolution/window.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

struct UnfoldShape {
  UnfoldShape(const AttributeIndex& op, const DDim& x) {
    const auto numbers = [&op](const char* attr, size_t count, int32_t min) {
      constexpr int32_t kMax = 1 << 20;  // as for convolutions
      const auto& values = op.Attr<std::vector<int32_t>>(attr);
      HR_ENFORCE(values.size() == count &&
                     std::all_of(values.begin(), values.end(), [min](int32_t v) { return min <= v && v <= kMax; }),
                 InvalidArgument, "attribute ", attr, ": expected ", count, " numbers in [", min, ", ", kMax, "], got ",
                 ToString(Attribute(values)));
      return values.data();
    };
    const int32_t* size = numbers("kernel_sizes", 2, 1);
    const int32_t* stride = numbers("strides", 2, 1);
    const int32_t* padding = numbers("paddings", 4, 0);
    const int32_t* dilation = numbers("dilations", 2, 1);
    rows = {size[0], stride[0], padding[0], dilation[0], padding[2]};
    cols = {size[1], stride[1], padding[1], dilation[1], padding[3]};
    in_height = x[2];
    in_width = x[3];
    out_height = OutputSize(rows, in_height, false, "X", "height");
    out_width = OutputSize(cols, in_width, false, "X", "width");
  }

  // Calls visit(pixel, position, how many) for each run of positions at which offset (i, j) of the window meets pixels
  // of the image; pixels are cols.stride apart.
  template <typename Visit>
  void ForEachUnfolded(int64_t i, int64_t j, const Visit& visit) const {
    const Window::Range y_range = rows.OutputsInside(i, in_height, out_height);
    const Window::Range x_range = cols.OutputsInside(j, in_width, out_width);
    for (int64_t y = y_range.begin; y < y_range.end && x_range.begin < x_range.end; ++y) {
      visit(rows.InputAt(y, i) * in_width + cols.InputAt(x_range.begin, j), y * out_width + x_range.begin,
            x_range.end - x_range.begin);
    }
  }

  Window rows{};
  Window cols{};
  int64_t in_height;
  int64_t in_width;
  int64_t out_height;
  int64_t out_width;
};

template <typename T>
void UnfoldKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& dims = x_tensor.dims();
  const UnfoldShape s(ctx.attrs(), dims);
  T* out = ctx.Output("Y")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const int64_t offsets = s.rows.size * s.cols.size;
  const int64_t positions = s.out_height * s.out_width;
  ParallelFor(dims[0] * dims[1] * offsets, RowsPerBlock(positions), [&, out, x](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* image = x + r / offsets * s.in_height * s.in_width;
      T* to = out + r * positions;
      std::fill_n(to, positions, T(0));
      s.ForEachUnfolded(r % offsets / s.cols.size, r % s.cols.size, [&](int64_t pixel, int64_t position, int64_t n) {
        for (int64_t k = 0; k < n; ++k) {
          to[position + k] = image[pixel + k * s.cols.stride];
        }
      });
    }
  });
}

template <typename T>
void UnfoldGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  const DDim& dims = x_grad->dims();
  const UnfoldShape s(ctx.attrs(), dims);
  T* dx = x_grad->mutable_data<T>();
  const T* d = ctx.Input("Y@GRAD").data<T>();
  const int64_t offsets = s.rows.size * s.cols.size;
  const int64_t positions = s.out_height * s.out_width;
  const int64_t pixels = s.in_height * s.in_width;
  ParallelFor(dims[0] * dims[1], RowsPerBlock(offsets * positions), [&, dx, d](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      T* image = dx + c * pixels;
      std::fill_n(image, pixels, T(0));
      for (int64_t offset = 0; offset < offsets; ++offset) {
        const T* from = d + (c * offsets + offset) * positions;
        s.ForEachUnfolded(offset / s.cols.size, offset % s.cols.size, [&](int64_t pixel, int64_t position, int64_t n) {
          for (int64_t k = 0; k < n; ++k) {
            image[pixel + k * s.cols.stride] += from[position + k];
          }
        });
      }
    }
  });
}

DDim UnfoldDims(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 4);
  const DDim x = ctx.InputDim("X");
  const UnfoldShape s(ctx.attrs(), x);
  const DDim positions = {s.out_height, s.out_width};
  return {x[0], x[1] < 0 ? -1 : MultiplyExtents(x[1], s.rows.size * s.cols.size), Numel(positions)};
}

OpRegistrar&& UnfoldAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::vector<int32_t>>("kernel_sizes", "height and width of the patches")
      .Attr<std::vector<int32_t>>("strides", "rows and columns from one patch to the next")
      .Attr<std::vector<int32_t>>("paddings", "rows and columns of zeros before the image, then those after it")
      .Attr<std::vector<int32_t>>("dilations", "rows and columns from one pixel of a patch to the next");
}

}  // namespace

HEADRACE_REGISTER_OP(unfold)
    .Comment("The patches of images as columns, row by row: what a convolution multiplies by its filter.")
    .Input("X", "[N, C, H, W]")
    .Output("Y", "[N, C * height * width of the patches, number of patches]")
    .With(UnfoldAttrs)
    .InferShape([](InferShapeContext& ctx) { SetOutput(ctx, "Y", UnfoldDims(ctx), ctx.InputType("X")); })
    .Kernel<float>(UnfoldKernel<float>)
    .Kernel<double>(UnfoldKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(unfold_grad)
    .Comment("Gradient of unfold.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Y@GRAD", "gradient of Y")
    .Output("X@GRAD", "dims of X")
    .With(UnfoldAttrs)
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Y@GRAD", UnfoldDims(ctx));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(UnfoldGradKernel<float>)
    .Kernel<double>(UnfoldGradKernel<double>);

}  // namespace headrace::ops
