// What layer_norm and group_norm declare alike: X is normalised in parts, each of which has a mean and a variance, then
// scaled and shifted.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"

namespace headrace::ops {

// The slots of the operator; `x`, `scale` (and Bias) and `statistics` are the dims of the inputs and of what is known
// of each part.
inline OpRegistrar&& NormSlots(OpRegistrar&& op, const char* x, const char* scale, const char* statistics) {
  return std::move(op)
      .Input("X", x)
      .Input("Scale", scale, kDispensable)
      .Input("Bias", scale, kDispensable)
      .Output("Y", "dims of X")
      .Output("Mean", statistics)
      .Output("Variance", statistics)
      .Gradient(
          DefaultGradient({.inputs = {"X", "Scale", "Bias"}, .outputs = {"Mean", "Variance"}, .no_gradient = {}}));
}

// Those of its gradient, by way of Y.
inline OpRegistrar&& NormGradSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "as in the operator")
      .Input("Scale", "as in the operator", kDispensable)
      .Input("Bias", "as in the operator; only its dims are used", kDispensable | kShapeOnly)
      .Input("Mean", "as in the operator")
      .Input("Variance", "as in the operator")
      .Input("Y@GRAD", "gradient of Y")
      .Input("Mean@GRAD", "not used", kDispensable)
      .Input("Variance@GRAD", "not used", kDispensable)
      .Output("X@GRAD", "dims of X", kDispensable)
      .Output("Scale@GRAD", "dims of Scale", kDispensable)
      .Output("Bias@GRAD", "dims of Bias", kDispensable);
}

// Checks Scale and Bias, of which each has `numel` elements.
inline void CheckScaleAndBias(const InferShapeContext& ctx, int64_t numel) {
  for (const HashedName slot : HashedNames{"Scale", "Bias"}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, {numel});
      EnforceSameType(ctx, slot, "X");
    }
  }
}

inline void InferNorm(InferShapeContext& ctx, const DDim& statistics) {
  ctx.ShareAll("X", "Y");
  SetOutput(ctx, "Mean", statistics, ctx.InputType("X"));
  SetOutput(ctx, "Variance", statistics, ctx.InputType("X"));
}

inline void InferNormGrad(InferShapeContext& ctx, const DDim& statistics) {
  for (const HashedName slot : HashedNames{"Mean", "Variance"}) {
    EnforceDims(ctx, slot, statistics);
    EnforceSameType(ctx, slot, "X");
  }
  EnforceDims(ctx, "Y@GRAD", ctx.InputDim("X"));
  EnforceSameType(ctx, "Y@GRAD", "X");
  InferGradients(ctx, {"X", "Scale", "Bias"});
}

}  // namespace headrace::ops
