// instance_norm: each channel of each image normalised.
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/second_order.h"
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
      if (dx == nullptr) {
        continue;
      }
      T* to = dx + r * s.size;
      const T factor = scale[r % s.channels] * inv;
      const T d_mean = sums[r] / size;
      const T slope = inv * (dots[r] / size);
      HEADRACE_INDEPENDENT_ITERATIONS
      for (int64_t i = 0; i < s.size; ++i) {
        to[i] = factor * (d[i] - d_mean - (from[i] - m) * slope);
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

// With h = (x − mean) · r, r = SavedVariance, and P(v) = v − mean(v) − h · mean(v · h) of a row, the gradient is
// dx = scale · r · P(dy), dscale = Σ dy · h, dbias = Σ dy. So given the gradients v, u and w of these:
//   of dy: scale · r · P(v) + u · h + w
//   of scale: Σ v · r · P(dy)
//   of x: r · u · P(dy) − scale · r² · (h · (mean(v · dy) − mean(v) · mean(dy) − a · b) + b · P(v) + a · P(dy)),
//     a = mean(v · h), b = mean(dy · h), since P(q) · r is the gradient of Σ q · h by x, and −h · r² / size that of r.
template <typename T>
void InstanceNormGradGradKernel(const ExecutionContext& ctx) {
  const Instances s(ctx.Input("X").dims());
  T* dscale = ZerosOrNull<T>(ctx, "Scale@GRAD");
  T* dx = MutableOrNull<T>(ctx, "X@GRAD");
  T* ddy = MutableOrNull<T>(ctx, "Y@GRAD@GRAD");
  const auto data_or_null = [&](HashedName slot) {
    const LoDTensor* tensor = ctx.InputOrNull(slot);
    return tensor == nullptr ? nullptr : tensor->data<T>();
  };
  const T* x = ctx.Input("X").data<T>();
  const T* dy = ctx.Input("Y@GRAD").data<T>();
  const T* scale = ctx.Input("Scale").data<T>();
  const T* mean = ctx.Input("SavedMean").data<T>();
  const T* inverse = ctx.Input("SavedVariance").data<T>();
  const T* of_dx = data_or_null("X@GRAD@GRAD");
  const T* of_dscale = data_or_null("Scale@GRAD@GRAD");
  const T* of_dbias = data_or_null("Bias@GRAD@GRAD");
  const auto size = static_cast<T>(s.size);
  Tensor dots_memory;
  T* dots = Scratch<T>(&dots_memory, s.rows);  // Σ v · P(dy) of each row
  ParallelFor(s.rows, RowsPerBlock(16 * s.size), [=](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T* from = x + row * s.size;
      const T* d = dy + row * s.size;
      const T* given = of_dx == nullptr ? nullptr : of_dx + row * s.size;
      const T m = mean[row];
      const T r = inverse[row];
      const T factor = scale[row % s.channels];
      const T u = of_dscale == nullptr ? T(0) : of_dscale[row % s.channels];
      const T w = of_dbias == nullptr ? T(0) : of_dbias[row % s.channels];
      const auto h = [=](int64_t i) { return (from[i] - m) * r; };
      const auto v = [=](int64_t i) { return given == nullptr ? T(0) : given[i]; };
      const auto mean_of = [&](auto&& value) { return SumOf<T>(s.size, value) / size; };
      const T d_mean = mean_of([=](int64_t i) { return d[i]; });
      const T v_mean = mean_of([=](int64_t i) { return v(i); });
      const T a = mean_of([=](int64_t i) { return v(i) * h(i); });
      const T b = mean_of([=](int64_t i) { return d[i] * h(i); });
      const T covariance = mean_of([=](int64_t i) { return (v(i) - v_mean) * (d[i] - d_mean); }) - a * b;
      dots[row] = covariance * size;
      for (int64_t i = 0; i < s.size; ++i) {
        const T v_part = v(i) - v_mean - h(i) * a;
        const T d_part = d[i] - d_mean - h(i) * b;
        if (ddy != nullptr) {
          ddy[row * s.size + i] = factor * r * v_part + u * h(i) + w;
        }
        if (dx != nullptr) {
          dx[row * s.size + i] = r * u * d_part - factor * r * r * (h(i) * covariance + b * v_part + a * d_part);
        }
      }
    }
  });
  for (int64_t row = 0; dscale != nullptr && row < s.rows; ++row) {
    dscale[row % s.channels] += dots[row] * inverse[row];
  }
}

std::vector<OpDesc> InstanceNormGradGradient(const OpDesc& op) {
  const GradientTerms terms(op);
  OpDesc gradient{"instance_norm_grad_grad", {}, {}, op.attrs};
  for (const char* slot : {"X", "Scale", "Bias", "SavedMean", "SavedVariance", "Y@GRAD"}) {
    gradient.inputs[slot] = op.Input(slot);
  }
  for (const char* slot : {"X@GRAD", "Scale@GRAD", "Bias@GRAD"}) {
    gradient.inputs[GradVarName(slot)] = {terms.Given(slot)};
  }
  for (const char* slot : {"X", "Scale", "Y@GRAD"}) {
    gradient.outputs[GradVarName(slot)] = {terms.Wanted(slot)};
  }
  return {std::move(gradient)};
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

// Of its gradient and the gradient of that.
void CheckInstanceNormGrad(const InferShapeContext& ctx) {
  const DDim statistics = CheckInstanceNorm(ctx);
  for (const HashedName slot : HashedNames{"SavedMean", "SavedVariance"}) {
    EnforceDims(ctx, slot, statistics);
    EnforceSameType(ctx, slot, "X");
  }
  EnforceDims(ctx, "Y@GRAD", ctx.InputDim("X"));
  EnforceSameType(ctx, "Y@GRAD", "X");
}

OpRegistrar&& InstanceNormGradInputs(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "as in instance_norm")
      .Input("Scale", "as in instance_norm")
      .Input("Bias", "as in instance_norm; only its dims are used", kShapeOnly)
      .Input("SavedMean", "as in instance_norm")
      .Input("SavedVariance", "as in instance_norm")
      .Input("Y@GRAD", "gradient of Y");
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
    .With(InstanceNormGradInputs)
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Scale@GRAD", "dims of Scale", kDispensable)
    .Output("Bias@GRAD", "dims of Bias", kDispensable)
    .Attr<double>("epsilon", "added to the variance", 1e-5, CheckEpsilon)
    .InferShape([](InferShapeContext& ctx) {
      CheckInstanceNormGrad(ctx);
      InferGradients(ctx, {"X", "Scale", "Bias"});
    })
    .Kernel<float>(InstanceNormGradKernel<float>)
    .Kernel<double>(InstanceNormGradKernel<double>)
    .Gradient(InstanceNormGradGradient);

HEADRACE_REGISTER_OP(instance_norm_grad_grad)
    .Comment("Gradient of instance_norm_grad, by way of Y. A missing gradient counts as zero.")
    .With(InstanceNormGradInputs)
    .Input("X@GRAD@GRAD", "gradient of X@GRAD", kDispensable)
    .Input("Scale@GRAD@GRAD", "gradient of Scale@GRAD", kDispensable)
    .Input("Bias@GRAD@GRAD", "gradient of Bias@GRAD", kDispensable)
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Scale@GRAD", "dims of Scale", kDispensable)
    .Output("Y@GRAD@GRAD", "dims of Y", kDispensable)
    .Attr<double>("epsilon", "added to the variance", 1e-5, CheckEpsilon)
    .InferShape([](InferShapeContext& ctx) {
      CheckInstanceNormGrad(ctx);
      constexpr std::pair<HashedName, HashedName> kGiven[] = {
          {"X@GRAD@GRAD", "X"}, {"Scale@GRAD@GRAD", "Scale"}, {"Bias@GRAD@GRAD", "Bias"}};
      for (const auto& [slot, like] : kGiven) {
        if (ctx.HasInput(slot)) {
          EnforceDims(ctx, slot, ctx.InputDim(like));
          EnforceSameType(ctx, slot, "X");
        }
      }
      InferGradients(ctx, {"X", "Scale"});
      if (ctx.HasOutput("Y@GRAD@GRAD")) {
        SetOutput(ctx, "Y@GRAD@GRAD", ctx.InputDim("X"), ctx.InputType("X"));
      }
    })
    .Kernel<float>(InstanceNormGradGradKernel<float>)
    .Kernel<double>(InstanceNormGradGradKernel<double>);

}  // namespace headrace::ops
