// bilinear_interp, nearest_interp: images of another size.
#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/layout.h"
#include "operators/op_args.h"
#include "operators/window.h"

namespace headrace::ops {
namespace {

// Where an element of the result comes from along one dimension: `weight` from `low`, the rest from `high`.
struct Source {
  int64_t low;
  int64_t high;
  double weight;
};

// How places of the result map to those of the input.
struct Alignment {
  explicit Alignment(const AttributeIndex& op)
      : corners(op.Attr<bool>("align_corners")), centers(!corners && op.Attr<int32_t>("align_mode") == 0) {}

  double Ratio(int64_t in, int64_t out) const {
    if (corners) {
      return out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
    }
    return static_cast<double>(in) / static_cast<double>(out);
  }

  PoolVector<Source> Linear(int64_t in, int64_t out) const {
    const double ratio = Ratio(in, out);
    PoolVector<Source> sources;
    for (int64_t i = 0; i < out; ++i) {
      const double at =
          std::max(centers ? ratio * (static_cast<double>(i) + 0.5) - 0.5 : ratio * static_cast<double>(i), 0.0);
      const int64_t low = std::min(static_cast<int64_t>(at), in - 1);
      sources.push_back({low, std::min(low + 1, in - 1), 1 - (at - static_cast<double>(low))});
    }
    return sources;
  }

  PoolVector<Source> Nearest(int64_t in, int64_t out) const {
    const double ratio = Ratio(in, out);
    PoolVector<Source> sources;
    for (int64_t i = 0; i < out; ++i) {
      const auto at = static_cast<int64_t>(ratio * static_cast<double>(i) + (corners ? 0.5 : 0));
      const int64_t low = std::min(at, in - 1);
      sources.push_back({low, low, 1});
    }
    return sources;
  }

  bool corners;  // those of both images coincide
  bool centers;  // pixels are areas, of which the centers are compared
};

using ImageSize = std::pair<int64_t, int64_t>;  // height and width

Extents ExtentsOfX(const AttributeIndex& op, const DDim& x) { return ExtentsOf(x, 2, "X", HasChannelsLast(op)); }

// The dims of the result for `x`.
DDim ResizedDims(const AttributeIndex& op, const DDim& x, const ImageSize& size) {
  const bool channels_last = HasChannelsLast(op);
  return MapDims(x[0], ChannelsOf(x, channels_last), {1, size.first, size.second}, 2, channels_last);
}

// The size `x`, times `scale`; -1 where `x` is not known yet. `name`: of what holds the scale.
ImageSize Scaled(double factor, const char* name, const Extents& x) {
  const auto scale = static_cast<float>(factor);
  const auto scaled = [=](int64_t extent) -> int64_t {
    if (extent < 0) {
      return -1;
    }
    const float result = static_cast<float>(extent) * scale;
    HR_ENFORCE(result >= 1 && result < 0x1p31F, InvalidArgument, name,
               ": expected one that gives 1 to 2^31 pixels, got ", scale, " times ", extent);
    return static_cast<int64_t>(result);
  };
  return {scaled(x.height), scaled(x.width)};
}

// The size of the result, by the attributes; 0 or less if they do not tell.
ImageSize SizeByAttrs(const OpArgs& args, const Extents& x) {
  const double scale = args.Attr<double>("scale");
  return static_cast<float>(scale) > 0 ? Scaled(scale, "attribute scale", x)
                                       : ImageSize{args.Attr<int32_t>("out_h"), args.Attr<int32_t>("out_w")};
}

// The size of the result: of the first of SizeTensor, OutSize, Scale that is given, or of the attributes.
ImageSize ReadOutSize(const ExecutionContext& ctx) {
  const Extents x = ExtentsOfX(ctx.attrs(), ctx.Input("X").dims());
  ImageSize size;
  const char* name = "SizeTensor";
  if (ctx.InputSize("SizeTensor") != 0) {
    size = {OpArgs(ctx).Int("out_h", "SizeTensor", 0), OpArgs(ctx).Int("out_w", "SizeTensor", 1)};
  } else if (const LoDTensor* out_size = ctx.InputOrNull("OutSize")) {
    name = "OutSize";
    size = {out_size->data<int32_t>()[0], out_size->data<int32_t>()[1]};
  } else if (ctx.HasInput("Scale")) {
    const double scale = ScalarInput(ctx, "Scale");
    HR_ENFORCE(scale > 0, InvalidArgument, "input Scale: expected a number above 0, got ", scale);
    return Scaled(scale, "input Scale", x);
  } else {
    return SizeByAttrs(ctx, x);
  }
  HR_ENFORCE(size.first > 0 && size.second > 0, InvalidArgument, "input ", name,
             ": expected numbers of 1 or more (height, width), got ", size.first, " and ", size.second);
  return size;
}

// How the elements of the result come from those of the input. An element is one of each of `channels` that lie side by
// side; with the channels first each channel of an image counts as an image.
template <typename T, bool kLinear>
struct Plan {
  Plan(const ExecutionContext& ctx, const ImageSize& out) {
    const DDim& x = ctx.Input("X").dims();
    const Extents in = ExtentsOfX(ctx.attrs(), x);
    const Alignment alignment(ctx.attrs());
    const auto sources = [&](int64_t from, int64_t to) {
      return kLinear ? alignment.Linear(from, to) : alignment.Nearest(from, to);
    };
    rows = sources(in.height, out.first);
    cols = sources(in.width, out.second);
    const bool channels_last = HasChannelsLast(ctx.attrs());
    channels = channels_last ? x[3] : 1;
    images = channels_last ? x[0] : x[0] * x[1];
    in_width = in.width;
    in_size = in.height * in.width;
  }

  // Calls visit(place in the input, place in the result, weight) for all that count.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    if (channels == 1) {
      ForEachOf(std::integral_constant<int64_t, 1>(), visit);
    } else {
      ForEachOf(channels, visit);
    }
  }

  template <typename Channels, typename Visit>
  void ForEachOf(Channels n, const Visit& visit) const {
    int64_t at = 0;
    const auto visit_all = [&](int64_t from, T weight) {
      for (int64_t c = 0; c < n; ++c) {
        visit(from * n + c, at + c, weight);
      }
    };
    for (int64_t image = 0; image < images; ++image) {
      const int64_t base = image * in_size;
      for (const Source& y : rows) {
        for (const Source& x : cols) {
          const int64_t low = base + y.low * in_width;
          const auto top = static_cast<T>(y.weight);
          const auto left = static_cast<T>(x.weight);
          if constexpr (kLinear) {
            const int64_t high = base + y.high * in_width;
            visit_all(low + x.low, top * left);
            visit_all(low + x.high, top * (1 - left));
            visit_all(high + x.low, (1 - top) * left);
            visit_all(high + x.high, (1 - top) * (1 - left));
          } else {
            visit_all(low + x.low, T(1));
          }
          at += n;
        }
      }
    }
  }

  PoolVector<Source> rows;
  PoolVector<Source> cols;
  int64_t images;
  int64_t channels;
  int64_t in_width;
  int64_t in_size;
};

template <typename T, bool kLinear>
void InterpolateKernel(const ExecutionContext& ctx) {
  const ImageSize size = ReadOutSize(ctx);
  const LoDTensor& x_tensor = ctx.Input("X");
  LoDTensor* out_tensor = ctx.Output("Out");
  out_tensor->Resize(ResizedDims(ctx.attrs(), x_tensor.dims(), size));
  T* out = out_tensor->mutable_data<T>();
  if (out_tensor->numel() == 0) {
    return;
  }
  const T* x = x_tensor.data<T>();
  std::fill_n(out, out_tensor->numel(), T(0));
  Plan<T, kLinear>(ctx, size).ForEach([=](int64_t from, int64_t to, T weight) { out[to] += weight * x[from]; });
}

template <typename T, bool kLinear>
void InterpolateGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  T* dx = x_grad->mutable_data<T>();
  std::fill_n(dx, x_grad->numel(), T(0));
  if (out_grad.numel() == 0) {
    return;
  }
  const T* d = out_grad.data<T>();
  const Extents out = ExtentsOf(out_grad.dims(), 2, "Out@GRAD", HasChannelsLast(ctx.attrs()));
  Plan<T, kLinear>(ctx, {out.height, out.width}).ForEach([=](int64_t from, int64_t to, T weight) {
    dx[from] += weight * d[to];
  });
}

// Checks the inputs that operator and gradient share; returns the dims of Out, as far as they are known.
DDim CheckInterpolate(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const Extents in = ExtentsOfX(ctx.attrs(), x);
  DDim unknown = ResizedDims(ctx.attrs(), x, {-1, -1});
  HR_ENFORCE(in.height != 0 && in.width != 0, InvalidArgument, "input X: expected images that are not empty, got dims ",
             ToString(x));
  if (ctx.InputSize("SizeTensor") != 0) {
    HR_ENFORCE(ctx.InputSize("SizeTensor") == 2, InvalidArgument,
               "input SizeTensor: expected 2 variables, height and width, got ", ctx.InputSize("SizeTensor"));
    for (const size_t i : {0, 1}) {
      (void)OpArgs(ctx).Int("out_h", "SizeTensor", i);  // checks it
    }
    return unknown;
  }
  if (ctx.HasInput("OutSize")) {
    EnforceDims(ctx, "OutSize", {2});
    EnforceType(ctx, "OutSize", DataType::kInt32);
    return unknown;
  }
  if (ctx.HasInput("Scale")) {
    EnforceScalar(ctx, "Scale");
    return unknown;
  }
  const auto [height, width] = SizeByAttrs(ctx, in);
  HR_ENFORCE(ctx.Attr<double>("scale") > 0 || (height > 0 && width > 0), InvalidArgument,
             "attributes out_h and out_w: expected numbers of 1 or more, got ", height, " and ", width);
  return ResizedDims(ctx.attrs(), x, {height, width});
}

OpRegistrar&& InterpolateAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Input("SizeTensor", "int32 or int64 [1] each: height and width of Out; before all others",
             kDuplicable | kDispensable)
      .Input("OutSize", "int32 [2]: height and width of Out, instead of the attributes", kDispensable)
      .Input("Scale", "float32 or float64 [1]: the scale, instead of the attributes", kDispensable)
      .Attr<int32_t>("out_h", "height of Out", 0)
      .Attr<int32_t>("out_w", "width of Out", 0)
      .Attr<double>("scale", "above 0: Out has this times the height and width of X, rounded down, instead", 0.0)
      .Attr<bool>("align_corners", "whether the corner pixels of X and Out coincide", true)
      .Attr<int32_t>(
          "align_mode", "without align_corners, for bilinear_interp: 0: centers of pixels coincide, 1: edges", 1,
          [](const int32_t& mode) {
            HR_ENFORCE(mode == 0 || mode == 1, InvalidArgument, "attribute align_mode: expected 0 or 1, got ", mode);
          })
      .With(LayoutAttr, "data_layout", "NCHW")
      .KernelTypeFrom("X");
}

template <bool kLinear>
void Register(const std::string& type, const std::string& comment) {
  OpRegistrar(type)
      .Comment(comment)
      .Input("X", LayoutNames(2))
      .Output("Out", "[N, C, out_h, out_w] or [N, out_h, out_w, C]")
      .With(InterpolateAttrs)
      .InferShape([](InferShapeContext& ctx) { SetKnownOutput(ctx, "Out", CheckInterpolate(ctx), ctx.InputType("X")); })
      .template Kernel<float>(InterpolateKernel<float, kLinear>)
      .template Kernel<double>(InterpolateKernel<double, kLinear>)
      .Gradient(DefaultGradient({.inputs = {"X", "SizeTensor", "OutSize", "Scale"},
                                 .outputs = {},
                                 .no_gradient = {"SizeTensor", "OutSize", "Scale"}}))
      .Register();
  OpRegistrar(type + "_grad")
      .Comment("Gradient of " + type + ".")
      .Input("X", "as in the operator; only its dims are used")
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X")
      .With(InterpolateAttrs)
      .InferShape([](InferShapeContext& ctx) {
        EnforceDims(ctx, "Out@GRAD", CheckInterpolate(ctx));
        EnforceSameType(ctx, "Out@GRAD", "X");
        InferGradients(ctx, {"X"});
      })
      .template Kernel<float>(InterpolateGradKernel<float, kLinear>)
      .template Kernel<double>(InterpolateGradKernel<double, kLinear>)
      .Register();
}

HEADRACE_REGISTER_OPS(interpolate_ops) {
  Register<true>("bilinear_interp", "Images of another size; a pixel is the weighted mean of its four nearest.");
  Register<false>("nearest_interp", "Images of another size; a pixel is the nearest one.");
}

}  // namespace
}  // namespace headrace::ops
