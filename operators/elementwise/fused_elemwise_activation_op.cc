// fused_elemwise_activation: a sum or product and a function of one element as one operator, which Fluid's
// BuildStrategy.fuse_elewise_add_act_ops makes of two.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/elementwise/elementwise.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"

namespace headrace::ops {
namespace {

using Functors = std::vector<std::string>;

bool IsBinary(const std::string& functor) { return functor == "elementwise_add" || functor == "elementwise_mul"; }

// Whether X is broadcast into Y, not Y into X: it has fewer dimensions, or as many, and one where Y has more elements.
bool IsXBroadcast(const DDim& x, const DDim& y) {
  if (x.size() != y.size()) {
    return x.size() < y.size();
  }
  return !std::equal(x.begin(), x.end(), y.begin(), [](int64_t a, int64_t b) { return a != 1 || b == 1; });
}

// The two functions of functor_list: `unary(binary(x, y))`, or `binary(x, unary(y))`. Their arguments come as an
// element of the input that has the dims of the result, and the one of the other that is broadcast to it.
template <typename T>
struct Compound {
  explicit Compound(const ExecutionContext& ctx)
      : x_is_broadcast(IsXBroadcast(ctx.Input("X").dims(), ctx.Input("Y").dims())),
        large(x_is_broadcast ? "Y" : "X"),
        small(x_is_broadcast ? "X" : "Y"),
        plan(PlanOf(ctx.Input(large).dims(), ctx.Input(small).dims(), ctx.Attr<int32_t>("axis"))),
        factor(static_cast<T>(ctx.Attr<double>("scale"))) {
    const Functors& functors = ctx.Attr<Functors>("functor_list");
    binary_first = IsBinary(functors[1]);
    multiplies = functors[binary_first ? 1 : 0] == "elementwise_mul";
    scales = functors[binary_first ? 0 : 1] == "scale";
  }

  T Unary(T x) const { return scales ? factor * x : x < 0 ? T(0) : x; }
  T UnaryDerivative(T x) const { return scales ? factor : static_cast<T>(x > 0); }
  T Binary(T x, T y) const { return multiplies ? x * y : x + y; }

  T Value(T of_large, T of_small) const {
    const auto [x, y] = Arguments(of_large, of_small);
    return binary_first ? Unary(Binary(x, y)) : Binary(x, Unary(y));
  }

  // The gradients, from that of the value.
  T ByLarge(T of_large, T of_small, T d) const {
    const auto [x, y] = Arguments(of_large, of_small);
    return x_is_broadcast ? ByY(x, y, d) : ByX(x, y, d);
  }
  T BySmall(T of_large, T of_small, T d) const {
    const auto [x, y] = Arguments(of_large, of_small);
    return x_is_broadcast ? ByX(x, y, d) : ByY(x, y, d);
  }

  T ByX(T x, T y, T d) const {
    if (binary_first) {
      return d * UnaryDerivative(Binary(x, y)) * (multiplies ? y : T(1));
    }
    return multiplies ? d * Unary(y) : d;
  }
  T ByY(T x, T y, T d) const { return d * UnaryDerivative(binary_first ? Binary(x, y) : y) * (multiplies ? x : T(1)); }

  struct Pair {
    T x;
    T y;
  };
  Pair Arguments(T of_large, T of_small) const {
    return x_is_broadcast ? Pair{of_small, of_large} : Pair{of_large, of_small};
  }

  bool x_is_broadcast;
  HashedName large;
  HashedName small;
  BroadcastPlan plan;
  T factor;
  bool binary_first;
  bool multiplies;
  bool scales;
};

template <typename T>
void FusedKernel(const ExecutionContext& ctx) {
  const Compound<T> compound(ctx);
  const T* large = ctx.Input(compound.large).template data<T>();
  const T* small = ctx.Input(compound.small).template data<T>();
  T* intermediate = MutableOrNull<T>(ctx, "IntermediateOut");
  if (intermediate != nullptr && !compound.binary_first) {
    const T* y = ctx.Input("Y").data<T>();
    std::transform(y, y + ctx.Input("Y").numel(), intermediate, [&](T value) { return compound.Unary(value); });
    intermediate = nullptr;
  }
  T* out = ctx.Output("Out")->mutable_data<T>();
  compound.plan.ForEachRunInParallel([=, &compound](int64_t at, int64_t small_at, int64_t n, bool kept) {
    for (int64_t i = 0; i < n; ++i) {
      const T of_small = small[small_at + (kept ? i : 0)];
      if (intermediate != nullptr) {
        intermediate[at + i] = compound.Binary(large[at + i], of_small);
      }
      out[at + i] = compound.Value(large[at + i], of_small);
    }
  });
}

// X@GRAD is written last: it may have the memory of Out@GRAD.
template <typename T>
void FusedGradKernel(const ExecutionContext& ctx) {
  const Compound<T> compound(ctx);
  const T* large = ctx.Input(compound.large).template data<T>();
  const T* small = ctx.Input(compound.small).template data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  Tensor memory;
  LoDTensor* small_grad = ctx.OutputOrNull(Grad(compound.small));
  T* d_small = nullptr;
  if (small_grad != nullptr) {
    const int64_t elements = ctx.Input(compound.small).numel();
    d_small = compound.x_is_broadcast ? Scratch<T>(&memory, elements) : small_grad->mutable_data<T>();
    std::fill_n(d_small, elements, T(0));
    compound.plan.SumInParallel(d_small, [=, &compound](T* sums, int64_t at, int64_t small_at, int64_t n, bool kept) {
      if (kept) {
        for (int64_t i = 0; i < n; ++i) {
          sums[small_at + i] += compound.BySmall(large[at + i], small[small_at + i], d[at + i]);
        }
      } else {
        sums[small_at] += ParallelSumOf<T>(
            n, [=, &compound](int64_t i) { return compound.BySmall(large[at + i], small[small_at], d[at + i]); });
      }
    });
  }
  if (T* d_large = MutableOrNull<T>(ctx, Grad(compound.large))) {
    compound.plan.ForEachRunInParallel([=, &compound](int64_t at, int64_t small_at, int64_t n, bool kept) {
      for (int64_t i = 0; i < n; ++i) {
        d_large[at + i] = compound.ByLarge(large[at + i], small[small_at + (kept ? i : 0)], d[at + i]);
      }
    });
  }
  if (d_small != nullptr && compound.x_is_broadcast) {
    std::copy_n(d_small, small_grad->numel(), small_grad->mutable_data<T>());
  }
}

// Checks that one input can be broadcast into the other; returns the slot of that.
HashedName CheckInputs(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const DDim y = ctx.InputDim("Y");
  const auto axis = ctx.Attr<int32_t>("axis");
  if (IsXBroadcast(x, y)) {
    AlignY(y, x, axis, "Y", "X");
    return "Y";
  }
  AlignY(x, y, axis);
  return "X";
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
    .Input(
        "Y",
        "dims that X has from axis on, or 1 in their place; trailing ones may be left out. If Y has more dimensions, "
        "or more elements in one of as many, X is broadcast into Y in the same way")
    .Output("Out", "dims, dtype and LoD of the input that the other one is broadcast into")
    .Output("IntermediateOut", "what the inner function gives: dims of Out, or of Y if that is its only argument",
            kDispensable)
    .With(FusedAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceSameType(ctx, "Y", "X");
      const HashedName large = CheckInputs(ctx);
      HR_ENFORCE(!ctx.Attr<bool>("save_intermediate_out") || ctx.HasOutput("IntermediateOut"), InvalidArgument,
                 "output IntermediateOut: expected one, as attribute save_intermediate_out is true");
      ctx.ShareAll(large, "Out");
      if (ctx.HasOutput("IntermediateOut")) {
        ctx.ShareAll(IsBinary(ctx.Attr<Functors>("functor_list")[1]) ? large : HashedName("Y"), "IntermediateOut");
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
    .Output("Y@GRAD", "dims of Y; that of the input that was broadcast is summed over its copies", kDispensable)
    .InPlace("X@GRAD", "Out@GRAD")
    .With(FusedAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim(CheckInputs(ctx)));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Y"});
    })
    .Kernel<float>(FusedGradKernel<float>)
    .Kernel<double>(FusedGradKernel<double>);

}  // namespace headrace::ops
