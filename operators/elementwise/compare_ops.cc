// less_than, less_equal, greater_than, greater_equal, equal, not_equal; logical_and, _or, _xor, _not.
#include <cstdint>
#include <functional>
#include <string>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/elementwise/elementwise.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

void InferComparison(InferShapeContext& ctx) {
  EnforceSameType(ctx, "Y", "X");
  AlignY(ctx.InputDim("X"), ctx.InputDim("Y"), ctx.Attr<int32_t>("axis"));
  SetOutput(ctx, "Out", ctx.InputDim("X"), DataType::kBool);
  ctx.ShareLoD("X", "Out");
}

template <typename T, typename Compare>
void ComparisonKernel(const ExecutionContext& ctx) {
  ForEachPair<T, bool>(ctx, [](T x, T y) { return Compare()(x, y); });
}

template <typename Compare>
OpRegistrar&& Comparison(OpRegistrar&& op, const char* comment) {
  return std::move(op)
      .Comment(std::string(comment) + ", element by element.")
      .Input("X", "any shape")
      .Input("Y", "dims that X has from axis on, or 1 in their place; dtype of X")
      .Output("Out", "bool, dims and LoD of X")
      .With(AxisAttr)
      .InferShape(InferComparison)
      .template Kernel<bool>(ComparisonKernel<bool, Compare>)
      .template Kernel<int32_t>(ComparisonKernel<int32_t, Compare>)
      .template Kernel<int64_t>(ComparisonKernel<int64_t, Compare>)
      .template Kernel<float>(ComparisonKernel<float, Compare>)
      .template Kernel<double>(ComparisonKernel<double, Compare>);
}

// Truth values as numbers, loops over which the compiler vectorises, unlike those over bool.
const uint8_t* Bytes(const LoDTensor& x) { return reinterpret_cast<const uint8_t*>(x.data<bool>()); }
uint8_t* MutableBytes(LoDTensor* x) { return reinterpret_cast<uint8_t*>(x->mutable_data<bool>()); }

// `Combine`: of ints, 0 or 1.
template <typename Combine>
OpRegistrar&& Logical(OpRegistrar&& op, const char* comment) {
  return std::move(op)
      .Comment(std::string(comment) + ", element by element. Out may be X or Y.")
      .Input("X", "bool, any shape")
      .Input("Y", "bool, dims of X")
      .Output("Out", "bool, dims and LoD of X")
      .InPlace("Out", "X")
      .InPlace("Out", "Y")
      .InferShape([](InferShapeContext& ctx) {
        EnforceDims(ctx, "Y", ctx.InputDim("X"));
        EnforceSameType(ctx, "Y", "X");
        ctx.ShareAll("X", "Out");
      })
      .template Kernel<bool>([](const ExecutionContext& ctx) {
        LoDTensor* out = ctx.Output("Out");
        uint8_t* to = MutableBytes(out);
        const uint8_t* x = Bytes(ctx.Input("X"));
        const uint8_t* y = Bytes(ctx.Input("Y"));
        ParallelForEach(out->numel(), [=](int64_t i) {
          to[i] = static_cast<uint8_t>(Combine()(static_cast<int>(x[i] != 0), static_cast<int>(y[i] != 0)));
        });
      });
}

}  // namespace

HEADRACE_REGISTER_OP(less_than).With(Comparison<std::less<>>, "X < Y");
HEADRACE_REGISTER_OP(less_equal).With(Comparison<std::less_equal<>>, "X <= Y");
HEADRACE_REGISTER_OP(greater_than).With(Comparison<std::greater<>>, "X > Y");
HEADRACE_REGISTER_OP(greater_equal).With(Comparison<std::greater_equal<>>, "X >= Y");
HEADRACE_REGISTER_OP(equal).With(Comparison<std::equal_to<>>, "X = Y");
HEADRACE_REGISTER_OP(not_equal).With(Comparison<std::not_equal_to<>>, "X != Y");

HEADRACE_REGISTER_OP(logical_and).With(Logical<std::bit_and<>>, "X and Y");
HEADRACE_REGISTER_OP(logical_or).With(Logical<std::bit_or<>>, "X or Y");
HEADRACE_REGISTER_OP(logical_xor).With(Logical<std::bit_xor<>>, "either X or Y");
HEADRACE_REGISTER_OP(logical_not)
    .Comment("Not X, element by element. Out may be X.")
    .Input("X", "bool, any shape")
    .Output("Out", "bool, dims and LoD of X")
    .InPlace("Out", "X")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .Kernel<bool>([](const ExecutionContext& ctx) {
      LoDTensor* out = ctx.Output("Out");
      uint8_t* to = MutableBytes(out);
      const uint8_t* x = Bytes(ctx.Input("X"));
      ParallelForEach(out->numel(), [=](int64_t i) { to[i] = static_cast<uint8_t>(x[i] == 0); });
    });

}  // namespace headrace::ops
