// test_faulty(X; fault) → Out: X, with a gradient, for float64, float32 and float16. What `fault` names is wrong with
// it:
//
//   "dims", "gradient dims"        inferred wrongly, where the first one of X is not known
//   "LoD", "gradient LoD"          declared one level too deep
//   "float16", "gradient float16"  7/8 of what it should be
//   "gradient without LoD"         7/8 of what it should be, where the gradient of Out has no LoD
//   "in place", "gradient in place"  0 where it is written in place of its input, which is declared to be possible
//   "gradient shape only"          reads an element of X, of which it declares to read only the shape
//
// The tests of both OpTests are built with it, those in Python as a library of operators.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "framework/op_registry.h"

namespace {

using headrace::DDim;
using headrace::ExecutionContext;
using headrace::float16;
using headrace::InferShapeContext;

// Of numbers in the range of float16.
float Widen(float16 value) {
  const int exponent = (value.bits >> 10) & 31;
  const int mantissa = (value.bits & 1023) + (exponent > 0 ? 1024 : 0);
  return std::ldexp(static_cast<float>((value.bits >> 15) != 0 ? -mantissa : mantissa), std::max(exponent, 1) - 25);
}

float16 Narrow(float value) {
  const int exponent = value == 0 ? -14 : std::max(std::ilogb(value), -14);
  const auto mantissa = static_cast<int>(std::nearbyint(std::ldexp(std::abs(value), 10 - exponent)));
  return {static_cast<uint16_t>((std::signbit(value) ? 1 << 15 : 0) + ((exponent + 14) << 10) + mantissa)};
}

bool Has(const std::string& fault, const ExecutionContext& ctx) { return ctx.Attr<std::string>("fault") == fault; }

template <typename T>
void Copy(const ExecutionContext& ctx, const std::string& from, const std::string& to, bool wrong) {
  const auto& x = ctx.Input(from);
  std::transform(x.data<T>(), x.data<T>() + x.numel(), ctx.Output(to)->mutable_data<T>(), [wrong](T value) {
    if constexpr (std::is_same_v<T, float16>) {
      return wrong ? Narrow(Widen(value) * 7 / 8) : value;
    } else {
      return wrong ? value * 7 / 8 : value;
    }
  });
}

template <typename T>
void Clear(const ExecutionContext& ctx, const std::string& to) {
  std::fill_n(ctx.Output(to)->mutable_data<T>(), ctx.Output(to)->numel(), T{});
}

template <typename T>
void Forward(const ExecutionContext& ctx) {
  if (Has("in place", ctx)) {
    Clear<T>(ctx, "Out");
  }
  Copy<T>(ctx, "X", "Out", std::is_same_v<T, float16> && Has("float16", ctx));
}

template <typename T>
void Backward(const ExecutionContext& ctx) {
  if (Has("gradient in place", ctx)) {
    Clear<T>(ctx, "X@GRAD");
  }
  if (Has("gradient shape only", ctx)) {
    (void)ctx.Input("X").data<T>();
  }
  const bool has_lod = !ctx.Input("Out@GRAD").lod().empty();
  const bool wrong = std::is_same_v<T, float16> && Has("gradient float16", ctx);
  Copy<T>(ctx, "Out@GRAD", "X@GRAD", wrong || (!has_lod && Has("gradient without LoD", ctx)));
}

void Infer(InferShapeContext& ctx, const std::string& from, const std::string& to, const std::string& prefix) {
  ctx.ShareAll(from, to);
  const auto& fault = ctx.Attr<std::string>("fault");
  if (DDim dims = ctx.InputDim(from); fault == prefix + "dims" && dims[0] == -1) {
    dims[0] = 77;
    ctx.SetOutputDim(to, dims);
  }
  if (fault == prefix + "LoD") {
    ctx.SetOutputLoDLevel(to, ctx.InputLoDLevel(from) + 1);
  }
}

HEADRACE_REGISTER_OP(test_faulty)
    .Comment("X.")
    .Input("X", "one dimension or more")
    .Output("Out", "dims, dtype and LoD of X; may be X")
    .InPlace("Out", "X")
    .Attr<std::string>("fault", "what is wrong with it", "")
    .InferShape([](InferShapeContext& ctx) { Infer(ctx, "X", "Out", ""); })
    .Kernel<float>(Forward<float>)
    .Kernel<double>(Forward<double>)
    .Gradient(headrace::DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(test_faulty_grad)
    .Comment("The gradient of test_faulty.")
    .Input("X", "its dims are those of Out@GRAD", headrace::kShapeOnly)
    .Input("Out@GRAD", "that of Out")
    .Output("X@GRAD", "dims, dtype and LoD of Out@GRAD; may be Out@GRAD")
    .InPlace("X@GRAD", "Out@GRAD")
    .KernelTypeFrom("Out@GRAD")
    .Attr<std::string>("fault", "that of test_faulty", "")
    .InferShape([](InferShapeContext& ctx) { Infer(ctx, "Out@GRAD", "X@GRAD", "gradient "); })
    .Kernel<float>(Backward<float>)
    .Kernel<double>(Backward<double>);

HEADRACE_REGISTER_KERNEL(test_faulty, float16, Forward<float16>);
HEADRACE_REGISTER_KERNEL(test_faulty_grad, float16, Backward<float16>);

}  // namespace
