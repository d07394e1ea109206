// mean, reduce_sum, reduce_mean.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "framework/op_registry.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/tensor_size.h"
#include "operators/reduction/reduce.h"

namespace headrace::ops {
namespace {

// --- mean: of all elements ---

void EnforceNotEmpty(const InferShapeContext& ctx) {
  HR_ENFORCE(Numel(ctx.InputDim("X")) != 0, InvalidArgument, "input X: expected at least one element, got dims ",
             ToString(ctx.InputDim("X")));
}

template <typename T>
void MeanKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const T* data = x.data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  *out = ParallelSumOf<T>(x.numel(), [data](int64_t i) { return data[i]; }) / static_cast<T>(x.numel());
}

template <typename T>
void MeanGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  const T d = *ctx.Input("Out@GRAD").data<T>() / static_cast<T>(x_grad->numel());
  ParallelFill(x_grad->mutable_data<T>(), x_grad->numel(), d);
}

// --- reduce_sum, reduce_mean: along some dimensions ---

// Integers are added one by one, since ParallelSumOf adds in double; so are short runs, which it takes longer for.
template <typename T>
T SumOfRun(int64_t n, const T* x) {
  constexpr int64_t kShort = 8;
  if constexpr (std::is_floating_point_v<T>) {
    if (n > kShort) {
      return ParallelSumOf<T>(n, [x](int64_t i) { return x[i]; });
    }
  }
  return std::accumulate(x, x + n, T(0));
}

template <typename T>
void ReduceSum(const ExecutionContext& ctx, T* out) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const auto* x = reinterpret_cast<const Wrapping<T>*>(x_tensor.data<T>());
  auto* sums = reinterpret_cast<Wrapping<T>*>(out);
  std::fill_n(out, Numel(ReducedDims(ctx.attrs(), x_tensor.dims())), T(0));
  BroadcastPlan(x_tensor.dims(), KeptDims(ctx.attrs(), x_tensor.dims()))
      .SumInParallel(sums, [x](auto* to, int64_t at, int64_t out_at, int64_t n, bool kept) {
        if (!kept) {
          to[out_at] += SumOfRun(n, x + at);
          return;
        }
        for (int64_t i = 0; i < n; ++i) {
          to[out_at + i] += x[at + i];
        }
      });
}

template <typename T>
void ReduceSumKernel(const ExecutionContext& ctx) {
  ReduceSum(ctx, ctx.Output("Out")->mutable_data<T>());
}

template <typename T>
void ReduceMeanKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  ReduceSum(ctx, out);
  const auto count = static_cast<T>(ElementsPerResult(ctx.attrs(), ctx.Input("X").dims()));
  for (int64_t i = 0, n = out_tensor->numel(); i < n; ++i) {
    out[i] /= count;
  }
}

template <typename T>
void ReduceSumGradKernel(const ExecutionContext& ctx) {
  const T* d = ctx.Input("Out@GRAD").data<T>();
  SpreadGradient<T>(ctx, [=](int64_t, int64_t result) { return d[result]; });
}

template <typename T>
void ReduceMeanGradKernel(const ExecutionContext& ctx) {
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const auto count = static_cast<T>(ElementsPerResult(ctx.attrs(), ctx.Input("X").dims()));
  SpreadGradient<T>(ctx, [=](int64_t, int64_t result) { return d[result] / count; });
}

}  // namespace

HEADRACE_REGISTER_OP(mean)
    .Comment("The mean of all elements.")
    .Input("X", "any shape; at least one element")
    .Output("Out", "[1]")
    .InferShape([](InferShapeContext& ctx) {
      EnforceNotEmpty(ctx);
      SetOutput(ctx, "Out", {1}, ctx.InputType("X"));
    })
    .Kernel<float>(MeanKernel<float>)
    .Kernel<double>(MeanKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(mean_grad)
    .Comment("Gradient of mean.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceNotEmpty(ctx);
      EnforceDims(ctx, "Out@GRAD", {1});
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(MeanGradKernel<float>)
    .Kernel<double>(MeanGradKernel<double>)
    .Gradient(GradientOfLinear("mean"));

HEADRACE_REGISTER_OP(reduce_sum)
    .Comment("The sum along some dimensions; integers wrap around.")
    .With(ReduceSlots)
    .InferShape(InferReduce)
    .Kernel<float>(ReduceSumKernel<float>)
    .Kernel<double>(ReduceSumKernel<double>)
    .Kernel<int32_t>(ReduceSumKernel<int32_t>)
    .Kernel<int64_t>(ReduceSumKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(reduce_sum_grad)
    .Comment("Gradient of reduce_sum.")
    .With(ReduceGradSlots, kShapeOnly)
    .Kernel<float>(ReduceSumGradKernel<float>)
    .Kernel<double>(ReduceSumGradKernel<double>)
    .Gradient(GradientOfLinear("reduce_sum"));

HEADRACE_REGISTER_OP(reduce_mean)
    .Comment("The mean along some dimensions.")
    .With(ReduceSlots)
    .InferShape(InferReduceOfSome)
    .Kernel<float>(ReduceMeanKernel<float>)
    .Kernel<double>(ReduceMeanKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(reduce_mean_grad)
    .Comment("Gradient of reduce_mean.")
    .With(ReduceGradSlots, kShapeOnly)
    .Kernel<float>(ReduceMeanGradKernel<float>)
    .Kernel<double>(ReduceMeanGradKernel<double>)
    .Gradient(GradientOfLinear("reduce_mean"));

}  // namespace headrace::ops
