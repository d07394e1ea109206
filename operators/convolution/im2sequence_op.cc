// im2sequence: each image as the sequence of its patches, row by row.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// One dimension of the patches.
struct PatchAxis {
  int64_t size;
  int64_t stride;
  int64_t before;  // border
  int64_t after;

  // Fluid's: the division truncates, so an image a little too small still has a patch that hangs over.
  int64_t Count(int64_t inputs) const { return std::max<int64_t>(0, (before + after + inputs - size) / stride + 1); }
};

struct PatchShape {
  explicit PatchShape(const AttributeIndex& op) {
    const auto numbers = [&op](const char* attr, size_t count, int32_t min) {
      constexpr int32_t kMax = 1 << 20;  // as for convolutions
      const auto& values = op.Attr<std::vector<int32_t>>(attr);
      HR_ENFORCE(values.size() == count &&
                     std::all_of(values.begin(), values.end(), [min](int32_t v) { return min <= v && v <= kMax; }),
                 InvalidArgument, "attribute ", attr, ": expected ", count, " numbers in [", min, ", ", kMax, "], got ",
                 ToString(Attribute(values)));
      return values.data();
    };
    const int32_t* size = numbers("kernels", 2, 1);
    const int32_t* stride = numbers("strides", 2, 1);
    const int32_t* padding = numbers("paddings", 4, 0);
    const int32_t* out_stride = numbers("out_stride", 2, 1);
    rows = {size[0], stride[0], padding[0], padding[2]};
    cols = {size[1], stride[1], padding[1], padding[3]};
    row_step = out_stride[0];
    col_step = out_stride[1];
  }

  PatchAxis rows{};
  PatchAxis cols{};
  int64_t row_step;  // pixels of a real image for one of X
  int64_t col_step;
};

// Fluid's: a single image always counts as a whole.
bool HasRealSizes(const DDim& x, bool has_y) { return has_y && x[0] != 1; }

// How many rows and columns of patches image `i` has: with Y, as many as its real size fills. Beyond X are zeros.
std::pair<int64_t, int64_t> PatchesOf(const ExecutionContext& ctx, const PatchShape& s, int64_t i) {
  const DDim& x = ctx.Input("X").dims();
  int64_t height = x[2];
  int64_t width = x[3];
  const LoDTensor* y = ctx.InputOrNull("Y");
  if (HasRealSizes(x, y != nullptr)) {
    const auto real = [&](int64_t at, int64_t step) {
      const double size = y->dtype() == DataType::kFloat32 ? static_cast<double>(y->data<float>()[2 * i + at])
                                                           : y->data<double>()[2 * i + at];
      constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
      HR_ENFORCE(size >= 0 && size <= kMax, OutOfRange, "input Y: image ", i, " has a real size of ", size,
                 ", expected one in [0, ", kMax, "]");
      return (static_cast<int64_t>(size) + step - 1) / step;
    };
    height = real(0, s.row_step);
    width = real(1, s.col_step);
  }
  return {s.rows.Count(height), s.cols.Count(width)};
}

// Which patches are those of each image. Throws InvalidArgument if there are more than an int64_t holds: Y may ask for
// any number.
LoDOffsets PatchesOfAll(const ExecutionContext& ctx, const PatchShape& s) {
  LoDOffsets offsets = {0};
  int64_t patches = 0;
  for (int64_t i = 0; i < ctx.Input("X").dims()[0]; ++i) {
    const auto [rows, cols] = PatchesOf(ctx, s, i);
    patches = AddExtents(patches, MultiplyExtents(rows, cols));
    offsets.push_back(static_cast<size_t>(patches));
  }
  return offsets;
}

int64_t PatchSize(const PatchShape& s, int64_t channels) {
  return channels < 0 ? -1 : MultiplyExtents(channels, s.rows.size * s.cols.size);
}

// Calls visit(element of Out, element of X) for each element of a patch that lies inside its image, from several
// threads, each of which has images of its own. `offsets`: PatchesOfAll.
template <typename Visit>
void ForEachPixelOfPatches(const ExecutionContext& ctx, const PatchShape& s, const LoDOffsets& offsets,
                           const Visit& visit) {
  const DDim& x = ctx.Input("X").dims();
  const int64_t patch = PatchSize(s, x[1]);
  const auto visit_image = [=, &ctx, &offsets, channels = x[1], height = x[2], width = x[3]](int64_t i) {
    int64_t to = static_cast<int64_t>(offsets[static_cast<size_t>(i)]) * patch;
    const auto [rows, cols] = PatchesOf(ctx, s, i);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        for (int64_t c = 0; c < channels; ++c) {
          for (int64_t k = 0; k < s.rows.size; ++k) {
            const int64_t in_y = row * s.rows.stride - s.rows.before + k;
            const int64_t from = ((i * channels + c) * height + in_y) * width;
            for (int64_t l = 0; l < s.cols.size; ++l, ++to) {
              const int64_t in_x = col * s.cols.stride - s.cols.before + l;
              if (0 <= in_y && in_y < height && 0 <= in_x && in_x < width) {
                visit(to, from + in_x);
              }
            }
          }
        }
      }
    }
  };
  const int64_t all = static_cast<int64_t>(offsets.back()) * patch;
  ParallelForEach(x[0], visit_image, all / std::max<int64_t>(1, x[0]));
}

template <typename T>
void Im2SequenceKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& dims = x_tensor.dims();
  const PatchShape s(ctx.attrs());
  LoDOffsets offsets = PatchesOfAll(ctx, s);
  LoDTensor* out_tensor = ctx.Output("Out");
  const auto patches = static_cast<int64_t>(offsets.back());
  T* out = out_tensor->Resize({patches, PatchSize(s, dims[1])}).template mutable_data<T>();
  ParallelFill(out, out_tensor->numel(), T(0));
  const T* x = x_tensor.data<T>();
  ForEachPixelOfPatches(ctx, s, offsets, [=](int64_t to, int64_t from) { out[to] = x[from]; });
  out_tensor->set_lod({std::move(offsets)});
}

template <typename T>
void Im2SequenceGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  const PatchShape s(ctx.attrs());
  const LoDOffsets offsets = PatchesOfAll(ctx, s);
  HR_ENFORCE(out_grad.dims()[0] == static_cast<int64_t>(offsets.back()), InvalidArgument, "input Out@GRAD: expected ",
             offsets.back(), " rows, one for each patch of X, got dims ", ToString(out_grad.dims()));
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  ParallelFill(dx, x_tensor.numel(), T(0));
  const T* d = out_grad.data<T>();
  ForEachPixelOfPatches(ctx, s, offsets, [=](int64_t from, int64_t to) { dx[to] += d[from]; });
}

// Checks the inputs that operator and gradient share; returns the dims of Out.
DDim CheckIm2Sequence(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 4);
  const DDim x = ctx.InputDim("X");
  const PatchShape s(ctx.attrs());
  if (HasRealSizes(x, ctx.HasInput("Y"))) {
    EnforceDims(ctx, "Y", {x[0], 2});
    EnforceSameType(ctx, "Y", "X");
  } else {
    for (const auto& [axis, inputs] : {std::pair(s.rows, x[2]), std::pair(s.cols, x[3])}) {
      HR_ENFORCE(inputs < 0 || axis.Count(inputs) > 0, InvalidArgument, "input X: expected images of at least ",
                 s.rows.size, " x ", s.cols.size, " (attribute kernels) with their paddings, got dims ", ToString(x));
    }
  }
  return {-1, PatchSize(s, x[1])};
}

OpRegistrar&& Im2SequenceAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::vector<int32_t>>("kernels", "size of a patch: height, width")
      .Attr<std::vector<int32_t>>("strides", "from patch to patch: height, width", {1, 1})
      .Attr<std::vector<int32_t>>("paddings", "zeros around the image: up, left, down, right", {0, 0, 0, 0})
      .Attr<std::vector<int32_t>>("out_stride", "pixels of a real image for one of X: height, width; used with Y",
                                  {1, 1});
}

}  // namespace

HEADRACE_REGISTER_OP(im2sequence)
    .Comment("A sequence for each image: its patches, row by row. What is left at the border has none.")
    .Input("X", "[N, C, H, W]")
    .Input("Y", "[N, 2], dtype of X: real height and width of each image, of which it has patches; not used if N is 1",
           kDispensable)
    .Output("Out", "[patches, C KH KW] with LoD, a sequence for each image")
    .With(Im2SequenceAttrs)
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      const DDim out = CheckIm2Sequence(ctx);
      if (ctx.IsRuntime()) {
        return;  // the kernel knows how many patches there are
      }
      SetOutput(ctx, "Out", out, ctx.InputType("X"));
      ctx.SetOutputLoDLevel("Out", 1);
    })
    .Kernel<float>(Im2SequenceKernel<float>)
    .Kernel<double>(Im2SequenceKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {}, .no_gradient = {"Y"}}));

HEADRACE_REGISTER_OP(im2sequence_grad)
    .Comment("Gradient of im2sequence.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Y", "as in the operator", kDispensable)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(Im2SequenceAttrs)
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", CheckIm2Sequence(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(Im2SequenceGradKernel<float>)
    .Kernel<double>(Im2SequenceGradKernel<double>);

}  // namespace headrace::ops
