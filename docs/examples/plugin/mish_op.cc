// Mish, an activation that Fluid does not have: Out = X * tanh(log(1 + exp(X))). After Misra, "Mish: A Self Regularized
// Non-Monotonic Activation Function", 2019.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"

namespace {

using headrace::DefaultGradient;
using headrace::ExecutionContext;
using headrace::InferShapeContext;
using headrace::LoDTensor;

// tanh(log(1 + exp(x))). No intermediate result overflows.
template <typename T>
T Gate(T x) {
  return std::tanh(std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x))));
}

template <typename T>
void Mish(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const T* from = x.data<T>();
  T* to = ctx.Output("Out")->mutable_data<T>();
  std::transform(from, from + x.numel(), to, [](T v) { return v * Gate(v); });
}

template <typename T>
void MishGrad(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const T* from = x.data<T>();
  const T* grad = ctx.Input("Out@GRAD").data<T>();
  T* to = ctx.Output("X@GRAD")->mutable_data<T>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const T gate = Gate(from[i]);
    const T sigmoid = 1 / (1 + std::exp(-from[i]));
    to[i] = grad[i] * (gate + from[i] * (1 - gate * gate) * sigmoid);
  }
}

HEADRACE_REGISTER_OP(mish)
    .Comment("X * tanh(log(1 + exp(X))), element by element.")
    .Input("X", "any shape")
    .Output("Out", "shape and dtype of X")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .Kernel<float>(Mish<float>)
    .Kernel<double>(Mish<double>)
    // mish_grad gets X, besides the gradient of Out.
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(mish_grad)
    .Comment("The gradient of mish.")
    .Input("X", "that of mish")
    .Input("Out@GRAD", "the gradient of Out")
    .Output("X@GRAD", "shape and dtype of X")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "X@GRAD"); })
    .Kernel<float>(MishGrad<float>)
    .Kernel<double>(MishGrad<double>);

}  // namespace
