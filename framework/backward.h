// Reverse-mode differentiation of programs, after Paddle Fluid's append_backward.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/export.h"
#include "framework/program_desc.h"

namespace headrace {

// Appends to the root block of `program` the operators that compute d(loss)/d(parameter): the loss's own gradient
// (filled with 1), the gradient operators in reverse order, and `sum` operators where a variable is used more than
// once. Only what lies between the loss and the wanted parameters is differentiated; variables with stop_gradient and
// those in `no_grad` are not passed. Operators with blocks (while, conditional_block) are made to keep their steps, and
// get a new block each for their gradient; where a value is overwritten that a gradient needs, `assign` operators are
// inserted that save it. Appended operators have kRoleBackward (op_role.h). Operators with kRoleOptimize are skipped:
// behind them, gradients are those of the parameters as they have become, as in Fluid.
//
// `parameters`: names to differentiate by, any floating-point variables of the root block; empty: every trainable
// parameter (VarDesc::IsTrainable). Returns (parameter, gradient variable) in the order of the parameters' creation;
// parameters that the loss does not depend on are left out. A gradient variable is named GradVarName(v), with a further
// suffix if that name is taken by an earlier call. Uses the operators "fill_constant" (shape, dtype, value → Out) and
// "sum" (X → Out).
//
// Throws, leaving the program as it was: NotFound if the program lacks the loss or a parameter; TypeMismatch if the
// loss is not of a floating-point type; InvalidArgument if it is not a single element, if no operator computes it, if a
// named parameter cannot have a gradient, if a parameter is overwritten after it has been used, so that its gradient
// would be ambiguous, or a persistable variable whose value is needed; Unimplemented if an operator on the way has no
// gradient.
HEADRACE_API std::vector<std::pair<std::string, std::string>> AppendBackward(
    ProgramDesc* program, const std::string& loss, const std::vector<std::string>& parameters = {},
    const std::set<std::string>& no_grad = {});

// What AppendGradients differentiates: a variable, and the one with the weights of its elements, of the same shape and
// type; "": all weights are 1.
struct GradientTarget {
  std::string name;
  std::string weights;
};

// The same for d(Σ weight · element, over all targets)/d(wanted), with variables of any shape as targets, which need
// not be computed: without a loss of its own, the targets' gradients are copies of their weights. `wanted` is not
// empty. Uses the operators "target_gradient" (Target, Weights → Out) and "fill_any_like" (X, value → Out).
//
// Throws, leaving the program as it was, as AppendBackward does, but nothing because of a loss: NotFound if the program
// lacks a target or its weights; TypeMismatch if a target is not of a floating-point type.
HEADRACE_API std::vector<std::pair<std::string, std::string>> AppendGradients(
    ProgramDesc* program, const std::vector<GradientTarget>& targets, const std::vector<std::string>& wanted,
    const std::set<std::string>& no_grad = {});

}  // namespace headrace
