// batch_norm: each channel normalised over the batch.
#include <algorithm>
#include <cmath>
#include <string>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/kernel_util.h"
#include "operators/layout.h"
#include "operators/reduction.h"

namespace headrace::ops {
namespace {

// X as [images, channels, pixels]; where the channels come last, each pixel counts as an image.
struct Channels {
  Channels(const AttributeIndex& op, const DDim& x)
      : images(HasChannelsLast(op) ? Numel(x, 0, x.size() - 1) : x[0]),
        channels(HasChannelsLast(op) ? x.back() : x[1]),
        pixels(HasChannelsLast(op) ? 1 : Numel(x, 2, x.size())),
        count(images * pixels) {}

  // Calls visit(c) for each channel, from several threads.
  template <typename Visit>
  void ForEachChannel(const Visit& visit) const {
    ParallelFor(channels, RowsPerBlock(2 * count), [&visit](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        visit(c);
      }
    });
  }

  // Calls run(offset of a row of `pixels` elements of channel c) for each image.
  template <typename Run>
  void ForEachRow(int64_t c, Run&& run) const {
    for (int64_t i = 0; i < images; ++i) {
      run((i * channels + c) * pixels);
    }
  }

  // Σ at(i) over the elements of channel c.
  template <typename T, typename At>
  double SumOfChannel(int64_t c, At&& at) const {
    double sum = 0;
    ForEachRow(
        c, [&](int64_t row) { sum += static_cast<double>(SumOf<T>(pixels, [&](int64_t i) { return at(row + i); })); });
    return sum;
  }

  int64_t images;
  int64_t channels;
  int64_t pixels;
  int64_t count;  // elements of a channel
};

bool UsesRunningStatistics(const AttributeIndex& op) {
  return op.Attr<bool>("is_test") || op.Attr<bool>("use_global_stats");
}

template <typename T>
void BatchNormKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const Channels s(ctx.attrs(), x_tensor.dims());
  const bool running = UsesRunningStatistics(ctx.attrs());
  const double epsilon = ctx.Attr<double>("epsilon");
  const auto momentum = static_cast<T>(ctx.Attr<double>("momentum"));
  T* y = ctx.Output("Y")->mutable_data<T>();
  T* mean_out = ctx.Output("MeanOut")->mutable_data<T>();
  T* variance_out = ctx.Output("VarianceOut")->mutable_data<T>();
  T* saved_mean = ctx.Output("SavedMean")->mutable_data<T>();
  T* saved_inverse = ctx.Output("SavedVariance")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* scale = ctx.Input("Scale").data<T>();
  const T* bias = ctx.Input("Bias").data<T>();
  const T* mean = ctx.Input("Mean").data<T>();
  const T* variance = ctx.Input("Variance").data<T>();

  s.ForEachChannel([=, &s](int64_t c) {
    double channel_mean = static_cast<double>(mean[c]);
    double channel_variance = static_cast<double>(variance[c]);
    if (!running) {
      channel_mean = s.SumOfChannel<T>(c, [x](int64_t i) { return x[i]; }) / static_cast<double>(s.count);
      // The mean is taken off first: the difference of large squares would cancel.
      const double sum =
          s.SumOfChannel<T>(c, [x, m = static_cast<T>(channel_mean)](int64_t i) { return (x[i] - m) * (x[i] - m); });
      channel_variance = sum / static_cast<double>(s.count);
    }
    const auto m = static_cast<T>(channel_mean);
    const auto inverse = static_cast<T>(1 / std::sqrt(channel_variance + epsilon));
    mean_out[c] = running ? mean[c] : momentum * mean[c] + (1 - momentum) * m;
    variance_out[c] =
        running ? variance[c] : momentum * variance[c] + (1 - momentum) * static_cast<T>(channel_variance);
    saved_mean[c] = m;
    saved_inverse[c] = inverse;
    const T factor = inverse * scale[c];
    s.ForEachRow(c, [=, &s, b = bias[c]](int64_t row) {
      for (int64_t i = row; i < row + s.pixels; ++i) {
        y[i] = (x[i] - m) * factor + b;
      }
    });
  });
}

// With h = (x − mean) · inverse: dbias = Σ dy, dscale = Σ dy · h, and, as mean and variance depend on x too (unless
// they are the running ones), dx = scale · inverse · (dy − dbias / count − h · dscale / count).
template <typename T>
void BatchNormGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const Channels s(ctx.attrs(), x_tensor.dims());
  const bool running = UsesRunningStatistics(ctx.attrs());
  LoDTensor* x_grad = ctx.OutputOrNull("X@GRAD");
  LoDTensor* scale_grad = ctx.OutputOrNull("Scale@GRAD");
  LoDTensor* bias_grad = ctx.OutputOrNull("Bias@GRAD");
  T* dx = x_grad == nullptr ? nullptr : x_grad->mutable_data<T>();
  T* dscale = scale_grad == nullptr ? nullptr : scale_grad->mutable_data<T>();
  T* dbias = bias_grad == nullptr ? nullptr : bias_grad->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* dy = ctx.Input("Y@GRAD").data<T>();
  const T* scale = ctx.Input("Scale").data<T>();
  const T* saved_mean = ctx.Input("SavedMean").data<T>();
  const T* saved_inverse = ctx.Input("SavedVariance").data<T>();

  s.ForEachChannel([=, &s](int64_t c) {
    const T mean = saved_mean[c];
    const T inverse = saved_inverse[c];
    const auto sum = static_cast<T>(s.SumOfChannel<T>(c, [=](int64_t i) { return dy[i]; }));
    const auto dot = static_cast<T>(s.SumOfChannel<T>(c, [=](int64_t i) { return dy[i] * ((x[i] - mean) * inverse); }));
    if (dbias != nullptr) {
      dbias[c] = sum;
    }
    if (dscale != nullptr) {
      dscale[c] = dot;
    }
    if (dx != nullptr) {
      const T sum_share = running ? T(0) : sum / static_cast<T>(s.count);
      const T dot_share = running ? T(0) : dot / static_cast<T>(s.count);
      s.ForEachRow(c, [=, &s, factor = scale[c] * inverse](int64_t row) {
        for (int64_t i = row; i < row + s.pixels; ++i) {
          dx[i] = factor * (dy[i] - sum_share - (x[i] - mean) * inverse * dot_share);
        }
      });
    }
  });
}

void EnforceChannels(const InferShapeContext& ctx, HashedNames slots) {
  EnforceRankAtLeast(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  for (const HashedName slot : slots) {
    EnforceDims(ctx, slot, {HasChannelsLast(ctx.attrs()) ? x.back() : x[1]});
    EnforceSameType(ctx, slot, "X");
  }
}

void InferBatchNorm(InferShapeContext& ctx) {
  EnforceChannels(ctx, {"Scale", "Bias", "Mean", "Variance"});
  const DDim x = ctx.InputDim("X");
  bool has_elements = true;
  for (size_t d = 0; d < x.size(); ++d) {
    has_elements = has_elements && (x[d] != 0 || d == (HasChannelsLast(ctx.attrs()) ? x.size() - 1 : 1));
  }
  HR_ENFORCE(UsesRunningStatistics(ctx.attrs()) || has_elements, InvalidArgument,
             "input X: expected at least one element for each channel in training, got dims ", ToString(x));
  const DDim channels = ctx.InputDim("Scale");
  ctx.ShareAll("X", "Y");
  for (const HashedName slot : HashedNames{"MeanOut", "VarianceOut", "SavedMean", "SavedVariance"}) {
    SetOutput(ctx, slot, channels, ctx.InputType("X"));
  }
}

OpRegistrar&& BatchNormAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<bool>("is_test", "whether the running statistics are used and left as they are", false)
      .Attr<bool>("use_global_stats", "the same, in training", false)
      .Attr<double>("momentum", "how much of the running statistics stays", 0.9)
      .Attr<double>("epsilon", "added to the variance", 1e-5, CheckEpsilon)
      .With(TwoLayoutsAttr, "data_layout");
}

}  // namespace

HEADRACE_REGISTER_OP(batch_norm)
    .Comment(
        "Scale * (X - mean) / sqrt(variance + epsilon) + Bias, by channel; mean and variance (with divisor N) are "
        "those of the batch.")
    .Input("X", "[N, C, ...], or [N, ..., C]")
    .Input("Scale", "[C]")
    .Input("Bias", "[C]")
    .Input("Mean", "[C], the running mean")
    .Input("Variance", "[C], the running variance")
    .Output("Y", "dims of X")
    .Output("MeanOut", "[C], momentum * Mean + (1 - momentum) * mean; may be Mean")
    .InPlace("MeanOut", "Mean")
    .Output("VarianceOut", "[C], likewise; may be Variance")
    .InPlace("VarianceOut", "Variance")
    .Output("SavedMean", "[C], the mean that was used")
    .Output("SavedVariance", "[C], 1 / sqrt(variance + epsilon), as in Paddle")
    .With(BatchNormAttrs)
    .InferShape(InferBatchNorm)
    .Kernel<float>(BatchNormKernel<float>)
    .Kernel<double>(BatchNormKernel<double>)
    .Gradient(DefaultGradient(
        {.inputs = {"X", "Scale"}, .outputs = {"SavedMean", "SavedVariance"}, .no_gradient = {"Mean", "Variance"}}));

HEADRACE_REGISTER_OP(batch_norm_grad)
    .Comment("Gradient of batch_norm.")
    .Input("X", "as in the operator")
    .Input("Scale", "as in the operator")
    .Input("SavedMean", "as in the operator")
    .Input("SavedVariance", "as in the operator")
    .Input("Y@GRAD", "gradient of Y")
    .Input("MeanOut@GRAD", "not used", kDispensable)
    .Input("VarianceOut@GRAD", "not used", kDispensable)
    .Input("SavedMean@GRAD", "not used", kDispensable)
    .Input("SavedVariance@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Scale@GRAD", "[C]", kDispensable)
    .Output("Bias@GRAD", "[C]", kDispensable)
    .With(BatchNormAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceChannels(ctx, {"Scale", "SavedMean", "SavedVariance"});
      EnforceDims(ctx, "Y@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X", "Scale"});
      SetOutput(ctx, "Bias@GRAD", ctx.InputDim("Scale"), ctx.InputType("X"));
    })
    .Kernel<float>(BatchNormGradKernel<float>)
    .Kernel<double>(BatchNormGradKernel<double>);

}  // namespace headrace::ops
