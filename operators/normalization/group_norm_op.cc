// group_norm: groups of channels of each image normalised.
#include <cmath>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/layout.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"
#include "operators/math/tensor_size.h"
#include "operators/normalization/norm.h"

namespace headrace::ops {
namespace {

// X, with the channels first, as [rows, size]: a row is a group of channels of an image.
struct Groups {
  Groups(const DDim& x, int64_t groups, bool last)
      : channels_last(last),
        channels(ChannelsOf(x, last)),
        groups_per_image(groups),
        pixels(last ? Numel(x, 1, x.size() - 1) : Numel(x, 2, x.size())),
        size(channels / groups * pixels),
        rows(size == 0 ? 0 : x[0] * groups) {}

  // The channel of element `i` of row `r`.
  int64_t ChannelOf(int64_t r, int64_t i) const {
    return r % groups_per_image * (channels / groups_per_image) + i / pixels;
  }

  bool channels_last;  // in the tensors
  int64_t channels;
  int64_t groups_per_image;
  int64_t pixels;
  int64_t size;
  int64_t rows;
};

Groups GroupsOf(const ExecutionContext& ctx) {
  return {ctx.Input("X").dims(), ctx.Attr<int32_t>("groups"), HasChannelsLast(ctx.attrs())};
}

template <typename T>
void GroupNormKernel(const ExecutionContext& ctx) {
  const Groups s = GroupsOf(ctx);
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  T* mean = ctx.Output("Mean")->mutable_data<T>();
  T* variance = ctx.Output("Variance")->mutable_data<T>();
  Tensor memory;
  const T* x = ReadChannelsFirst<T>(ctx.Input("X"), s.channels_last, &memory);
  const T* scale = ElementsOrNull<T>(ctx, "Scale");
  const T* bias = ElementsOrNull<T>(ctx, "Bias");
  WriteChannelsFirst<T>(ctx.Output("Y"), s.channels_last, [=](T* y) {
    ParallelFor(s.rows, RowsPerBlock(4 * s.size), [=](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const T* from = x + r * s.size;
        T* to = y + r * s.size;
        const T m = Sum(s.size, from) / static_cast<T>(s.size);
        variance[r] =
            SumOf<T>(s.size, [=](int64_t i) { return (from[i] - m) * (from[i] - m); }) / static_cast<T>(s.size);
        mean[r] = m;
        const T inverse = 1 / std::sqrt(variance[r] + epsilon);
        for (int64_t begin = 0; begin < s.size; begin += s.pixels) {
          const int64_t c = s.ChannelOf(r, begin);
          const T factor = inverse * (scale == nullptr ? T(1) : scale[c]);
          const T shift = bias == nullptr ? T(0) : bias[c];
          for (int64_t i = begin; i < begin + s.pixels; ++i) {
            to[i] = (from[i] - m) * factor + shift;
          }
        }
      }
    });
  });
}

// As for layer_norm, with a row per group and a scale per channel.
template <typename T>
void GroupNormGradKernel(const ExecutionContext& ctx) {
  const Groups s = GroupsOf(ctx);
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  T* dscale = ZerosOrNull<T>(ctx, "Scale@GRAD");
  T* dbias = ZerosOrNull<T>(ctx, "Bias@GRAD");
  Tensor x_memory;
  Tensor dy_memory;
  const T* x = ReadChannelsFirst<T>(ctx.Input("X"), s.channels_last, &x_memory);
  const T* dy = ReadChannelsFirst<T>(ctx.Input("Y@GRAD"), s.channels_last, &dy_memory);
  const T* scale = ElementsOrNull<T>(ctx, "Scale");
  const T* mean = ctx.Input("Mean").data<T>();
  const T* variance = ctx.Input("Variance").data<T>();
  const auto size = static_cast<T>(s.size);
  // Of each channel of each image: the sums of dy and of dy · h, with h = (x − mean) · inverse.
  Tensor sums_memory;
  Tensor dots_memory;
  const int64_t channels = s.size == 0 ? 0 : s.rows * (s.size / s.pixels);
  T* sums = Scratch<T>(&sums_memory, channels);
  T* dots = Scratch<T>(&dots_memory, channels);
  WriteChannelsFirst<T>(ctx.OutputOrNull("X@GRAD"), s.channels_last, [=](T* dx) {
    ParallelFor(s.rows, RowsPerBlock(8 * s.size), [=](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const T* from = x + r * s.size;
        const T* d = dy + r * s.size;
        const T m = mean[r];
        const T inverse = 1 / std::sqrt(variance[r] + epsilon);
        T sum = 0;  // of dy · scale
        T dot = 0;  // of dy · scale · h
        for (int64_t begin = 0; begin < s.size; begin += s.pixels) {
          const int64_t at = (r * s.size + begin) / s.pixels;
          sums[at] = Sum(s.pixels, d + begin);
          dots[at] = SumOf<T>(s.pixels, [=](int64_t i) { return d[begin + i] * ((from[begin + i] - m) * inverse); });
          const T factor = scale == nullptr ? T(1) : scale[s.ChannelOf(r, begin)];
          sum += sums[at] * factor;
          dot += dots[at] * factor;
        }
        const T d_mean = sum / size;
        const T slope = inverse * (dot / size);
        for (int64_t begin = 0; dx != nullptr && begin < s.size; begin += s.pixels) {
          const T factor = scale == nullptr ? T(1) : scale[s.ChannelOf(r, begin)];
          T* to = dx + r * s.size;
          HEADRACE_INDEPENDENT_ITERATIONS
          for (int64_t i = begin; i < begin + s.pixels; ++i) {
            to[i] = inverse * (d[i] * factor - d_mean - (from[i] - m) * slope);
          }
        }
      }
    });
  });
  for (int64_t at = 0; at < channels; ++at) {
    if (dscale != nullptr) {
      dscale[at % s.channels] += dots[at];
    }
    if (dbias != nullptr) {
      dbias[at % s.channels] += sums[at];
    }
  }
}

// Checks the inputs that operator and gradient share; returns the dims of the statistics.
DDim CheckGroupNorm(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  const int64_t channels = ChannelsOf(x, HasChannelsLast(ctx.attrs()));
  const int32_t groups = ctx.Attr<int32_t>("groups");
  HR_ENFORCE(groups > 0 && (channels < 0 || channels % groups == 0), InvalidArgument,
             "attribute groups: expected a divisor of the channels of X, which has dims ", ToString(x), ", got ",
             groups);
  for (size_t d = 1; d < x.size(); ++d) {
    HR_ENFORCE(x[d] != 0, InvalidArgument, "input X: expected images that are not empty, got dims ", ToString(x));
  }
  CheckScaleAndBias(ctx, channels);
  return {x[0], groups};
}

OpRegistrar&& GroupNormAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("groups", "how many groups the channels make")
      .Attr<double>("epsilon", "added to the variance", 1e-5, CheckEpsilon)
      .With(TwoLayoutsAttr, "data_layout");
}

}  // namespace

HEADRACE_REGISTER_OP(group_norm)
    .Comment(
        "Scale * (X - mean) / sqrt(variance + epsilon) + Bias, with mean and variance (with divisor N) of each group "
        "of channels of each image (Y. Wu and K. He, 2018).")
    .With(NormSlots, "[N, C, ...] or [N, ..., C]", "[C]", "[N, groups]")
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
