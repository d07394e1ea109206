// bilinear_interp, nearest_interp: images of another size.
#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/kernel_util.h"

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
  explicit Alignment(const OpDesc& op)
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

// Height and width of the result for `x`, by the attributes; -1 where that of `x` is not known yet.
std::pair<int64_t, int64_t> SizeByAttrs(const OpDesc& op, const DDim& x) {
  const auto scale = static_cast<float>(op.Attr<double>("scale"));
  if (!(scale > 0)) {
    return {op.Attr<int32_t>("out_h"), op.Attr<int32_t>("out_w")};
  }
  const auto scaled = [scale](int64_t extent) -> int64_t {
    if (extent < 0) {
      return -1;
    }
    const float result = static_cast<float>(extent) * scale;
    HR_ENFORCE(result >= 1 && result < 0x1p31F, InvalidArgument,
               "attribute scale: expected one that gives 1 to 2^31 pixels, got ", scale, " times ", extent);
    return static_cast<int64_t>(result);
  };
  return {scaled(x[2]), scaled(x[3])};
}

// Height and width of the result: of OutSize, if it is given and its value known, else those of the attributes.
void ReadOutSize(const ExecutionContext& ctx, int64_t* height, int64_t* width) {
  const LoDTensor* size = ctx.InputOrNull("OutSize");
  if (size == nullptr) {
    std::tie(*height, *width) = SizeByAttrs(ctx.op(), ctx.Input("X").dims());
    return;
  }
  const int32_t* values = size->data<int32_t>();
  HR_ENFORCE(values[0] > 0 && values[1] > 0, InvalidArgument,
             "input OutSize: expected numbers of 1 or more (height, width), got ", values[0], " and ", values[1]);
  *height = values[0];
  *width = values[1];
}

template <typename T, bool kLinear>
struct Plan {
  Plan(const ExecutionContext& ctx, int64_t out_height, int64_t out_width) {
    const DDim& x = ctx.Input("X").dims();
    const Alignment alignment(ctx.op());
    const auto sources = [&](int64_t in, int64_t out) {
      return kLinear ? alignment.Linear(in, out) : alignment.Nearest(in, out);
    };
    rows = sources(x[2], out_height);
    cols = sources(x[3], out_width);
    images = x[0] * x[1];
    in_width = x[3];
    in_size = x[2] * x[3];
  }

  // Calls visit(place in the input, place in the result, weight) for all that count.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    int64_t at = 0;
    for (int64_t image = 0; image < images; ++image) {
      const int64_t base = image * in_size;
      for (const Source& y : rows) {
        for (const Source& x : cols) {
          const int64_t low = base + y.low * in_width;
          const auto top = static_cast<T>(y.weight);
          const auto left = static_cast<T>(x.weight);
          if constexpr (kLinear) {
            const int64_t high = base + y.high * in_width;
            visit(low + x.low, at, top * left);
            visit(low + x.high, at, top * (1 - left));
            visit(high + x.low, at, (1 - top) * left);
            visit(high + x.high, at, (1 - top) * (1 - left));
          } else {
            visit(low + x.low, at, T(1));
          }
          ++at;
        }
      }
    }
  }

  PoolVector<Source> rows;
  PoolVector<Source> cols;
  int64_t images;
  int64_t in_width;
  int64_t in_size;
};

template <typename T, bool kLinear>
void InterpolateKernel(const ExecutionContext& ctx) {
  int64_t height = 0;
  int64_t width = 0;
  ReadOutSize(ctx, &height, &width);
  const LoDTensor& x_tensor = ctx.Input("X");
  LoDTensor* out_tensor = ctx.Output("Out");
  out_tensor->Resize({x_tensor.dims()[0], x_tensor.dims()[1], height, width});
  T* out = out_tensor->mutable_data<T>();
  if (out_tensor->numel() == 0) {
    return;
  }
  const T* x = x_tensor.data<T>();
  std::fill_n(out, out_tensor->numel(), T(0));
  Plan<T, kLinear>(ctx, height, width).ForEach([=](int64_t from, int64_t to, T weight) {
    out[to] += weight * x[from];
  });
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
  Plan<T, kLinear>(ctx, out_grad.dims()[2], out_grad.dims()[3]).ForEach([=](int64_t from, int64_t to, T weight) {
    dx[from] += weight * d[to];
  });
}

// Checks the inputs that operator and gradient share; returns the dims of Out, as far as they are known.
DDim CheckInterpolate(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 4);
  const DDim x = ctx.InputDim("X");
  HR_ENFORCE(x[2] != 0 && x[3] != 0, InvalidArgument, "input X: expected images that are not empty, got dims ",
             ToString(x));
  if (ctx.HasInput("OutSize")) {
    EnforceDims(ctx, "OutSize", {2});
    EnforceType(ctx, "OutSize", DataType::kInt32);
    return {x[0], x[1], -1, -1};
  }
  const auto [height, width] = SizeByAttrs(ctx.op(), x);
  HR_ENFORCE(ctx.Attr<double>("scale") > 0 || (height > 0 && width > 0), InvalidArgument,
             "attributes out_h and out_w: expected numbers of 1 or more, got ", height, " and ", width);
  return {x[0], x[1], height, width};
}

OpRegistrar&& InterpolateAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Input("OutSize", "int32 [2]: height and width of Out, instead of the attributes", kDispensable)
      .Attr<int32_t>("out_h", "height of Out", 0)
      .Attr<int32_t>("out_w", "width of Out", 0)
      .Attr<double>("scale", "above 0: Out has this times the height and width of X, rounded down, instead", 0.0)
      .Attr<bool>("align_corners", "whether the corner pixels of X and Out coincide", true)
      .Attr<int32_t>(
          "align_mode", "without align_corners, for bilinear_interp: 0: centers of pixels coincide, 1: edges", 1,
          [](const int32_t& mode) {
            HR_ENFORCE(mode == 0 || mode == 1, InvalidArgument, "attribute align_mode: expected 0 or 1, got ", mode);
          })
      .KernelTypeFrom("X");
}

template <bool kLinear>
bool Register(const std::string& type, const std::string& comment) {
  OpRegistrar(type)
      .Comment(comment)
      .Input("X", "[N, C, H, W]")
      .Output("Out", "[N, C, out_h, out_w]")
      .With(InterpolateAttrs)
      .InferShape([](InferShapeContext& ctx) {
        const DDim out = CheckInterpolate(ctx);
        if (!ctx.IsRuntime() || Numel(out) >= 0) {
          SetOutput(ctx, "Out", out, ctx.InputType("X"));
        }
      })
      .template Kernel<float>(InterpolateKernel<float, kLinear>)
      .template Kernel<double>(InterpolateKernel<double, kLinear>)
      .Gradient(DefaultGradient({.inputs = {"X", "OutSize"}, .outputs = {}, .no_gradient = {"OutSize"}}))
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
  return true;
}

[[maybe_unused]] const bool kInterpolateOps =
    Register<true>("bilinear_interp", "Images of another size; a pixel is the weighted mean of its four nearest.") &&
    Register<false>("nearest_interp", "Images of another size; a pixel is the nearest one.");

}  // namespace
}  // namespace headrace::ops
