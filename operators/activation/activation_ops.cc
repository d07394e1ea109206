// Functions of one element: relu, sigmoid, tanh and the like. All may work in place. Those without transcendental
// functions are plain loops, which the compiler vectorises: 0.92 to 1.0 of the speed of Eigen's expressions
// (kernel_benchmark). They wait for memory; others of float are compiled for wider vectors as well (avx512_loop.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/registration.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/chunk_math.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// What the derivative of an activation is written in: its result, which lets the input go, or its input.
enum class Needs { kOut, kX };

// How a derivative d/dX depends in turn on what it is written in, v.
struct Slope {
  enum class Kind {
    kUnsaid,  // the gradient operator has no gradient
    kLinear,  // its derivative by v is factor · v + summand
    kPower,   // it is proportional to v to the power of factor, and v is not 0
  };
  Kind kind = Kind::kUnsaid;
  double factor = 0;
  double summand = 0;
};
// Zero almost everywhere.
constexpr Slope kFlat{Slope::Kind::kLinear, 0, 0};

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

// A function, or a derivative, of what ForEachVector takes instead of an element.
template <typename Function>
struct OfVectors {
  Function function;
};
template <typename Function>
OfVectors(Function) -> OfVectors<Function>;

// y = function(x, values), or times `factor`, too.
template <typename T, typename Function, typename... Factor>
void Apply(int64_t n, T* y, const Function& function, const Values<T>& values, const T* x, const Factor*... factor) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = (factor[i] * ... * function(x[i], values));
  }
}
template <typename T, typename Function, typename... Factor>
void Apply(int64_t n, T* y, const OfVectors<Function>& of, const Values<T>& values, const T* x,
           const Factor*... factor) {
  ForEachVector(
      n, y,
      [of, values]<typename Vector>(const Vector& v, const auto&... by) -> Vector {
        return (by * ... * of.function(v, values));
      },
      x, factor...);
}

// The sine after some quarters of a turn: 0 is the sine, 1 the cosine, 2 minus the sine.
struct OfAngles {
  int32_t quarters;

  template <typename T>
  T operator()(T x) const {
    if constexpr (std::is_same_v<T, float>) {
      if (std::abs(x) <= branchless::kLargestAngle) {
        return branchless::SineWithin(x, quarters);
      }
    }
    return quarters == 0 ? std::sin(x) : quarters == 1 ? std::cos(x) : -std::sin(x);
  }
};
template <typename T, typename... Factor>
void Apply(int64_t n, T* y, const OfAngles& of, const Values<T>&, const T* x, const Factor*... factor) {
  // Of so many, all are computed one by one if one is too large.
  constexpr int64_t kTogether = 128;
  for (int64_t begin = 0; begin < n; begin += kTogether) {
    const int64_t end = std::min(n, begin + kTogether);
    if constexpr (std::is_same_v<T, float>) {
      int32_t others = 0;
      for (int64_t i = begin; i < end; ++i) {
        others |= static_cast<int32_t>(branchless::MagnitudeOf(x[i]) > branchless::BitsOf(branchless::kLargestAngle));
      }
      if (others == 0) {
        ForEachVector(
            end - begin, y + begin,
            [of](float v, auto... by) { return (by * ... * branchless::SineWithin(v, of.quarters)); }, x + begin,
            (factor + begin)...);
        continue;
      }
    }
    for (int64_t i = begin; i < end; ++i) {
      y[i] = (factor[i] * ... * of(x[i]));
    }
  }
}

// How many elements a block has: functions of single ones do little with each.
template <typename Function>
constexpr int64_t kBlock = kElementsPerBlock;
template <>
constexpr int64_t kBlock<OfAngles> = kElementsPerBlock / 4;
template <typename Function>
constexpr int64_t kBlock<OfVectors<Function>> = kElementsPerBlock / 4;

// y[i] = function(x[i], values), times each factor[i], for n elements.
template <typename T, typename... Factor>
struct Loop {
  std::function<void(int64_t n, T* y, const Values<T>& values, const T* x, const Factor*... factor)> run;
  int64_t block;  // elements of a task
};

template <typename T, typename... Factor, typename Function>
Loop<T, Factor...> LoopOf(const Function& function) {
  return {[function](int64_t n, T* y, const Values<T>& values, const T* x, const Factor*... factor) {
            Apply(n, y, function, values, x, factor...);
          },
          kBlock<Function>};
}

template <typename T>
KernelFn ActivationKernel(const Loop<T>& loop, const std::vector<Parameter>& parameters) {
  return [=](const ExecutionContext& ctx) {
    LoDTensor* out = ctx.Output("Out");
    T* to = out->mutable_data<T>();
    const T* x = ctx.Input("X").data<T>();
    const Values<T> values = ValuesOf<T>(ctx.attrs(), parameters);
    ParallelFor(out->numel(), loop.block,
                [&](int64_t begin, int64_t end) { loop.run(end - begin, to + begin, values, x + begin); });
  };
}

template <typename T>
KernelFn ActivationGradKernel(const Loop<T, T>& loop, const std::vector<Parameter>& parameters, HashedName from_slot) {
  return [=](const ExecutionContext& ctx) {
    LoDTensor* x_grad = ctx.Output("X@GRAD");
    T* dx = x_grad->mutable_data<T>();
    const T* from = ctx.Input(from_slot).data<T>();
    const T* d = ctx.Input("Out@GRAD").data<T>();
    const Values<T> values = ValuesOf<T>(ctx.attrs(), parameters);
    ParallelFor(x_grad->numel(), loop.block, [&](int64_t begin, int64_t end) {
      loop.run(end - begin, dx + begin, values, from + begin, d + begin);
    });
  };
}

void InferActivationGrad(InferShapeContext& ctx) {
  const HashedName slot = ctx.HasInput("Out") ? HashedName("Out") : HashedName("X");
  EnforceDims(ctx, "Out@GRAD", ctx.InputDim(slot));
  EnforceSameType(ctx, "Out@GRAD", slot);
  SetOutput(ctx, "X@GRAD", ctx.InputDim(slot), ctx.InputType(slot));
}

// With d = Out@GRAD, v what the derivative f(v) is written in, and U the gradient of X@GRAD = d · f(v): that of d is
// U · f(v), that of v is U · d · f'(v).
GradientMaker GradientOfActivationGrad(const std::string& from, const Slope& slope) {
  if (slope.kind == Slope::Kind::kUnsaid) {
    return nullptr;
  }
  return [=](const OpDesc& op) {
    GradientTerms terms(op);
    const std::string u = terms.Given("X@GRAD");
    const std::string v = terms.Value(from);
    const std::string to = terms.Wanted(from);
    terms.Add(op.type, {{from, v}, {"Out@GRAD", u}}, {{"X@GRAD", terms.Wanted("Out@GRAD")}}, terms.Attrs());
    if (slope.kind == Slope::Kind::kPower) {
      const std::string quotient = terms.Make("elementwise_div", {{"X", terms.Value("X@GRAD")}, {"Y", v}}, "Out");
      terms.AddScaled(terms.Product(quotient, u), slope.factor, to);
    } else if (slope.factor != 0) {
      const std::string factor =
          terms.Make("scale", {{"X", v}}, "Out", {{"scale", slope.factor}, {"bias", slope.summand}});
      terms.Add("elementwise_mul", {{"X", terms.Product(terms.Value("Out@GRAD"), u)}, {"Y", factor}}, {{"Out", to}});
    } else if (slope.summand != 0) {
      terms.AddScaled(terms.Product(terms.Value("Out@GRAD"), u), slope.summand, to);
    }
    return terms.Take();
  };
}

OpRegistrar&& Declare(OpRegistrar&& op, const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    (void)More(op).Attr<double>(parameter.name.ToString(), parameter.comment, parameter.default_value);
  }
  return std::move(op);
}

// The loops of an activation and its gradient, of one type.
template <typename T>
struct Loops {
  Loop<T> value;
  Loop<T, T> gradient;
};

void RegisterLoops(const std::string& type, const std::string& formula, const Loops<float>& floats,
                   const Loops<double>& doubles, Needs needs, const std::vector<Parameter>& parameters,
                   const Slope& slope) {
  const bool needs_out = needs == Needs::kOut;
  const HashedName from = needs_out ? HashedName("Out") : HashedName("X");
  GradientUses uses;
  (needs_out ? uses.outputs : uses.inputs).push_back(from.ToString());
  OpRegistrar(type)
      .Comment(formula + ", element by element. Out may be X.")
      .Input("X", "any shape")
      .Output("Out", "dims, dtype and LoD of X")
      .InPlace("Out", "X")
      .With(Declare, parameters)
      .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
      .Kernel<float>(ActivationKernel(floats.value, parameters))
      .Kernel<double>(ActivationKernel(doubles.value, parameters))
      .Gradient(DefaultGradient(uses))
      .Register();
  OpRegistrar(type + "_grad")
      .Comment("Gradient of " + type + ". X@GRAD may be Out@GRAD.")
      .Input(from.ToString(), "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X")
      .InPlace("X@GRAD", "Out@GRAD")
      .With(Declare, parameters)
      .InferShape(InferActivationGrad)
      .Kernel<float>(ActivationGradKernel(floats.gradient, parameters, from))
      .Kernel<double>(ActivationGradKernel(doubles.gradient, parameters, from))
      .Gradient(GradientOfActivationGrad(from.ToString(), slope))
      .Register();
}

// `function`(x, values), `derivative`(x or out, values): of an element, or in OfVectors.
template <typename Function, typename Derivative>
void Register(const std::string& type, const std::string& formula, Function function, Needs needs,
              Derivative derivative, const std::vector<Parameter>& parameters = {}, const Slope& slope = {}) {
  RegisterLoops(type, formula, {LoopOf<float>(function), LoopOf<float, float>(derivative)},
                {LoopOf<double>(function), LoopOf<double, double>(derivative)}, needs, parameters, slope);
}

constexpr auto kZero = [](auto x, auto) { return decltype(x)(0); };

template <typename T>
T Clip(T x, T low, T high) {
  return x < low ? low : x > high ? high : x;
}

// X · Φ(X) and its derivative.
template <typename Vector>
Vector Gelu(const Vector& x) {
  if constexpr (std::is_same_v<Vector, float>) {
    return x * branchless::NormalDistribution(x);
  } else {
    return x * (0.5 * (1.0 + (x * 0.70710678118654752440).erf()));
  }
}
template <typename Vector>
Vector GeluSlope(const Vector& x) {
  if constexpr (std::is_same_v<Vector, float>) {
    return branchless::NormalDistribution(x) + x * branchless::NormalDensity(x);
  } else {
    return 0.5 * (1.0 + (x * 0.70710678118654752440).erf()) +
           x * (0.39894228040143267794 * ChunkExp((-0.5 * x.square()).eval()));
  }
}

// --- Polynomials, roots, and what has a kink ---

HEADRACE_REGISTER_OPS(polynomials) {
  Register(
      "relu", "max(X, 0)", [](auto x, auto) { return x < 0 ? decltype(x)(0) : x; }, Needs::kOut,
      [](auto out, auto) { return decltype(out)(out > 0); }, {}, kFlat);
  Register(
      "leaky_relu", "max(X, alpha * X)", [](auto x, auto v) { return std::max(x, v.a * x); }, Needs::kX,
      // Fluid's gradient is that of an alpha of at most 1 in any case. This is that of the result.
      [](auto x, auto v) { return (x < 0) == (v.a <= 1) ? v.a : decltype(x)(1); },
      {{"alpha", "slope for negative elements, or, above 1, for positive ones", 0.02}}, kFlat);
  Register(
      "relu6", "X, not less than 0 and not more than threshold",
      [](auto x, auto v) { return Clip(x, decltype(x)(0), v.a); }, Needs::kOut,
      [](auto out, auto v) { return decltype(out)((out > 0) & (out < v.a)); },
      {{"threshold", "the greatest result", 6.0}}, kFlat);
  Register(
      "brelu", "X, not less than t_min and not more than t_max", [](auto x, auto v) { return Clip(x, v.a, v.b); },
      Needs::kX, [](auto x, auto v) { return decltype(x)((x > v.a) & (x < v.b)); },
      {{"t_min", "the least result", 0.0}, {"t_max", "the greatest result", 24.0}}, kFlat);
  Register(
      "thresholded_relu", "X where X > threshold, else 0",
      [](auto x, auto v) { return x > v.a || std::isnan(x) ? x : decltype(x)(0); }, Needs::kX,
      [](auto x, auto v) { return decltype(x)(x > v.a); }, {{"threshold", "what X has to exceed", 1.0}}, kFlat);
  Register(
      "hard_shrink", "X where |X| > threshold, else 0",
      [](auto x, auto v) { return std::abs(x) <= v.a ? decltype(x)(0) : x; }, Needs::kX,
      [](auto x, auto v) { return decltype(x)(std::abs(x) > v.a); }, {{"threshold", "what |X| has to exceed", 0.5}},
      kFlat);
  Register(
      "softshrink", "X - lambda where X > lambda, X + lambda where X < -lambda, else 0",
      [](auto x, auto v) {
        return x > v.a ? x - v.a : x < -v.a ? x + v.a : std::isnan(x) ? x : decltype(x)(0);
      },
      Needs::kX, [](auto x, auto v) { return decltype(x)(std::abs(x) > v.a); },
      {{"lambda", "what |X| has to exceed", 0.5}}, kFlat);
  Register(
      "hard_sigmoid", "slope * X + offset, not less than 0 and not more than 1",
      [](auto x, auto v) { return Clip(v.a * x + v.b, decltype(x)(0), decltype(x)(1)); }, Needs::kOut,
      [](auto out, auto v) { return out > 0 && out < 1 ? v.a : decltype(out)(0); },
      {{"slope", "slope", 0.2}, {"offset", "the result for 0", 0.5}}, kFlat);
  Register(
      "hard_swish", "X * (X + offset, not less than 0 and not more than threshold) / scale (A. Howard et al., 2019)",
      [](auto x, auto v) { return x * Clip(x + v.c, decltype(x)(0), v.a) / v.b; }, Needs::kX,
      [](auto x, auto v) {
        const auto shifted = x + v.c;
        return (shifted <= 0 ? decltype(x)(0) : shifted >= v.a ? v.a : shifted + x) / v.b;
      },
      {{"threshold", "the greatest X + offset", 6.0}, {"scale", "divisor", 6.0}, {"offset", "added to X", 3.0}});
  Register(
      "abs", "|X|", [](auto x, auto) { return std::abs(x); }, Needs::kX,
      [](auto x, auto) { return decltype(x)((x > 0) - (x < 0)); }, {}, kFlat);
  Register(
      "sign", "-1, 0 or 1; the derivative is 0",
      [](auto x, auto) { return std::isnan(x) ? x : decltype(x)((x > 0) - (x < 0)); }, Needs::kX, kZero);
  Register(
      "square", "X * X", [](auto x, auto) { return x * x; }, Needs::kX, [](auto x, auto) { return 2 * x; }, {},
      {Slope::Kind::kLinear, 0, 2});
  Register(
      "sqrt", "The square root", [](auto x, auto) { return std::sqrt(x); }, Needs::kOut,
      [](auto out, auto) { return decltype(out)(0.5) / out; }, {}, {Slope::Kind::kPower, -1});
  Register(
      "rsqrt", "One over the square root", [](auto x, auto) { return 1 / std::sqrt(x); }, Needs::kOut,
      [](auto out, auto) { return decltype(out)(-0.5) * out * out * out; }, {}, {Slope::Kind::kPower, 3});
  Register(
      "reciprocal", "1 / X", [](auto x, auto) { return 1 / x; }, Needs::kOut, [](auto out, auto) { return -out * out; },
      {}, {Slope::Kind::kPower, 2});
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
  Register("sigmoid", "1 / (1 + exp(-X))", OfVectors{[](const auto& x, auto) { return ChunkSigmoid(x); }}, Needs::kOut,
           [](auto out, auto) { return out * (1 - out); }, {}, {Slope::Kind::kLinear, -2, 1});
  Register("tanh", "The hyperbolic tangent", OfVectors{[](const auto& x, auto) { return ChunkTanh(x); }}, Needs::kOut,
           [](auto out, auto) { return 1 - out * out; }, {}, {Slope::Kind::kLinear, -2, 0});
  Register("exp", "e to the power of X", OfVectors{[](const auto& x, auto) { return ChunkExp(x); }}, Needs::kOut,
           [](auto out, auto) { return out; }, {}, {Slope::Kind::kLinear, 0, 1});
  Register("log", "The natural logarithm", OfVectors{[](const auto& x, auto) { return ChunkLog(x); }}, Needs::kX,
           [](auto x, auto) { return 1 / x; }, {}, {Slope::Kind::kPower, -1});
  Register("logsigmoid", "log(1 / (1 + exp(-X)))",
           OfVectors{[](const auto& x, auto) { return Evaluated(-ChunkSoftplus(Evaluated(-x))); }}, Needs::kX,
           OfVectors{[](const auto& x, auto) { return ChunkSigmoid(Evaluated(-x)); }});
  Register("softplus", "log(1 + exp(X))", OfVectors{[](const auto& x, auto) { return ChunkSoftplus(x); }}, Needs::kX,
           OfVectors{[](const auto& x, auto) { return ChunkSigmoid(x); }});
  Register("soft_relu", "log(1 + exp(X)), with X between -threshold and threshold",
           OfVectors{[](const auto& x, auto v) {
             return ChunkSoftplus(ForEachElement([v](auto e) { return Clip(e, -v.a, v.a); }, x));
           }},
           Needs::kX, OfVectors{[](const auto& x, auto v) {
             return ForEachElement([v](auto e, auto s) { return std::abs(e) < v.a ? s : 0; }, x, ChunkSigmoid(x));
           }},
           {{"threshold", "the greatest |X| that makes a difference", 40.0}});
  Register("tanh_shrink", "X - tanh(X)", OfVectors{[](const auto& x, auto) { return Evaluated(x - ChunkTanh(x)); }},
           Needs::kX,
           OfVectors{[](const auto& x, auto) { return ForEachElement([](auto t) { return t * t; }, ChunkTanh(x)); }});
  Register("stanh", "scale_b * tanh(scale_a * X)",
           OfVectors{[](const auto& x, auto v) { return Evaluated(v.b * ChunkTanh(Evaluated(v.a * x))); }}, Needs::kX,
           OfVectors{[](const auto& x, auto v) {
             return ForEachElement([v](auto t) { return v.a * v.b * (1 - t * t); }, ChunkTanh(Evaluated(v.a * x)));
           }},
           {{"scale_a", "factor on X", 0.67}, {"scale_b", "factor on the result", 1.7159}});
  Register("elu", "X, or alpha * (exp(X) - 1) where X < 0", OfVectors{[](const auto& x, auto v) {
             return ForEachElement([v](auto e) { return e < 0 ? v.a * e : e; }, ChunkExpLinear(x));
           }},
           Needs::kX, OfVectors{[](const auto& x, auto v) {
             return ForEachElement([v](auto e, auto exp) { return e < 0 ? v.a * exp : 1; }, x, ChunkExp(x));
           }},
           {{"alpha", "minus the limit of the results", 1.0}});
  Register("selu", "scale * X, or scale * alpha * (exp(X) - 1) where X < 0 (G. Klambauer et al., 2017)",
           OfVectors{[](const auto& x, auto v) {
             return ForEachElement([v](auto e) { return v.a * (e < 0 ? v.b * e : e); }, ChunkExpLinear(x));
           }},
           Needs::kX, OfVectors{[](const auto& x, auto v) {
             return ForEachElement([v](auto e, auto exp) { return v.a * (e < 0 ? v.b * exp : 1); }, x, ChunkExp(x));
           }},
           {{"scale", "slope for positive elements", 1.0507009873554804934193349852946},
            {"alpha", "minus the limit of the results, over scale", 1.6732632423543772848170429916717}});
  Register("swish", "X / (1 + exp(-beta * X))",
           OfVectors{[](const auto& x, auto v) { return Evaluated(x * ChunkSigmoid(Evaluated(v.a * x))); }}, Needs::kX,
           OfVectors{[](const auto& x, auto v) {
             return ForEachElement([v](auto e, auto s) { return s + v.a * e * s * (1 - s); }, x,
                                   ChunkSigmoid(Evaluated(v.a * x)));
           }},
           {{"beta", "factor on X in the exponent", 1.0}});
  Register("gelu", "X * P(N(0, 1) <= X)", OfVectors{[](const auto& x, auto) { return Gelu(x); }}, Needs::kX,
           OfVectors{[](const auto& x, auto) { return GeluSlope(x); }});
}

// --- Trigonometry and erf ---

HEADRACE_REGISTER_OPS(trigonometry) {
  Register("sin", "The sine", OfAngles{0}, Needs::kX, OfAngles{1});
  Register("cos", "The cosine", OfAngles{1}, Needs::kX, OfAngles{2});
  Register("asin", "The arc whose sine is X", OfVectors{[](const auto& x, auto) { return ChunkArcSine(x); }}, Needs::kX,
           [](auto x, auto) { return 1 / std::sqrt(1 - x * x); });
  Register("acos", "The arc whose cosine is X", OfVectors{[](const auto& x, auto) { return ChunkArcCosine(x); }},
           Needs::kX, [](auto x, auto) { return -1 / std::sqrt(1 - x * x); });
  Register("atan", "The arc whose tangent is X", OfVectors{[](const auto& x, auto) { return ChunkArcTangent(x); }},
           Needs::kX, [](auto x, auto) { return 1 / (1 + x * x); });
  Register("erf", "The error function", OfVectors{[](const auto& x, auto) { return ChunkErf(x); }}, Needs::kX,
           OfVectors{[](const auto& x, auto) {
             return ForEachElement([](auto exp) { return decltype(exp)(1.12837916709551257390) * exp; },
                                   ChunkExp(Evaluated(-(x * x))));
           }});
}

}  // namespace
}  // namespace headrace::ops
