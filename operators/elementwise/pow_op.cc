// pow: elements to the power of a number, which an input may hold.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/elementwise/elementwise_functions.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

double ExponentOf(const ExecutionContext& ctx) {
  return ctx.HasInput("FactorTensor") ? ScalarInput(ctx, "FactorTensor") : ctx.Attr<double>("factor");
}

template <typename T>
T ExponentAs(const ExecutionContext& ctx) {
  const double factor = ExponentOf(ctx);
  if constexpr (std::is_integral_v<T>) {
    HR_ENFORCE(factor >= 0 && factor <= std::numeric_limits<int32_t>::max() && std::floor(factor) == factor,
               InvalidArgument, "attribute factor: expected an integer of 0 to 2^31 - 1, since X holds integers, got ",
               factor, "; cast X for others");
  }
  return static_cast<T>(factor);
}

// Calls use(power), power(x) being x to the power of `exponent`: of the usual ones by products or a root, which the
// compiler can vectorise.
template <typename T, typename Use>
void WithPower(T exponent, const Use& use) {
  if constexpr (std::is_floating_point_v<T>) {
    if (exponent == T(1)) {
      return use([](T x) { return x; });
    }
    if (exponent == T(2)) {
      return use([](T x) { return x * x; });
    }
    if (exponent == T(3)) {  // in double, where the square of a float is exact: rounded once, as by std::pow
      return use([](T x) {
        const auto wide = static_cast<double>(x);
        return static_cast<T>(wide * wide * wide);
      });
    }
    if (exponent == T(-1)) {
      return use([](T x) { return 1 / x; });
    }
    if (exponent == T(0.5)) {  // a power is neither -0 nor, of -infinity, NaN
      constexpr T kInfinity = std::numeric_limits<T>::infinity();
      return use([](T x) { return x == -kInfinity ? kInfinity : std::sqrt(x + T(0)); });
    }
  }
  use([exponent](T x) { return elementwise::Pow::Value(x, exponent); });
}

template <typename T>
void PowKernel(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("Out");
  T* to = out->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  WithPower(ExponentAs<T>(ctx),
            [=](const auto& power) { ParallelForEach(out->numel(), [=](int64_t i) { to[i] = power(x[i]); }); });
}

template <typename T>
void PowGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  const auto factor = static_cast<T>(ExponentOf(ctx));
  T* dx = x_grad->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  WithPower(factor - 1, [=](const auto& power) {
    ParallelForEach(x_grad->numel(), [=](int64_t i) { dx[i] = d[i] * (factor * power(x[i])); });
  });
}

void CheckExponent(const InferShapeContext& ctx) {
  if (ctx.HasInput("FactorTensor")) {
    EnforceScalar(ctx, "FactorTensor");
  }
}

OpRegistrar&& Exponent(OpRegistrar&& op) {
  return std::move(op)
      .Input("FactorTensor", "float32 or float64, a single element: the exponent, instead of attribute factor",
             kDispensable)
      .Attr<double>("factor", "the exponent", 1.0);
}

}  // namespace

HEADRACE_REGISTER_OP(pow)
    .Comment("X to the power of factor, element by element, of integers without a fraction. Out may be X.")
    .Input("X", "any shape")
    .With(Exponent)
    .Output("Out", "dims, dtype and LoD of X")
    .InPlace("Out", "X")
    .InferShape([](InferShapeContext& ctx) {
      CheckExponent(ctx);
      ctx.ShareAll("X", "Out");
    })
    .KernelTypeFrom("X")
    .Kernel<float>(PowKernel<float>)
    .Kernel<double>(PowKernel<double>)
    .Kernel<int32_t>(PowKernel<int32_t>)
    .Kernel<int64_t>(PowKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"X", "FactorTensor"}, .outputs = {}, .no_gradient = {"FactorTensor"}}));

HEADRACE_REGISTER_OP(pow_grad)
    .Comment("Gradient of pow. X@GRAD may be Out@GRAD.")
    .Input("X", "as in the operator")
    .With(Exponent)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .InPlace("X@GRAD", "Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      CheckExponent(ctx);
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .KernelTypeFrom("X")
    .Kernel<float>(PowGradKernel<float>)
    .Kernel<double>(PowGradKernel<double>);

}  // namespace headrace::ops
