// Mish, an activation that Fluid does not have: Out = X * tanh(log(1 + exp(X))). After Misra, "Mish: A Self Regularized
// Non-Monotonic Activation Function", 2019.
#include "framework/eigen.h"
#include "framework/op_registry.h"

namespace {

using headrace::DefaultGradient;
using headrace::EigenArray;
using headrace::ExecutionContext;
using headrace::InferShapeContext;
using headrace::MutableEigenArray;

// tanh(log(1 + exp(x))). No intermediate result overflows.
template <typename Array>
auto Gate(const Array& x) {
  using T = typename Array::Scalar;
  return (x.max(T(0)) + (-x.abs()).exp().log1p()).tanh();
}

template <typename T>
void Mish(const ExecutionContext& ctx) {
  const auto x = EigenArray<T>(ctx.Input("X"));
  MutableEigenArray<T>(ctx.Output("Out")) = x * Gate(x);
}

template <typename T>
void MishGrad(const ExecutionContext& ctx) {
  const auto x = EigenArray<T>(ctx.Input("X"));
  const auto grad = EigenArray<T>(ctx.Input("Out@GRAD"));
  const Eigen::Array<T, Eigen::Dynamic, 1> gate = Gate(x);
  MutableEigenArray<T>(ctx.Output("X@GRAD")) = grad * (gate + x * (1 - gate.square()) / (1 + (-x).exp()));
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
