// Functions of one element: relu, sigmoid, tanh and the like. All may work in place. Those that are not Eigen's are
// plain loops, which the compiler vectorises: 0.92 to 1.0 of the speed of Eigen's expressions (kernel_benchmark).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/sigmoid.h"
#include "operators/math/vector_math.h"

namespace headrace::ops {
namespace {

// What the derivative of an activation is written in: its result, which lets the input go, or its input.
enum class Needs { kOut, kX };

// An attribute, a number.
struct Parameter {
  HashedName name;
  const char* comment;
  double default_value;
};

// The values of an activation's attributes, in the order in which they are declared.
template <typename T>
struct Values {
  T a;
  T b;
  T c;
};

template <typename T>
Values<T> ValuesOf(const AttributeIndex& op, const std::vector<Parameter>& parameters) {
  const auto value = [&](size_t i) {
    return i < parameters.size() ? static_cast<T>(op.Attr<double>(parameters[i].name)) : T(0);
  };
  return {value(0), value(1), value(2)};
}

template <typename T, typename Function>
void RunActivation(const ExecutionContext& ctx, const std::vector<Parameter>& parameters, Function function) {
  LoDTensor* out = ctx.Output("Out");
  T* to = out->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const int64_t n = out->numel();
  if constexpr (std::is_invocable_v<Function, int64_t, const T*, T*>) {
    ParallelFor(n, kElementsPerBlock / 4,
                [=](int64_t begin, int64_t end) { function(end - begin, x + begin, to + begin); });
  } else {
    const Values<T> values = ValuesOf<T>(ctx.attrs(), parameters);
    ParallelFor(n, kElementsPerBlock, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] = function(x[i], values);
      }
    });
  }
}

template <typename T, typename Derivative>
void RunActivationGrad(const ExecutionContext& ctx, const std::vector<Parameter>& parameters, Needs needs,
                       Derivative derivative) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  T* dx = x_grad->mutable_data<T>();
  const T* from = ctx.Input(needs == Needs::kOut ? HashedName("Out") : HashedName("X")).data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const Values<T> values = ValuesOf<T>(ctx.attrs(), parameters);
  ParallelFor(x_grad->numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      dx[i] = d[i] * derivative(from[i], values);
    }
  });
}

void InferActivationGrad(InferShapeContext& ctx) {
  const HashedName slot = ctx.HasInput("Out") ? HashedName("Out") : HashedName("X");
  EnforceDims(ctx, "Out@GRAD", ctx.InputDim(slot));
  EnforceSameType(ctx, "Out@GRAD", slot);
  SetOutput(ctx, "X@GRAD", ctx.InputDim(slot), ctx.InputType(slot));
}

OpRegistrar&& Declare(OpRegistrar&& op, const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    (void)More(op).Attr<double>(parameter.name.ToString(), parameter.comment, parameter.default_value);
  }
  return std::move(op);
}

// `function`(x, values), or (n, x, out) over arrays; `derivative`(x or out, values).
template <typename Function, typename Derivative>
void Register(const std::string& type, const std::string& formula, Function function, Needs needs,
              Derivative derivative, const std::vector<Parameter>& parameters = {}) {
  const bool needs_out = needs == Needs::kOut;
  GradientUses uses;
  (needs_out ? uses.outputs : uses.inputs) = {needs_out ? "Out" : "X"};
  OpRegistrar(type)
      .Comment(formula + ", element by element. Out may be X.")
      .Input("X", "any shape")
      .Output("Out", "dims, dtype and LoD of X")
      .InPlace("Out", "X")
      .With(Declare, parameters)
      .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
      .template Kernel<float>([=](const ExecutionContext& ctx) { RunActivation<float>(ctx, parameters, function); })
      .template Kernel<double>([=](const ExecutionContext& ctx) { RunActivation<double>(ctx, parameters, function); })
      .Gradient(DefaultGradient(uses))
      .Register();
  OpRegistrar(type + "_grad")
      .Comment("Gradient of " + type + ". X@GRAD may be Out@GRAD.")
      .Input(needs_out ? "Out" : "X", "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X")
      .InPlace("X@GRAD", "Out@GRAD")
      .With(Declare, parameters)
      .InferShape(InferActivationGrad)
      .template Kernel<float>(
          [=](const ExecutionContext& ctx) { RunActivationGrad<float>(ctx, parameters, needs, derivative); })
      .template Kernel<double>(
          [=](const ExecutionContext& ctx) { RunActivationGrad<double>(ctx, parameters, needs, derivative); })
      .Register();
}

constexpr auto kZero = [](auto x, auto) { return decltype(x)(0); };

template <typename T>
T Clip(T x, T low, T high) {
  return x < low ? low : x > high ? high : x;
}

// Φ, the distribution function of the normal distribution, and its density.
template <typename T>
T NormalDistribution(T x) {
  return T(0.5) * (1 + std::erf(x * T(0.70710678118654752440)));
}
template <typename T>
T NormalDensity(T x) {
  return T(0.39894228040143267794) * std::exp(T(-0.5) * x * x);
}

// --- Polynomials, roots, and what has a kink ---

HEADRACE_REGISTER_OPS(polynomials) {
  Register(
      "relu", "max(X, 0)", [](auto x, auto) { return x < 0 ? decltype(x)(0) : x; }, Needs::kOut,
      [](auto out, auto) { return decltype(out)(out > 0); });
  Register(
      "leaky_relu", "max(X, alpha * X)", [](auto x, auto v) { return std::max(x, v.a * x); }, Needs::kX,
      // Fluid's gradient is that of an alpha of at most 1 in any case. This is that of the result.
      [](auto x, auto v) { return (x < 0) == (v.a <= 1) ? v.a : decltype(x)(1); },
      {{"alpha", "slope for negative elements, or, above 1, for positive ones", 0.02}});
  Register(
      "relu6", "X, not less than 0 and not more than threshold",
      [](auto x, auto v) { return Clip(x, decltype(x)(0), v.a); }, Needs::kOut,
      [](auto out, auto v) { return decltype(out)(out > 0 && out < v.a); },
      {{"threshold", "the greatest result", 6.0}});
  Register(
      "brelu", "X, not less than t_min and not more than t_max", [](auto x, auto v) { return Clip(x, v.a, v.b); },
      Needs::kX, [](auto x, auto v) { return decltype(x)(x > v.a && x < v.b); },
      {{"t_min", "the least result", 0.0}, {"t_max", "the greatest result", 24.0}});
  Register(
      "thresholded_relu", "X where X > threshold, else 0",
      [](auto x, auto v) { return x > v.a || std::isnan(x) ? x : decltype(x)(0); }, Needs::kX,
      [](auto x, auto v) { return decltype(x)(x > v.a); }, {{"threshold", "what X has to exceed", 1.0}});
  Register(
      "hard_shrink", "X where |X| > threshold, else 0",
      [](auto x, auto v) { return std::abs(x) <= v.a ? decltype(x)(0) : x; }, Needs::kX,
      [](auto x, auto v) { return decltype(x)(std::abs(x) > v.a); }, {{"threshold", "what |X| has to exceed", 0.5}});
  Register(
      "softshrink", "X - lambda where X > lambda, X + lambda where X < -lambda, else 0",
      [](auto x, auto v) {
        return x > v.a ? x - v.a : x < -v.a ? x + v.a : std::isnan(x) ? x : decltype(x)(0);
      },
      Needs::kX, [](auto x, auto v) { return decltype(x)(std::abs(x) > v.a); },
      {{"lambda", "what |X| has to exceed", 0.5}});
  Register(
      "hard_sigmoid", "slope * X + offset, not less than 0 and not more than 1",
      [](auto x, auto v) { return Clip(v.a * x + v.b, decltype(x)(0), decltype(x)(1)); }, Needs::kOut,
      [](auto out, auto v) { return out > 0 && out < 1 ? v.a : decltype(out)(0); },
      {{"slope", "slope", 0.2}, {"offset", "the result for 0", 0.5}});
  Register(
      "hard_swish", "X * (X + offset, not less than 0 and not more than threshold) / scale (A. Howard et al., 2019)",
      [](auto x, auto v) { return x * Clip(x + v.c, decltype(x)(0), v.a) / v.b; }, Needs::kX,
      [](auto x, auto v) {
        const auto shifted = x + v.c;
        return (shifted < 0 ? decltype(x)(0) : shifted > v.a ? v.a : shifted + x) / v.b;
      },
      {{"threshold", "the greatest X + offset", 6.0}, {"scale", "divisor", 6.0}, {"offset", "added to X", 3.0}});
  Register(
      "abs", "|X|", [](auto x, auto) { return std::abs(x); }, Needs::kX,
      [](auto x, auto) { return decltype(x)((x > 0) - (x < 0)); });
  Register(
      "sign", "-1, 0 or 1; the derivative is 0",
      [](auto x, auto) { return std::isnan(x) ? x : decltype(x)((x > 0) - (x < 0)); }, Needs::kX, kZero);
  Register("square", "X * X", [](auto x, auto) { return x * x; }, Needs::kX, [](auto x, auto) { return 2 * x; });
  Register(
      "sqrt", "The square root", [](auto x, auto) { return std::sqrt(x); }, Needs::kOut,
      [](auto out, auto) { return decltype(out)(0.5) / out; });
  Register(
      "rsqrt", "One over the square root", [](auto x, auto) { return 1 / std::sqrt(x); }, Needs::kOut,
      [](auto out, auto) { return decltype(out)(-0.5) * out * out * out; });
  Register(
      "reciprocal", "1 / X", [](auto x, auto) { return 1 / x; }, Needs::kOut,
      [](auto out, auto) { return -out * out; });
  Register(
      "ceil", "The least integer that is not less; the derivative is 0", [](auto x, auto) { return std::ceil(x); },
      Needs::kX, kZero);
  Register(
      "floor", "The greatest integer that is not greater; the derivative is 0",
      [](auto x, auto) { return std::floor(x); }, Needs::kX, kZero);
  Register(
      "round", "The nearest integer, halves away from 0; the derivative is 0",
      [](auto x, auto) { return std::round(x); }, Needs::kX, kZero);
  Register(
      "softsign", "X / (1 + |X|)", [](auto x, auto) { return x / (1 + std::abs(x)); }, Needs::kX,
      [](auto x, auto) { return 1 / ((1 + std::abs(x)) * (1 + std::abs(x))); });
}

// --- Exponentials ---

HEADRACE_REGISTER_OPS(exponentials) {
  Register(
      "sigmoid", "1 / (1 + exp(-X))", [](int64_t n, const auto* x, auto* out) { VectorSigmoid(n, x, out); },
      Needs::kOut, [](auto out, auto) { return out * (1 - out); });
  Register(
      "tanh", "The hyperbolic tangent", [](int64_t n, const auto* x, auto* out) { VectorTanh(n, x, out); }, Needs::kOut,
      [](auto out, auto) { return 1 - out * out; });
  Register(
      "exp", "e to the power of X", [](int64_t n, const auto* x, auto* out) { VectorExp(n, x, out); }, Needs::kOut,
      [](auto out, auto) { return out; });
  Register(
      "log", "The natural logarithm", [](int64_t n, const auto* x, auto* out) { VectorLog(n, x, out); }, Needs::kX,
      [](auto x, auto) { return 1 / x; });
  Register(
      "logsigmoid", "log(1 / (1 + exp(-X)))", [](auto x, auto) { return -Softplus(-x); }, Needs::kX,
      [](auto x, auto) { return Sigmoid(-x); });
  Register(
      "softplus", "log(1 + exp(X))", [](auto x, auto) { return Softplus(x); }, Needs::kX,
      [](auto x, auto) { return Sigmoid(x); });
  Register(
      "soft_relu", "log(1 + exp(X)), with X between -threshold and threshold",
      [](auto x, auto v) { return Softplus(Clip(x, -v.a, v.a)); }, Needs::kX,
      [](auto x, auto v) { return std::abs(x) < v.a ? Sigmoid(x) : decltype(x)(0); },
      {{"threshold", "the greatest |X| that makes a difference", 40.0}});
  Register(
      "tanh_shrink", "X - tanh(X)", [](auto x, auto) { return x - std::tanh(x); }, Needs::kX,
      [](auto x, auto) { return std::tanh(x) * std::tanh(x); });
  Register(
      "stanh", "scale_b * tanh(scale_a * X)", [](auto x, auto v) { return v.b * std::tanh(v.a * x); }, Needs::kX,
      [](auto x, auto v) { return v.a * v.b * (1 - std::tanh(v.a * x) * std::tanh(v.a * x)); },
      {{"scale_a", "factor on X", 0.67}, {"scale_b", "factor on the result", 1.7159}});
  Register(
      "elu", "X, or alpha * (exp(X) - 1) where X < 0", [](auto x, auto v) { return x < 0 ? v.a * std::expm1(x) : x; },
      Needs::kX, [](auto x, auto v) { return x < 0 ? v.a * std::exp(x) : decltype(x)(1); },
      {{"alpha", "minus the limit of the results", 1.0}});
  Register(
      "selu", "scale * X, or scale * alpha * (exp(X) - 1) where X < 0 (G. Klambauer et al., 2017)",
      [](auto x, auto v) { return v.a * (x < 0 ? v.b * std::expm1(x) : x); }, Needs::kX,
      [](auto x, auto v) { return v.a * (x < 0 ? v.b * std::exp(x) : decltype(x)(1)); },
      {{"scale", "slope for positive elements", 1.0507009873554804934193349852946},
       {"alpha", "minus the limit of the results, over scale", 1.6732632423543772848170429916717}});
  Register(
      "swish", "X / (1 + exp(-beta * X))", [](auto x, auto v) { return x * Sigmoid(v.a * x); }, Needs::kX,
      [](auto x, auto v) {
        const auto s = Sigmoid(v.a * x);
        return s + v.a * x * s * (1 - s);
      },
      {{"beta", "factor on X in the exponent", 1.0}});
  Register(
      "gelu", "X * P(N(0, 1) <= X)", [](auto x, auto) { return x * NormalDistribution(x); }, Needs::kX,
      [](auto x, auto) { return NormalDistribution(x) + x * NormalDensity(x); });
}

// --- Trigonometry and erf ---

HEADRACE_REGISTER_OPS(trigonometry) {
  Register(
      "sin", "The sine", [](auto x, auto) { return std::sin(x); }, Needs::kX, [](auto x, auto) { return std::cos(x); });
  Register(
      "cos", "The cosine", [](auto x, auto) { return std::cos(x); }, Needs::kX,
      [](auto x, auto) { return -std::sin(x); });
  Register(
      "asin", "The arc whose sine is X", [](auto x, auto) { return std::asin(x); }, Needs::kX,
      [](auto x, auto) { return 1 / std::sqrt(1 - x * x); });
  Register(
      "acos", "The arc whose cosine is X", [](auto x, auto) { return std::acos(x); }, Needs::kX,
      [](auto x, auto) { return -1 / std::sqrt(1 - x * x); });
  Register(
      "atan", "The arc whose tangent is X", [](auto x, auto) { return std::atan(x); }, Needs::kX,
      [](auto x, auto) { return 1 / (1 + x * x); });
  Register(
      "erf", "The error function", [](auto x, auto) { return std::erf(x); }, Needs::kX,
      [](auto x, auto) { return decltype(x)(1.12837916709551257390) * std::exp(-x * x); });
}

}  // namespace
}  // namespace headrace::ops
