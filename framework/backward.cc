// How append_backward works. gradient_influence.h tells which variables depend on parameters. A gradient belongs to a
// value, and a name may stand for several values, one after another; so gradients are kept by the keys of
// value_versions.h, which also saves values that the backward pass needs and the forward pass overwrites. Planning goes
// through the operators of a block, last first, and notes which gradient operators are needed; then names are made
// unique and the operators are appended.
//
// An operator with a block gets a gradient block, which lies within the block that it differentiates and so sees the
// variables of the step. What goes from one to the other goes through the gradient operator; see
// operators/control_flow/control_flow_grad_ops.cc. Which variables a loop carries from step to step with a gradient is
// found by planning its block until nothing is added. What was found is kept for the next time that a block around it
// is planned: sets only grow, so a block is planned once for each block around it and for each addition, not twice for
// each level.
//
// A block may have variables of its own for what goes in and out; then the operator says how the gradients of its steps
// become its own (StepsGradient), as `recurrent` does.
//
// The gradient operators of a loss whose backward pass is appended behind the updates of another one read the
// parameters as these have left them, as in Fluid.
//
// An array is written place by place, and keeps what is not written. Its gradient is one variable that every gradient
// operator changes in place: reading a place adds to it there, writing a place takes it out.
#include "framework/backward.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "framework/backward_pass.h"
#include "framework/errors.h"
#include "framework/gradient_influence.h"
#include "framework/op_role.h"

namespace headrace {
namespace {

// The loss must be a single element that an operator computes.
void CheckLoss(const BlockDesc& root, const std::string& name) {
  const VarDesc& loss = root.GetVar(name);
  HR_ENFORCE(loss.kind == VarKind::kLoDTensor && IsFloatingPoint(loss.tensor.dtype), TypeMismatch, "the loss '", name,
             "' must be a tensor of a floating-point type");
  const DDim& dims = loss.tensor.dims;
  HR_ENFORCE(std::all_of(dims.begin(), dims.end(), [](int64_t dim) { return dim == 1; }), InvalidArgument, "the loss '",
             name, "' must be a single element, its shape is ", ToString(dims));
}

// One past the operator that computes the loss.
size_t EndOfForward(const BlockDesc& root, const std::string& loss) {
  for (size_t i = root.ops().size(); i-- > 0;) {
    if (Contains(Access(root, *root.ops()[i]).writes, loss)) {
      return i + 1;
    }
  }
  Throw<InvalidArgument>("no operator of the program computes the loss '", loss, "'");
}

// The variables to differentiate by, in the order of their creation.
std::vector<std::string> Parameters(const BlockDesc& root, const std::vector<std::string>& wanted,
                                    const Names& no_grad) {
  for (const std::string& name : wanted) {
    HR_ENFORCE(root.HasLocalVar(name), NotFound, "there is no variable '", name, "' to differentiate by");
    HR_ENFORCE(CarriesGradient(root, no_grad, name), InvalidArgument, "cannot differentiate by '", name,
               "': it is in no_grad, has stop_gradient, or is not a tensor of a floating-point type");
  }
  std::vector<std::string> parameters;
  for (const VarDesc* var : root.LocalVars()) {
    if (wanted.empty() ? var->IsTrainable() && CarriesGradient(root, no_grad, var->name)
                       : Contains(wanted, var->name)) {
      parameters.push_back(var->name);
    }
  }
  return parameters;
}

void AppendLossGradient(BlockDesc* root, const std::string& loss, const std::string& gradient) {
  const TensorSpec spec = root->GetVar(loss).tensor;
  OpDesc fill;
  fill.type = "fill_constant";
  fill.outputs["Out"] = {gradient};
  fill.attrs["shape"] = spec.dims;
  fill.attrs["dtype"] = static_cast<int32_t>(spec.dtype);
  fill.attrs["value"] = 1.0F;
  AppendBackwardOp(root, std::move(fill), kRoleBackward | kRoleLoss);
}

// Says of the operator that completes the gradient of a parameter that it does.
void NoteGradient(BlockDesc* root, const std::string& parameter, const std::string& gradient) {
  for (size_t i = root->ops().size(); i-- > 0;) {
    if (Contains(root->ops()[i]->OutputNames(), gradient)) {
      Attribute& noted = root->MutableOp(i).attrs[std::string(kOpRoleVarAttr)];
      if (!std::holds_alternative<std::vector<std::string>>(noted)) {
        noted = std::vector<std::string>();
      }
      auto& names = std::get<std::vector<std::string>>(noted);
      names.insert(names.end(), {parameter, gradient});
      return;
    }
  }
}

// The parameters that the gradients expected by the pass reach.
std::vector<std::string> Reached(const BackwardPass& pass, const std::vector<std::string>& parameters) {
  std::vector<std::string> reached;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(reached),
               [&pass](const auto& name) { return pass.Reaches(name); });
  return reached;
}

// Begins to emit, with a suffix that makes the gradients' names unique.
void BeginEmitting(BackwardPass* pass, BlockDesc* root) {
  std::string suffix;
  for (int i = 1; pass->GradientNameIsTaken(suffix); ++i) {
    suffix = "@" + std::to_string(i);
  }
  pass->FinishForward();
  pass->EmitTo(root, suffix);
}

// Emits the gradients of the parameters, and returns them with their gradients.
std::vector<std::pair<std::string, std::string>> Emit(BackwardPass* pass, BlockDesc* root,
                                                      const std::vector<std::string>& parameters) {
  pass->Emit();
  std::vector<std::pair<std::string, std::string>> result;
  for (const std::string& name : parameters) {
    result.emplace_back(name, pass->Total(name));
    if (root->GetVar(name).is_parameter) {
      NoteGradient(root, name, result.back().second);
    }
  }
  return result;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> AppendBackward(ProgramDesc* program, const std::string& loss,
                                                                const std::vector<std::string>& wanted,
                                                                const std::set<std::string>& no_grad) {
  HR_ENFORCE(program != nullptr, InvalidArgument, "there is no program to differentiate");
  ProgramDesc changed(*program);
  BlockDesc& root = changed.block(0);
  CheckLoss(root, loss);
  const size_t end = EndOfForward(root, loss);
  const std::vector<std::string> parameters = Parameters(root, wanted, no_grad);
  Findings findings;
  BackwardPass pass(root, end, no_grad, Names(parameters.begin(), parameters.end()), &findings, nullptr, 0);
  pass.PropagateInfluence();
  pass.Expect(loss);
  pass.Plan();
  const std::vector<std::string> reached = Reached(pass, parameters);
  if (reached.empty()) {
    return {};
  }
  root.MutableOp(end - 1).attrs[std::string(kOpRoleAttr)] = RoleOf(*root.ops()[end - 1]) | kRoleLoss;
  BeginEmitting(&pass, &root);
  AppendLossGradient(&root, loss, pass.DeclareGiven(loss));
  auto result = Emit(&pass, &root, reached);
  program->Swap(&changed);
  return result;
}

std::vector<std::pair<std::string, std::string>> AppendGradients(ProgramDesc* program,
                                                                 const std::vector<GradientTarget>& targets,
                                                                 const std::vector<std::string>& wanted,
                                                                 const std::set<std::string>& no_grad) {
  HR_ENFORCE(program != nullptr, InvalidArgument, "there is no program to differentiate");
  HR_ENFORCE(!wanted.empty(), InvalidArgument, "there is nothing to differentiate by");
  ProgramDesc changed(*program);
  BlockDesc& root = changed.block(0);
  const std::vector<std::string> variables = Parameters(root, wanted, no_grad);
  Findings findings;
  BackwardPass pass(root, root.ops().size(), no_grad, Names(variables.begin(), variables.end()), &findings, nullptr, 0);
  pass.PropagateInfluence();
  std::vector<GradientTarget> passed;  // the targets through which a gradient passes
  for (const GradientTarget& target : targets) {
    const VarDesc& desc = root.GetVar(target.name);
    HR_ENFORCE(desc.kind == VarKind::kLoDTensor && IsFloatingPoint(desc.tensor.dtype), TypeMismatch, "the target '",
               target.name, "' must be a tensor of a floating-point type");
    HR_ENFORCE(target.weights.empty() || root.HasLocalVar(target.weights), NotFound, "there is no variable '",
               target.weights, "', the weights of the target '", target.name, "'");
    if (CarriesGradient(root, no_grad, target.name)) {
      pass.Expect(target.name);
      passed.push_back(target);
    }
  }
  pass.Plan();
  const std::vector<std::string> reached = Reached(pass, variables);
  if (reached.empty()) {
    return {};
  }
  BeginEmitting(&pass, &root);
  for (const GradientTarget& target : passed) {
    OpDesc given;
    if (target.weights.empty()) {
      given.type = "fill_any_like";
      given.inputs["X"] = {target.name};
      given.attrs["value"] = 1.0;
    } else {
      given.type = "target_gradient";
      given.inputs["Target"] = {target.name};
      given.inputs["Weights"] = {target.weights};
    }
    given.outputs["Out"] = {pass.DeclareGiven(target.name)};
    AppendBackwardOp(&root, std::move(given));
  }
  auto result = Emit(&pass, &root, reached);
  program->Swap(&changed);
  return result;
}

}  // namespace headrace
