// What optimizers share. Each is one pass over the parameter, in place where an output is its input.
//
// The gradient may be SelectedRows. Then some optimizers update the rows that it has and leave all others alone (sgd,
// adagrad, ftrl, adam in lazy mode): a step costs as much as the rows that it touches. The others do what they would do
// with a dense gradient of zeros elsewhere, in a pass over the whole parameter, as in Fluid where Fluid has the case
// (momentum, rmsprop, adam).
#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <utility>

#include "framework/function_ref.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {

// An output and the input of which it is the next value; usually one variable.
struct Update {
  HashedName out;
  HashedName in;
};

// Checks that Grad and the inputs of the updates have the dims and dtype of Param, and gives them to the outputs.
inline void InferUpdates(InferShapeContext& ctx, std::initializer_list<Update> updates) {
  const DDim param = ctx.InputDim("Param");
  const auto check = [&](HashedName slot) {
    EnforceDims(ctx, slot, param);
    EnforceSameType(ctx, slot, "Param");
  };
  check("Grad");
  if (ctx.HasInput("LearningRate")) {
    EnforceScalar(ctx, "LearningRate");
  }
  for (const auto& [out, in] : updates) {
    check(in);
    SetOutput(ctx, out, param, ctx.InputType("Param"));
  }
}

// What becomes of the rows that a sparse gradient lacks.
enum class OtherRows { kStay, kGetZeroGradient };

// Updates elements [begin, begin + n) of the parameter, whose gradients are grad[0, n).
template <typename T>
using UpdateRange = FunctionRef<void(int64_t begin, int64_t n, const T* grad)>;

// Calls update for ranges that together are the parameter, or its rows that a sparse gradient has. T is float or
// double.
template <typename T>
void ForEachRangeOfGradient(const ExecutionContext& ctx, OtherRows others, std::initializer_list<Update> updates,
                            const UpdateRange<T>& update);

// Calls update(i, gradient) for elements i of the parameter, perhaps from several threads; element i of all inputs and
// outputs belongs to that gradient. The outputs have been taken before. `update` is copied, reads and writes elements i
// only, and each output is its input or does not overlap it.
template <typename T, typename UpdateElement>
void ForEachGradient(const ExecutionContext& ctx, OtherRows others, std::initializer_list<Update> updates,
                     const UpdateElement& update) {
  ForEachRangeOfGradient<T>(ctx, others, updates, [&update](int64_t begin, int64_t n, const T* grad) {
    const UpdateElement element = update;  // whose members the compiler can then keep in registers
    HEADRACE_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < n; ++i) {
      element(begin + i, grad[i]);
    }
  });
}

// The elements of an output, to be taken before the elements of the inputs.
template <typename T>
T* Mutable(const ExecutionContext& ctx, HashedName slot) {
  return ctx.Output(slot)->mutable_data<T>();
}

template <typename T>
const T* Elements(const ExecutionContext& ctx, HashedName slot) {
  return ctx.Input(slot).data<T>();
}

inline OpRegistrar&& CommonSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("Param", "the parameter")
      .Input("Grad", "its gradient; dims and dtype of Param", kSelectedRows)
      .Output("ParamOut", "the new parameter; may be Param")
      .InPlace("ParamOut", "Param");
}

inline OpRegistrar&& LearningRate(OpRegistrar&& op) {
  return std::move(op).Input("LearningRate", "float32 or float64 [1]");
}

// What the optimizer keeps for each element of the parameter: `slot`, and its next value `slot_out`.
inline OpRegistrar&& State(OpRegistrar&& op, const char* slot, const char* slot_out, const char* comment) {
  return std::move(op)
      .Input(slot, std::string(comment) + "; dims and dtype of Param")
      .Output(slot_out, std::string("may be ") + slot)
      .InPlace(slot_out, slot);
}

inline OpRegistrar&& RegularisationAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<double>("l1", "strength of the L1 regularisation", 0.0)
      .Attr<double>("l2", "strength of the L2 regularisation", 0.0);
}

// An attribute in [0, 1).
inline void CheckDecay(const double& value) {
  HR_ENFORCE(value >= 0 && value < 1, InvalidArgument,
             "attributes beta1, beta2, decay and rho: expected a number in [0, 1), got ", value);
}

// A number in [0, 1) that an input gives, or the attribute if the slot is empty.
inline double Decay(const ExecutionContext& ctx, HashedName slot, HashedName attribute) {
  const double decay = ScalarInputOr(ctx, slot, attribute);
  HR_ENFORCE(decay >= 0 && decay < 1, InvalidArgument, "input ", slot, ": expected a number in [0, 1), got ", decay);
  return decay;
}

// What adam, adamw and lamb keep: two moments and, for them, the powers of beta.

inline void InferAdam(InferShapeContext& ctx) {
  for (const HashedName slot : HashedNames{"Beta1Pow", "Beta2Pow"}) {
    EnforceDims(ctx, slot, {1});
    EnforceScalar(ctx, slot);
  }
  for (const HashedName slot : HashedNames{"Beta1Tensor", "Beta2Tensor"}) {
    if (ctx.HasInput(slot)) EnforceScalar(ctx, slot);
  }
  InferUpdates(ctx, {{"ParamOut", "Param"}, {"Moment1Out", "Moment1"}, {"Moment2Out", "Moment2"}});
  for (const auto& [out, in] : {Update{"Beta1PowOut", "Beta1Pow"}, Update{"Beta2PowOut", "Beta2Pow"}}) {
    if (ctx.HasOutput(out)) {
      EnforceSameType(ctx, in, "Param");
      SetOutput(ctx, out, {1}, ctx.InputType("Param"));
    }
  }
}

// Multiplies the powers by beta once more, for the next step; after all else, as they may be in place.
template <typename T>
void UpdateAdamPowers(const ExecutionContext& ctx) {
  for (const auto& [out, in, slot, attribute] :
       {std::array<HashedName, 4>{"Beta1PowOut", "Beta1Pow", "Beta1Tensor", "beta1"},
        std::array<HashedName, 4>{"Beta2PowOut", "Beta2Pow", "Beta2Tensor", "beta2"}}) {
    if (LoDTensor* power = ctx.OutputOrNull(out)) {
      const auto before = static_cast<T>(ScalarInput(ctx, in));
      *power->mutable_data<T>() = before * static_cast<T>(Decay(ctx, slot, attribute));
    }
  }
}

inline OpRegistrar&& AdamSlots(OpRegistrar&& op) {
  return std::move(op)
      .With(CommonSlots)
      .With(LearningRate)
      .With(State, "Moment1", "Moment1Out", "mean of the gradient")
      .With(State, "Moment2", "Moment2Out", "mean of its square")
      .Input("Beta1Pow", "float32 or float64 [1]: beta1 to the number of this step, which starts with 1")
      .Input("Beta2Pow", "float32 or float64 [1]: beta2 to the number of this step")
      .Input("Beta1Tensor", "float32 or float64 [1]: beta1, instead of the attribute", kDispensable)
      .Input("Beta2Tensor", "float32 or float64 [1]: beta2, instead of the attribute", kDispensable)
      .Output("Beta1PowOut", "Beta1Pow * beta1, for the next step; may be Beta1Pow, which then has the dtype of Param",
              kDispensable)
      .InPlace("Beta1PowOut", "Beta1Pow")
      .Output("Beta2PowOut", "Beta2Pow * beta2, likewise", kDispensable)
      .InPlace("Beta2PowOut", "Beta2Pow")
      .Attr<double>("beta1", "decay of the first moment", 0.9, CheckDecay)
      .Attr<double>("beta2", "decay of the second moment", 0.999, CheckDecay)
      .InferShape(InferAdam);
}

}  // namespace headrace::ops
