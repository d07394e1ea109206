// instance_norm: each channel of each image normalised.
#include <cmath>
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"
#include "operators/math/tensor_size.h"
#include "operators/normalization/norm.h"

namespace headrace::ops {
namespace {

// X as [rows, size]: a row is a channel of an image.
struct Instances {
  explicit Instances(const DDim& x) : channels(x[1]), size(Numel(x, 2, x.size())), rows(x[0] * x[1]) {}
  int64_t channels;
  int64_t size;
  int64_t rows;
};

template <typename T>
void InstanceNormKernel(const ExecutionContext& ctx) {
  const Instances s(ctx.Input("X").dims());
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  T* mean = ctx.Output("SavedMean")->mutable_data<T>();
  T* inverse = ctx.Output("SavedVariance")->mutable_data<T>();
  T* y = ctx.Output("Y")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* scale = ctx.Input("Scale").data<T>();
  const T* bias = ctx.Input("Bias").data<T>();
  ParallelFor(s.rows, RowsPerBlock(4 * s.size), [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T* from = x + r * s.size;
      T* to = y + r * s.size;
      const T m = Sum(s.size, from) / static_cast<T>(s.size);
      const T variance =
          SumOf<T>(s.size, [=](int64_t i) { return (from[i] - m) * (from[i] - m); }) / static_cast<T>(s.size);
      mean[r] = m;
      inverse[r] = 1 / std::sqrt(variance + epsilon);
      const T factor = inverse[r] * scale[r % s.channels];
      const T shift = bias[r % s.channels];
      for (int64_t i = 0; i < s.size; ++i) {
        to[i] = (from[i] - m) * factor + shift;
      }
    }
  });
}

// As for layer_norm, with a row per channel of an image and one scale for all of it.
template <typename T>
void InstanceNormGradKernel(const ExecutionContext& ctx) {
  const Instances s(ctx.Input("X").dims());
  T* dscale = ZerosOrNull<T>(ctx, "Scale@GRAD");
  T* dbias = ZerosOrNull<T>(ctx, "Bias@GRAD");
  T* dx = MutableOrNull<T>(ctx, "X@GRAD");
  const T* x = ctx.Input("X").data<T>();
  const T* dy = ctx.Input("Y@GRAD").data<T>();
  const T* scale = ctx.Input("Scale").data<T>();
  const T* mean = ctx.Input("SavedMean").data<T>();
  const T* inverse = ctx.Input("SavedVariance").data<T>();
  const auto size = static_cast<T>(s.size);
  // Of each row: the sums of dy and of dy · h, with h = (x − mean) · inverse.
  Tensor sums_memory;
  Tensor dots_memory;
  T* sums = Scratch<T>(&sums_memory, s.rows);
  T* dots = Scratch<T>(&dots_memory, s.rows);
  ParallelFor(s.rows, RowsPerBlock(8 * s.size), [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T* from = x + r * s.size;
      const T* d = dy + r * s.size;
      const T m = mean[r];
      const T inv = inverse[r];
      sums[r] = Sum(s.size, d);
      dots[r] = SumOf<T>(s.size, [=](int64_t i) { return d[i] * ((from[i] - m) * inv); });
      const T factor = scale[r % s.channels] * inv;
      for (int64_t i = 0; dx != nullptr && i < s.size; ++i) {
        dx[r * s.size + i] = factor * (d[i] - sums[r] / size - (from[i] - m) * inv * dots[r] / size);
      }
    }
  });
  for (int64_t r = 0; r < s.rows; ++r) {
    if (dscale != nullptr) {
      dscale[r % s.channels] += dots[r];
    }
    if (dbias != nullptr) {
      dbias[r % s.channels] += sums[r];
    }
  }
}

// Checks the inputs that operator and gradient share; returns the dims of the statistics.
DDim CheckInstanceNorm(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  HR_ENFORCE(x.size() <= 5, InvalidArgument, "input X: expected at most 5 dimensions, got dims ", ToString(x));
  for (size_t d = 1; d < x.size(); ++d) {
    HR_ENFORCE(x[d] != 0, InvalidArgument, "input X: expected images that are not empty, got dims ", ToString(x));
  }
  CheckScaleAndBias(ctx, x[1]);
  return {Numel(x, 0, 2)};
}

}  // namespace

HEADRACE_REGISTER_OP(instance_norm)
    .Comment(
        "Scale * (X - mean) / sqrt(variance + epsilon) + Bias, with mean and variance (with divisor N) of each channel "
        "of each image (D. Ulyanov et al., 2016).")
    .Input("X", "[N, C, ...], 2 to 5 dimensions")
    .Input("Scale", "[C]")
    .Input("Bias", "[C]")
    .Output("Y", "dims of X")
    .Output("SavedMean", "[N * C]")
    .Output("SavedVariance", "[N * C]: 1 / sqrt(variance + epsilon)")
    .Attr<double>("epsilon", "added to the variance", 1e-5, CheckEpsilon)
    .InferShape([](InferShapeContext& ctx) {
      const DDim statistics = CheckInstanceNorm(ctx);
      ctx.ShareAll("X", "Y");
      SetOutput(ctx, "SavedMean", statistics, ctx.InputType("X"));
      SetOutput(ctx, "SavedVariance", statistics, ctx.InputType("X"));
    })
    .Kernel<float>(InstanceNormKernel<float>)
    .Kernel<double>(InstanceNormKernel<double>)
    .Gradient([](const OpDesc& op) {
      return std::vector<OpDesc>{{"instance_norm_grad",
                                  {{"X", op.Input("X")},
                                   {"Scale", op.Input("Scale")},
                                   {"Bias", op.Input("Bias")},
                                   {"SavedMean", op.Output("SavedMean")},
                                   {"SavedVariance", op.Output("SavedVariance")},
                                   {"Y@GRAD", {GradVarName(op.Output("Y")[0])}}},
                                  {{"X@GRAD", {GradVarName(op.Input("X")[0])}},
                                   {"Scale@GRAD", {GradVarName(op.Input("Scale")[0])}},
                                   {"Bias@GRAD", {GradVarName(op.Input("Bias")[0])}}},
                                  op.attrs}};
    });

HEADRACE_REGISTER_OP(instance_norm_grad)
    .Comment("Gradient of instance_norm, by way of Y.")
    .Input("X", "as in the operator")
    .Input("Scale", "as in the operator")
    .Input("Bias", "as in the operator; only its dims are used", kShapeOnly)
    .Input("SavedMean", "as in the operator")
    .Input("SavedVariance", "as in the operator")
    .Input("Y@GRAD", "gradient of Y")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Scale@GRAD", "dims of Scale", kDispensable)
    .Output("Bias@GRAD", "dims of Bias", kDispensable)
    .Attr<double>("epsilon", "added to the variance", 1e-5, CheckEpsilon)
    .InferShape([](InferShapeContext& ctx) {
      const DDim statistics = CheckInstanceNorm(ctx);
      for (const HashedName slot : HashedNames{"SavedMean", "SavedVariance"}) {
        EnforceDims(ctx, slot, statistics);
        EnforceSameType(ctx, slot, "X");
      }
      EnforceDims(ctx, "Y@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X", "Scale", "Bias"});
    })
    .Kernel<float>(InstanceNormGradKernel<float>)
    .Kernel<double>(InstanceNormGradKernel<double>);

}  // namespace headrace::ops
