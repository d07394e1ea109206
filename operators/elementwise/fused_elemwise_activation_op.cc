// fused_elemwise_activation: a sum or product and a function of one element as one operator, which Fluid's
// BuildStrategy.fuse_elewise_add_act_ops makes of two.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/elementwise/elementwise.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"

namespace headrace::ops {
namespace {

using Functors = std::vector<std::string>;

bool IsBinary(const std::string& functor) { return functor == "elementwise_add" || functor == "elementwise_mul"; }

// The two functions of functor_list: `unary(binary(x, y))`, or `binary(x, unary(y))`.
template <typename T>
struct Compound {
  explicit Compound(const ExecutionContext& ctx) : factor(static_cast<T>(ctx.Attr<double>("scale"))) {
    const Functors& functors = ctx.Attr<Functors>("functor_list");
    binary_first = IsBinary(functors[1]);
    multiplies = functors[binary_first ? 1 : 0] == "elementwise_mul";
    scales = functors[binary_first ? 0 : 1] == "scale";
  }

  T Unary(T x) const { return scales ? factor * x : x < 0 ? T(0) : x; }
  T UnaryDerivative(T x) const { return scales ? factor : static_cast<T>(x > 0); }
  T Binary(T x, T y) const { return multiplies ? x * y : x + y; }

  // What the function that comes first gives.
  T Intermediate(T x, T y) const { return binary_first ? Binary(x, y) : Unary(y); }
  T Value(T x, T y) const { return binary_first ? Unary(Binary(x, y)) : Binary(x, Unary(y)); }

  // The gradients, from that of the value.
  T ByX(T x, T y, T d) const {
    if (binary_first) {
      return d * UnaryDerivative(Binary(x, y)) * (multiplies ? y : T(1));
    }
    return multiplies ? d * Unary(y) : d;
  }
  T ByY(T x, T y, T d) const { return d * UnaryDerivative(binary_first ? Binary(x, y) : y) * (multiplies ? x : T(1)); }

  T factor;
  bool binary_first;
  bool multiplies;
  bool scales;
};

template <typename T>
void FusedKernel(const ExecutionContext& ctx) {
  const Compound<T> compound(ctx);
  const BroadcastPlan plan = PlanOf(ctx);
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  T* intermediate = MutableOrNull<T>(ctx, "IntermediateOut");
  if (intermediate != nullptr && !compound.binary_first) {
    const int64_t n = ctx.Input("Y").numel();
    std::transform(y, y + n, intermediate, [&](T value) { return compound.Unary(value); });
    intermediate = nullptr;
  }
  T* out = ctx.Output("Out")->mutable_data<T>();
  plan.ForEachRunInParallel([=, &compound](int64_t at, int64_t y_at, int64_t n, bool kept) {
    for (int64_t i = 0; i < n; ++i) {
      const T y_value = y[y_at + (kept ? i : 0)];
      if (intermediate != nullptr) {
        intermediate[at + i] = compound.Intermediate(x[at + i], y_value);
      }
      out[at + i] = compound.Value(x[at + i], y_value);
    }
  });
}

// X@GRAD comes last: it may be Out@GRAD.
template <typename T>
void FusedGradKernel(const ExecutionContext& ctx) {
  const Compound<T> compound(ctx);
  const BroadcastPlan plan = PlanOf(ctx);
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  if (T* dy = ZerosOrNull<T>(ctx, "Y@GRAD")) {
    plan.ForEachRunInParallelBySmall([=, &compound](int64_t at, int64_t y_at, int64_t n, bool kept) {
      if (kept) {
        for (int64_t i = 0; i < n; ++i) {
          dy[y_at + i] += compound.ByY(x[at + i], y[y_at + i], d[at + i]);
        }
      } else {
        dy[y_at] += ParallelSumOf<T>(n, [=](int64_t i) { return compound.ByY(x[at + i], y[y_at], d[at + i]); });
      }
    });
  }
  if (T* dx = MutableOrNull<T>(ctx, "X@GRAD")) {
    plan.ForEachRunInParallel([=, &compound](int64_t at, int64_t y_at, int64_t n, bool kept) {
      for (int64_t i = 0; i < n; ++i) {
        dx[at + i] = compound.ByX(x[at + i], y[y_at + (kept ? i : 0)], d[at + i]);
      }
    });
  }
}

void CheckFunctors(const Functors& functors) {
  const auto is_unary = [](const std::string& functor) { return functor == "scale" || functor == "relu"; };
  HR_ENFORCE(functors.size() == 2 &&
                 ((IsBinary(functors[0]) && is_unary(functors[1])) || (is_unary(functors[0]) && IsBinary(functors[1]))),
             InvalidArgument,
             "attribute functor_list: expected one of 'elementwise_add' and 'elementwise_mul', and one of 'scale' and "
             "'relu', got ",
             ToString(Attribute(functors)));
}

OpRegistrar&& FusedAttrs(OpRegistrar&& op) {
  return std::move(op)
      .With(AxisAttr)
      .Attr<Functors>("functor_list",
                      "the outer function, then the inner one: [unary, binary] for unary(binary(X, Y)), [binary, "
                      "unary] for binary(X, unary(Y)); binary is 'elementwise_add' or 'elementwise_mul', unary 'scale' "
                      "or 'relu'",
                      {"elementwise_add", "relu"}, CheckFunctors)
      .Attr<double>("scale", "the factor of 'scale'", 0.0)
      .Attr<bool>("save_intermediate_out", "whether there has to be an IntermediateOut", false);
}

}  // namespace

HEADRACE_REGISTER_OP(fused_elemwise_activation)
    .Comment("The compound of two functions, element by element.")
    .Input("X", "any shape")
    .Input("Y", "dims that X has from axis on, or 1 in their place; trailing ones may be left out")
    .Output("Out", "dims, dtype and LoD of X")
    .Output("IntermediateOut", "what the inner function gives: dims of X, or of Y if that is its only argument",
            kDispensable)
    .With(FusedAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceSameType(ctx, "Y", "X");
      AlignY(ctx.InputDim("X"), ctx.InputDim("Y"), ctx.Attr<int32_t>("axis"));
      HR_ENFORCE(!ctx.Attr<bool>("save_intermediate_out") || ctx.HasOutput("IntermediateOut"), InvalidArgument,
                 "output IntermediateOut: expected one, as attribute save_intermediate_out is true");
      ctx.ShareAll("X", "Out");
      if (ctx.HasOutput("IntermediateOut")) {
        ctx.ShareAll(IsBinary(ctx.Attr<Functors>("functor_list")[1]) ? "X" : "Y", "IntermediateOut");
      }
    })
    .Kernel<float>(FusedKernel<float>)
    .Kernel<double>(FusedKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(fused_elemwise_activation_grad)
    .Comment("Gradient of fused_elemwise_activation.")
    .Input("X", "as in the operator")
    .Input("Y", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("IntermediateOut@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X; may be Out@GRAD", kDispensable)
    .Output("Y@GRAD", "dims of Y, summed over what Y was broadcast to", kDispensable)
    .InPlace("X@GRAD", "Out@GRAD")
    .With(FusedAttrs)
    .InferShape([](InferShapeContext& ctx) {
      AlignY(ctx.InputDim("X"), ctx.InputDim("Y"), ctx.Attr<int32_t>("axis"));
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Y"});
    })
    .Kernel<float>(FusedGradKernel<float>)
    .Kernel<double>(FusedGradKernel<double>);

}  // namespace headrace::ops
