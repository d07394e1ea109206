// mean, reduce_sum, reduce_mean, reduce_max.
#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "framework/op_registry.h"
#include "operators/broadcast.h"
#include "operators/kernel_util.h"
#include "operators/reduction.h"

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
  *ctx.Output("Out")->mutable_data<T>() = Sum(x.numel(), x.data<T>()) / static_cast<T>(x.numel());
}

template <typename T>
void MeanGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  const T d = *ctx.Input("Out@GRAD").data<T>() / static_cast<T>(x_grad->numel());
  std::fill_n(x_grad->mutable_data<T>(), x_grad->numel(), d);
}

// --- reduce_*: along some dimensions ---

// Which dimensions of `x` stay.
std::vector<bool> KeptDims(const OpDesc& op, const DDim& x) {
  std::vector<bool> kept(x.size(), !op.Attr<bool>("reduce_all"));
  if (op.Attr<bool>("reduce_all")) {
    return kept;
  }
  const auto& dims = op.Attr<std::vector<int32_t>>("dim");
  HR_ENFORCE(!dims.empty(), InvalidArgument, "attribute dim: expected at least one dimension, or reduce_all");
  for (const int32_t dim : dims) {
    const size_t d = FrontAxis(dim, x.size(), "dim");
    HR_ENFORCE(kept[d], InvalidArgument, "attribute dim: dimension ", d, " is given twice");
    kept[d] = false;
  }
  return kept;
}

DDim ReducedDims(const OpDesc& op, const DDim& x) {
  const std::vector<bool> kept = KeptDims(op, x);
  DDim out;
  for (size_t d = 0; d < x.size(); ++d) {
    if (kept[d]) {
      out.push_back(x[d]);
    } else if (op.Attr<bool>("keep_dim")) {
      out.push_back(1);
    }
  }
  if (out.empty()) {
    out.push_back(1);
  }
  return out;
}

// How many elements of `x` make one of the result.
int64_t ElementsPerResult(const OpDesc& op, const DDim& x) {
  const std::vector<bool> kept = KeptDims(op, x);
  DDim reduced;
  for (size_t d = 0; d < x.size(); ++d) {
    if (!kept[d]) {
      reduced.push_back(x[d]);
    }
  }
  return Numel(reduced);
}

template <typename T>
void ReduceSum(const ExecutionContext& ctx, T* out) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  std::fill_n(out, Numel(ReducedDims(ctx.op(), x_tensor.dims())), T(0));
  BroadcastPlan(x_tensor.dims(), KeptDims(ctx.op(), x_tensor.dims()))
      .ForEachRun([=](int64_t at, int64_t out_at, int64_t n, bool kept) {
        if (!kept) {
          out[out_at] += SumOf<T>(n, [=](int64_t i) { return x[at + i]; });
          return;
        }
        for (int64_t i = 0; i < n; ++i) {
          out[out_at + i] += x[at + i];
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
  const auto count = static_cast<T>(ElementsPerResult(ctx.op(), ctx.Input("X").dims()));
  for (int64_t i = 0, n = out_tensor->numel(); i < n; ++i) {
    out[i] /= count;
  }
}

template <typename T>
T NanOrGreater(T a, T b) {
  return a > b || IsNaN(a) ? a : b;
}

template <typename T>
void ReduceMaxKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  constexpr T kLowest =
      std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  std::fill_n(out, out_tensor->numel(), kLowest);
  BroadcastPlan(x_tensor.dims(), KeptDims(ctx.op(), x_tensor.dims()))
      .ForEachRun([=](int64_t at, int64_t out_at, int64_t n, bool kept) {
        for (int64_t i = 0; i < n; ++i) {
          T& to = out[out_at + (kept ? i : 0)];
          to = NanOrGreater(to, x[at + i]);
        }
      });
}

// x_grad[i] = value(index of the element, index of its result).
template <typename T, typename Value>
void SpreadGradient(const ExecutionContext& ctx, Value&& value) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  T* dx = x_grad->mutable_data<T>();
  BroadcastPlan(x_grad->dims(), KeptDims(ctx.op(), x_grad->dims()))
      .ForEachRun([&](int64_t at, int64_t out_at, int64_t n, bool kept) {
        for (int64_t i = 0; i < n; ++i) {
          dx[at + i] = value(at + i, out_at + (kept ? i : 0));
        }
      });
}

template <typename T>
void ReduceSumGradKernel(const ExecutionContext& ctx) {
  const T* d = ctx.Input("Out@GRAD").data<T>();
  SpreadGradient<T>(ctx, [=](int64_t, int64_t result) { return d[result]; });
}

template <typename T>
void ReduceMeanGradKernel(const ExecutionContext& ctx) {
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const auto count = static_cast<T>(ElementsPerResult(ctx.op(), ctx.Input("X").dims()));
  SpreadGradient<T>(ctx, [=](int64_t, int64_t result) { return d[result] / count; });
}

// Elements that are equally great get the gradient each.
template <typename T>
void ReduceMaxGradKernel(const ExecutionContext& ctx) {
  const T* x = ctx.Input("X").data<T>();
  const T* out = ctx.Input("Out").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  SpreadGradient<T>(ctx, [=](int64_t element, int64_t result) { return x[element] == out[result] ? d[result] : T(0); });
}

void InferReduce(InferShapeContext& ctx) {
  SetOutput(ctx, "Out", ReducedDims(ctx.op(), ctx.InputDim("X")), ctx.InputType("X"));
  if (const DDim x = ctx.InputDim("X"); !x.empty() && KeptDims(ctx.op(), x)[0]) {
    ctx.ShareLoD("X", "Out");
  }
}

void InferReduceOfSome(InferShapeContext& ctx) {
  HR_ENFORCE(ElementsPerResult(ctx.op(), ctx.InputDim("X")) != 0, InvalidArgument,
             "input X: expected at least one element for each result, got dims ", ToString(ctx.InputDim("X")));
  InferReduce(ctx);
}

void InferReduceGrad(InferShapeContext& ctx) {
  const DDim out = ReducedDims(ctx.op(), ctx.InputDim("X"));
  for (const char* slot : {"Out", "Out@GRAD"}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, out);
      EnforceSameType(ctx, slot, "X");
    }
  }
  InferGradients(ctx, {"X"});
}

OpRegistrar&& ReduceAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::vector<int32_t>>("dim", "the dimensions to reduce; negative ones count from the back", {0})
      .Attr<bool>("keep_dim", "whether they stay as dimensions of 1", false)
      .Attr<bool>("reduce_all", "whether all dimensions are reduced, whatever dim says", false);
}

OpRegistrar&& ReduceSlots(OpRegistrar&& op) {
  return ReduceAttrs(std::move(op))
      .Input("X", "any shape")
      .Output("Out", "dims of X without the reduced ones; [1] if none is left");
}

OpRegistrar&& ReduceGradSlots(OpRegistrar&& op) {
  return ReduceAttrs(std::move(op))
      .Input("X", "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X")
      .InferShape(InferReduceGrad);
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
    .Input("X", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceNotEmpty(ctx);
      EnforceDims(ctx, "Out@GRAD", {1});
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(MeanGradKernel<float>)
    .Kernel<double>(MeanGradKernel<double>);

HEADRACE_REGISTER_OP(reduce_sum)
    .Comment("The sum along some dimensions.")
    .With(ReduceSlots)
    .InferShape(InferReduce)
    .Kernel<float>(ReduceSumKernel<float>)
    .Kernel<double>(ReduceSumKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(reduce_sum_grad)
    .Comment("Gradient of reduce_sum.")
    .With(ReduceGradSlots)
    .Kernel<float>(ReduceSumGradKernel<float>)
    .Kernel<double>(ReduceSumGradKernel<double>);

HEADRACE_REGISTER_OP(reduce_mean)
    .Comment("The mean along some dimensions.")
    .With(ReduceSlots)
    .InferShape(InferReduceOfSome)
    .Kernel<float>(ReduceMeanKernel<float>)
    .Kernel<double>(ReduceMeanKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(reduce_mean_grad)
    .Comment("Gradient of reduce_mean.")
    .With(ReduceGradSlots)
    .Kernel<float>(ReduceMeanGradKernel<float>)
    .Kernel<double>(ReduceMeanGradKernel<double>);

HEADRACE_REGISTER_OP(reduce_max)
    .Comment("The greatest element along some dimensions.")
    .With(ReduceSlots)
    .InferShape(InferReduceOfSome)
    .Kernel<float>(ReduceMaxKernel<float>)
    .Kernel<double>(ReduceMaxKernel<double>)
    .Kernel<int32_t>(ReduceMaxKernel<int32_t>)
    .Kernel<int64_t>(ReduceMaxKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Out"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(reduce_max_grad)
    .Comment("Gradient of reduce_max. Elements that are equally great get the gradient each.")
    .With(ReduceGradSlots)
    .Input("Out", "as in the operator")
    .Kernel<float>(ReduceMaxGradKernel<float>)
    .Kernel<double>(ReduceMaxGradKernel<double>);

}  // namespace headrace::ops
