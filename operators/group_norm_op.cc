// group_norm: groups of channels of each image normalised.
#include <cmath>
#include <string>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/norm.h"
#include "operators/reduction.h"

namespace headrace::ops {
namespace {

// X as [rows, size]: a row is a group of channels of an image.
struct Groups {
  Groups(const DDim& x, int64_t groups)
      : channels(x[1]),
        groups_per_image(groups),
        pixels(Numel(x, 2, x.size())),
        size(channels / groups * pixels),
        rows(size == 0 ? 0 : x[0] * groups) {}

  // The channel of element `i` of row `r`.
  int64_t ChannelOf(int64_t r, int64_t i) const {
    return r % groups_per_image * (channels / groups_per_image) + i / pixels;
  }

  int64_t channels;
  int64_t groups_per_image;
  int64_t pixels;
  int64_t size;
  int64_t rows;
};

Groups GroupsOf(const ExecutionContext& ctx) { return {ctx.Input("X").dims(), ctx.Attr<int32_t>("groups")}; }

template <typename T>
void GroupNormKernel(const ExecutionContext& ctx) {
  const Groups s = GroupsOf(ctx);
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  T* y = ctx.Output("Y")->mutable_data<T>();
  T* mean = ctx.Output("Mean")->mutable_data<T>();
  T* variance = ctx.Output("Variance")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* scale = ElementsOrNull<T>(ctx, "Scale");
  const T* bias = ElementsOrNull<T>(ctx, "Bias");
  for (int64_t r = 0; r < s.rows; ++r, x += s.size, y += s.size) {
    const T m = Sum(s.size, x) / static_cast<T>(s.size);
    variance[r] = SumOf<T>(s.size, [=](int64_t i) { return (x[i] - m) * (x[i] - m); }) / static_cast<T>(s.size);
    mean[r] = m;
    const T inverse = 1 / std::sqrt(variance[r] + epsilon);
    for (int64_t begin = 0; begin < s.size; begin += s.pixels) {
      const int64_t c = s.ChannelOf(r, begin);
      const T factor = inverse * (scale == nullptr ? T(1) : scale[c]);
      const T shift = bias == nullptr ? T(0) : bias[c];
      for (int64_t i = begin; i < begin + s.pixels; ++i) {
        y[i] = (x[i] - m) * factor + shift;
      }
    }
  }
}

// As for layer_norm, with a row per group and a scale per channel.
template <typename T>
void GroupNormGradKernel(const ExecutionContext& ctx) {
  const Groups s = GroupsOf(ctx);
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  T* dx = MutableOrNull<T>(ctx, "X@GRAD");
  T* dscale = ZerosOrNull<T>(ctx, "Scale@GRAD");
  T* dbias = ZerosOrNull<T>(ctx, "Bias@GRAD");
  const T* x = ctx.Input("X").data<T>();
  const T* dy = ctx.Input("Y@GRAD").data<T>();
  const T* scale = ElementsOrNull<T>(ctx, "Scale");
  const T* mean = ctx.Input("Mean").data<T>();
  const T* variance = ctx.Input("Variance").data<T>();
  const auto size = static_cast<T>(s.size);
  for (int64_t r = 0; r < s.rows; ++r, x += s.size, dy += s.size) {
    const T m = mean[r];
    const T inverse = 1 / std::sqrt(variance[r] + epsilon);
    T sum = 0;  // of dy · scale
    T dot = 0;  // of dy · scale · h, with h = (x − mean) · inverse
    for (int64_t begin = 0; begin < s.size; begin += s.pixels) {
      const int64_t c = s.ChannelOf(r, begin);
      const T channel_sum = Sum(s.pixels, dy + begin);
      const T channel_dot =
          SumOf<T>(s.pixels, [=](int64_t i) { return dy[begin + i] * ((x[begin + i] - m) * inverse); });
      const T factor = scale == nullptr ? T(1) : scale[c];
      sum += channel_sum * factor;
      dot += channel_dot * factor;
      if (dscale != nullptr) {
        dscale[c] += channel_dot;
      }
      if (dbias != nullptr) {
        dbias[c] += channel_sum;
      }
    }
    if (dx == nullptr) {
      continue;
    }
    for (int64_t begin = 0; begin < s.size; begin += s.pixels) {
      const T factor = scale == nullptr ? T(1) : scale[s.ChannelOf(r, begin)];
      for (int64_t i = begin; i < begin + s.pixels; ++i) {
        dx[i] = inverse * (dy[i] * factor - sum / size - (x[i] - m) * inverse * dot / size);
      }
    }
    dx += s.size;
  }
}

// Checks the inputs that operator and gradient share; returns the dims of the statistics.
DDim CheckGroupNorm(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  const int32_t groups = ctx.Attr<int32_t>("groups");
  HR_ENFORCE(groups > 0 && (x[1] < 0 || x[1] % groups == 0), InvalidArgument,
             "attribute groups: expected a divisor of the channels of X, which has dims ", ToString(x), ", got ",
             groups);
  for (size_t d = 1; d < x.size(); ++d) {
    HR_ENFORCE(x[d] != 0, InvalidArgument, "input X: expected images that are not empty, got dims ", ToString(x));
  }
  CheckScaleAndBias(ctx, x[1]);
  return {x[0], groups};
}

OpRegistrar&& GroupNormAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("groups", "how many groups the channels make")
      .Attr<double>("epsilon", "added to the variance", 1e-5, CheckEpsilon)
      .Attr<std::string>("data_layout", "'NCHW'", "NCHW", [](const std::string& layout) {
        HR_ENFORCE(layout == "NCHW", Unimplemented, "attribute data_layout: only 'NCHW' is supported, got '", layout,
                   "'; transpose X first");
      });
}

}  // namespace

HEADRACE_REGISTER_OP(group_norm)
    .Comment(
        "Scale * (X - mean) / sqrt(variance + epsilon) + Bias, with mean and variance (with divisor N) of each group "
        "of channels of each image (Y. Wu and K. He, 2018).")
    .With(NormSlots, "[N, C, ...]", "[C]", "[N, groups]")
    .With(GroupNormAttrs)
    .InferShape([](InferShapeContext& ctx) { InferNorm(ctx, CheckGroupNorm(ctx)); })
    .Kernel<float>(GroupNormKernel<float>)
    .Kernel<double>(GroupNormKernel<double>);

HEADRACE_REGISTER_OP(group_norm_grad)
    .Comment("Gradient of group_norm.")
    .With(NormGradSlots)
    .With(GroupNormAttrs)
    .InferShape([](InferShapeContext& ctx) { InferNormGrad(ctx, CheckGroupNorm(ctx)); })
    .Kernel<float>(GroupNormGradKernel<float>)
    .Kernel<double>(GroupNormGradKernel<double>);

}  // namespace headrace::ops
