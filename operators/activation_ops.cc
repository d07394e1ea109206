// relu, sigmoid, tanh, exp, log, sqrt, square, abs, leaky_relu, gelu: functions of one element. All may work in place.
#include <cmath>
#include <string>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/vector_math.h"

namespace headrace::ops {
namespace {

// What the derivative of an activation is written in: its result, which lets the input go, or its input.
enum class Needs { kOut, kX };

// Each activation: Value(x) (or Vector, over an array), and Derivative of what it needs. `alpha` is the attribute of
// those that have one.
template <typename T>
struct Relu {
  static constexpr Needs kNeeds = Needs::kOut;
  static T Value(T x, T) { return x < 0 ? T(0) : x; }
  static T Derivative(T out, T) { return out > 0 ? T(1) : T(0); }
};
template <typename T>
struct Sigmoid {
  static constexpr Needs kNeeds = Needs::kOut;
  static void Vector(int64_t n, const T* x, T* out) { VectorSigmoid(n, x, out); }
  static T Derivative(T out, T) { return out * (1 - out); }
};
template <typename T>
struct Tanh {
  static constexpr Needs kNeeds = Needs::kOut;
  static void Vector(int64_t n, const T* x, T* out) { VectorTanh(n, x, out); }
  static T Derivative(T out, T) { return 1 - out * out; }
};
template <typename T>
struct Exp {
  static constexpr Needs kNeeds = Needs::kOut;
  static void Vector(int64_t n, const T* x, T* out) { VectorExp(n, x, out); }
  static T Derivative(T out, T) { return out; }
};
template <typename T>
struct Log {
  static constexpr Needs kNeeds = Needs::kX;
  static void Vector(int64_t n, const T* x, T* out) { VectorLog(n, x, out); }
  static T Derivative(T x, T) { return 1 / x; }
};
template <typename T>
struct Sqrt {
  static constexpr Needs kNeeds = Needs::kOut;
  static T Value(T x, T) { return std::sqrt(x); }
  static T Derivative(T out, T) { return T(0.5) / out; }
};
template <typename T>
struct Square {
  static constexpr Needs kNeeds = Needs::kX;
  static T Value(T x, T) { return x * x; }
  static T Derivative(T x, T) { return 2 * x; }
};
template <typename T>
struct Abs {
  static constexpr Needs kNeeds = Needs::kX;
  static T Value(T x, T) { return std::abs(x); }
  static T Derivative(T x, T) { return static_cast<T>((x > 0) - (x < 0)); }
};
template <typename T>
struct LeakyRelu {
  static constexpr Needs kNeeds = Needs::kX;
  static T Value(T x, T alpha) { return x < 0 ? alpha * x : x; }
  static T Derivative(T x, T alpha) { return x < 0 ? alpha : T(1); }
};
template <typename T>
struct Gelu {
  static constexpr Needs kNeeds = Needs::kX;
  static constexpr T kSqrtHalf = T(0.70710678118654752440);
  static constexpr T kDensityAt0 = T(0.39894228040143267794);  // 1 / √(2π)
  static T Distribution(T x) { return T(0.5) * (1 + std::erf(x * kSqrtHalf)); }
  static T Value(T x, T) { return x * Distribution(x); }
  static T Derivative(T x, T) { return Distribution(x) + x * kDensityAt0 * std::exp(T(-0.5) * x * x); }
};

template <typename T>
T AlphaOf(const ExecutionContext& ctx) {
  return ctx.op().attrs.contains("alpha") ? static_cast<T>(ctx.Attr<double>("alpha")) : T(0);
}

template <typename T, typename Function>
void ActivationKernel(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("Out");
  T* to = out->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const int64_t n = out->numel();
  if constexpr (requires { Function::Vector(n, x, to); }) {
    Function::Vector(n, x, to);
  } else {
    const T alpha = AlphaOf<T>(ctx);
    for (int64_t i = 0; i < n; ++i) {
      to[i] = Function::Value(x[i], alpha);
    }
  }
}

template <typename T, typename Function>
void ActivationGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  T* dx = x_grad->mutable_data<T>();
  const LoDTensor& known = ctx.Input(Function::kNeeds == Needs::kOut ? "Out" : "X");
  const T* from = known.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const T alpha = AlphaOf<T>(ctx);
  for (int64_t i = 0, n = x_grad->numel(); i < n; ++i) {
    dx[i] = d[i] * Function::Derivative(from[i], alpha);
  }
}

void InferActivationGrad(InferShapeContext& ctx) {
  const char* slot = ctx.HasInput("Out") ? "Out" : "X";
  EnforceDims(ctx, "Out@GRAD", ctx.InputDim(slot));
  EnforceSameType(ctx, "Out@GRAD", slot);
  SetOutput(ctx, "X@GRAD", ctx.InputDim(slot), ctx.InputType(slot));
}

OpRegistrar&& NoAttrs(OpRegistrar&& op) { return std::move(op); }
OpRegistrar&& LeakyReluAttrs(OpRegistrar&& op) {
  return std::move(op).Attr<double>("alpha", "slope for negative elements", 0.02);
}

template <template <typename> typename Function>
bool Register(const std::string& type, const std::string& formula, OpRegistrar && (*attrs)(OpRegistrar&&) = NoAttrs) {
  constexpr bool kNeedsOut = Function<float>::kNeeds == Needs::kOut;
  GradientUses uses;
  (kNeedsOut ? uses.outputs : uses.inputs) = {kNeedsOut ? "Out" : "X"};
  OpRegistrar(type)
      .Comment(formula + ", element by element. Out may be X.")
      .Input("X", "any shape")
      .Output("Out", "dims, dtype and LoD of X")
      .InPlace("Out", "X")
      .With(attrs)
      .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
      .template Kernel<float>(ActivationKernel<float, Function<float>>)
      .template Kernel<double>(ActivationKernel<double, Function<double>>)
      .Gradient(DefaultGradient(uses))
      .Register();
  OpRegistrar(type + "_grad")
      .Comment("Gradient of " + type + ". X@GRAD may be Out@GRAD.")
      .Input(kNeedsOut ? "Out" : "X", "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X")
      .InPlace("X@GRAD", "Out@GRAD")
      .With(attrs)
      .InferShape(InferActivationGrad)
      .template Kernel<float>(ActivationGradKernel<float, Function<float>>)
      .template Kernel<double>(ActivationGradKernel<double, Function<double>>)
      .Register();
  return true;
}

[[maybe_unused]] const bool kRegistered =
    Register<Relu>("relu", "max(X, 0)") && Register<Sigmoid>("sigmoid", "1 / (1 + exp(-X))") &&
    Register<Tanh>("tanh", "The hyperbolic tangent") && Register<Exp>("exp", "e to the power of X") &&
    Register<Log>("log", "The natural logarithm") && Register<Sqrt>("sqrt", "The square root") &&
    Register<Square>("square", "X * X") && Register<Abs>("abs", "|X|") &&
    Register<LeakyRelu>("leaky_relu", "X, or alpha * X where X < 0", LeakyReluAttrs) &&
    Register<Gelu>("gelu", "X * P(N(0, 1) <= X)");

}  // namespace
}  // namespace headrace::ops
