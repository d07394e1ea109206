// A linear layer whose weight is a product of two narrow matrices, as in Hu et al., "LoRA: Low-Rank Adaptation of Large
// Language Models", 2021: Out = X · Down · Up + Bias. It shows what libheadrace offers kernels: checks of shapes and
// dtypes, matrix products, memory for intermediate results, broadcasts and sums. All of it runs on the executor's
// threads and gives the same bits for any number of these.
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/broadcast.h"
#include "operators/math/gemm.h"
#include "operators/math/scratch.h"

namespace {

using headrace::DDim;
using headrace::DefaultGradient;
using headrace::ExecutionContext;
using headrace::InferShapeContext;
using headrace::Tensor;
using headrace::ops::BroadcastPlan;
using headrace::ops::ElementsOrNull;
using headrace::ops::EnforceDims;
using headrace::ops::EnforceRank;
using headrace::ops::EnforceSameType;
using headrace::ops::Gemm;
using headrace::ops::InferGradients;
using headrace::ops::MutableOrNull;
using headrace::ops::Scratch;
using headrace::ops::SetOutput;
using headrace::ops::ZerosOrNull;

// Checks the inputs, at compile time (where -1 fits anything) as at run time; returns the dims of Out.
DDim LowRankDims(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  EnforceRank(ctx, "Down", 2);
  EnforceRank(ctx, "Up", 2);
  const DDim down = ctx.InputDim("Down");
  const DDim up = ctx.InputDim("Up");
  EnforceDims(ctx, "X", {-1, down[0]});
  EnforceDims(ctx, "Up", {down[1], -1});
  EnforceSameType(ctx, "Down", "X");
  EnforceSameType(ctx, "Up", "X");
  if (ctx.HasInput("Bias")) {
    EnforceDims(ctx, "Bias", {up[1]});
    EnforceSameType(ctx, "Bias", "X");
  }
  return {ctx.InputDim("X")[0], up[1]};
}

void InferLowRank(InferShapeContext& ctx) {
  SetOutput(ctx, "Out", LowRankDims(ctx), ctx.InputType("X"));
  ctx.ShareLoD("X", "Out");
}

void InferLowRankGrad(InferShapeContext& ctx) {
  EnforceDims(ctx, "Out@GRAD", LowRankDims(ctx));
  EnforceSameType(ctx, "Out@GRAD", "X");
  InferGradients(ctx, {"X", "Down", "Up", "Bias"});
}

struct Sizes {
  explicit Sizes(const ExecutionContext& ctx)
      : rows(ctx.Input("X").dims()[0]),
        in(ctx.Input("Down").dims()[0]),
        rank(ctx.Input("Down").dims()[1]),
        out(ctx.Input("Up").dims()[1]) {}
  // Bias over Out.
  BroadcastPlan OverRows() const { return {{rows, out}, {false, true}}; }
  int64_t rows;
  int64_t in;
  int64_t rank;
  int64_t out;
};

template <typename T>
void LowRank(const ExecutionContext& ctx) {
  const Sizes s(ctx);
  Tensor memory;
  T* narrow = Scratch<T>(&memory, s.rows * s.rank);  // X · Down
  T* out = ctx.Output("Out")->mutable_data<T>();
  Gemm<T>(false, false, s.rows, s.rank, s.in, T(1), ctx.Input("X").data<T>(), ctx.Input("Down").data<T>(), false,
          narrow);
  if (const T* bias = ElementsOrNull<T>(ctx, "Bias")) {
    s.OverRows().ForEachRunInParallel(
        [&](int64_t at, int64_t from, int64_t n, bool /*kept*/) { std::copy_n(bias + from, n, out + at); });
  } else {
    std::fill_n(out, s.rows * s.out, T(0));
  }
  Gemm<T>(false, false, s.rows, s.out, s.rank, T(1), narrow, ctx.Input("Up").data<T>(), /*accumulate=*/true, out);
}

template <typename T>
void LowRankGrad(const ExecutionContext& ctx) {
  const Sizes s(ctx);
  const T* x = ctx.Input("X").data<T>();
  const T* down = ctx.Input("Down").data<T>();
  const T* out_grad = ctx.Input("Out@GRAD").data<T>();
  Tensor memory;
  T* narrow = Scratch<T>(&memory, s.rows * s.rank);
  // A slot is empty if nobody wants that gradient.
  if (T* up_grad = MutableOrNull<T>(ctx, "Up@GRAD")) {
    Gemm<T>(false, false, s.rows, s.rank, s.in, T(1), x, down, false, narrow);
    Gemm<T>(true, false, s.rank, s.out, s.rows, T(1), narrow, out_grad, false, up_grad);
  }
  T* x_grad = MutableOrNull<T>(ctx, "X@GRAD");
  T* down_grad = MutableOrNull<T>(ctx, "Down@GRAD");
  if (x_grad != nullptr || down_grad != nullptr) {
    Gemm<T>(false, true, s.rows, s.rank, s.out, T(1), out_grad, ctx.Input("Up").data<T>(), false, narrow);
  }
  if (x_grad != nullptr) {
    Gemm<T>(false, true, s.rows, s.in, s.rank, T(1), narrow, down, false, x_grad);
  }
  if (down_grad != nullptr) {
    Gemm<T>(true, false, s.in, s.rank, s.rows, T(1), x, narrow, false, down_grad);
  }
  if (T* bias_grad = ZerosOrNull<T>(ctx, "Bias@GRAD")) {
    s.OverRows().ForEachRunInParallelBySmall([&](int64_t at, int64_t to, int64_t n, bool /*kept*/) {
      for (int64_t i = 0; i < n; ++i) {
        bias_grad[to + i] += out_grad[at + i];
      }
    });
  }
}

HEADRACE_REGISTER_OP(low_rank_linear)
    .Comment("X times the product of two narrow matrices, plus a bias.")
    .Input("X", "[N, I]")
    .Input("Down", "[I, R]")
    .Input("Up", "[R, O]")
    .Input("Bias", "[O]", headrace::kDispensable)
    .Output("Out", "[N, O], the LoD of X")
    .InferShape(InferLowRank)
    .Kernel<float>(LowRank<float>)
    .Kernel<double>(LowRank<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Down", "Up", "Bias"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(low_rank_linear_grad)
    .Comment("The gradient of low_rank_linear.")
    .Input("X", "that of low_rank_linear")
    .Input("Down", "that of low_rank_linear")
    .Input("Up", "that of low_rank_linear")
    .Input("Bias", "that of low_rank_linear", headrace::kDispensable)
    .Input("Out@GRAD", "the gradient of Out")
    .Output("X@GRAD", "dims of X", headrace::kDispensable)
    .Output("Down@GRAD", "dims of Down", headrace::kDispensable)
    .Output("Up@GRAD", "dims of Up", headrace::kDispensable)
    .Output("Bias@GRAD", "dims of Bias", headrace::kDispensable)
    .InferShape(InferLowRankGrad)
    .Kernel<float>(LowRankGrad<float>)
    .Kernel<double>(LowRankGrad<double>);

}  // namespace
