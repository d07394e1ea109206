#include "framework/backward.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <variant>

#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace {
namespace {

using Names = std::set<std::string>;

bool IsFloatingPoint(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16;
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What can be done about an operator without a gradient.
std::string_view Remedy(const OpDesc& op) {
  const bool runs_block = std::any_of(op.attrs.begin(), op.attrs.end(),
                                      [](const auto& attr) { return std::holds_alternative<BlockRef>(attr.second); });
  return runs_block ? " (unroll the loop, as a static RNN does, or compute both cases and choose between their results)"
                    : " (let no gradient pass there: give what it reads stop_gradient)";
}

// A gradient operator that will be appended.
struct Step {
  std::vector<std::string> sums;  // variables whose gradients must be added up before it runs
  OpDesc op;                      // no type: nothing but the sums
  // The names in `op` that are not those of the forward pass: gradients → their variable; what the gradient maker made
  // up → "".
  std::map<std::string, std::string> renamed;
};

// Plans and then appends the backward pass of one loss. First everything is decided on names as the gradient makers
// give them (v@GRAD); then the names are made unique and the operators appended.
class BackwardPass {
 public:
  BackwardPass(ProgramDesc* program, const std::string& loss, const Names& no_grad)
      : block_(program->block(0)), loss_(loss), no_grad_(no_grad) {
    for (size_t i = 0; i < block_.ops().size(); ++i) {
      for (const std::string& name : block_.ops()[i]->OutputNames()) {
        if (name != kEmptyVarName) {
          writers_[name].push_back(i);
        }
      }
    }
  }

  std::vector<std::pair<std::string, std::string>> Append(const std::vector<std::string>& wanted);

 private:
  void CheckLoss() const;
  std::vector<std::string> Parameters(const std::vector<std::string>& wanted) const;
  bool CarriesGradient(const std::string& name) const;
  std::vector<size_t> Path(const std::vector<std::string>& parameters);
  void Plan(size_t index);
  void PlanGradient(size_t index, OpDesc gradient);
  void CheckWrittenOnce(const std::string& name) const;
  void CheckNotOverwritten(size_t index, const std::string& name) const;
  void CheckStillHolds(size_t index, const std::string& slot, const std::string& name) const;
  void ChooseSuffix();
  std::string Unique(const std::string& gradient) const { return gradient + suffix_; }
  std::string Partial(const std::string& gradient, size_t i) const {
    return gradient + "@RENAME@" + std::to_string(i) + suffix_;
  }
  void Declare(const std::string& name, const std::string& like);
  void AppendLossGradient();
  void AppendSum(const std::string& variable);
  void AppendStep(const Step& step);
  void RollBack(size_t num_ops) noexcept;

  BlockDesc& block_;
  const std::string& loss_;
  const Names& no_grad_;
  std::map<std::string, std::vector<size_t>> writers_;  // which operators write a variable
  Names influenced_;                                    // variables that depend on a parameter, parameters included
  size_t path_end_ = 0;                                 // one past the operator that computes the loss
  std::vector<Step> steps_;
  Names made_up_;                                // by gradient makers, for their own use
  std::map<std::string, size_t> contributions_;  // variable with a gradient → how many operators contribute to it
  std::string suffix_;
  std::map<std::string, size_t> emitted_;  // variable → contributions appended so far
  Names summed_;
  std::vector<std::string> declared_;
};

void BackwardPass::CheckLoss() const {
  const VarDesc& loss = block_.GetVar(loss_);
  HR_ENFORCE(loss.kind == VarKind::kLoDTensor && IsFloatingPoint(loss.tensor.dtype), TypeMismatch, "the loss '", loss_,
             "' must be a tensor of a floating-point type");
  const DDim& dims = loss.tensor.dims;
  HR_ENFORCE(std::all_of(dims.begin(), dims.end(), [](int64_t dim) { return dim == 1; }), InvalidArgument, "the loss '",
             loss_, "' must be a single element, its shape is ", ToString(dims));
  HR_ENFORCE(writers_.contains(loss_), InvalidArgument, "no operator of the program computes the loss '", loss_, "'");
}

// The variables to differentiate by, in the order of their creation.
std::vector<std::string> BackwardPass::Parameters(const std::vector<std::string>& wanted) const {
  for (const std::string& name : wanted) {
    HR_ENFORCE(block_.HasLocalVar(name), NotFound, "there is no variable '", name, "' to differentiate by");
    HR_ENFORCE(CarriesGradient(name), InvalidArgument, "cannot differentiate by '", name,
               "': it is in no_grad, has stop_gradient, or is not a tensor of a floating-point type");
  }
  std::vector<std::string> parameters;
  for (const VarDesc* var : block_.LocalVars()) {
    if (wanted.empty() ? var->is_parameter && CarriesGradient(var->name) : Contains(wanted, var->name)) {
      parameters.push_back(var->name);
    }
  }
  return parameters;
}

bool BackwardPass::CarriesGradient(const std::string& name) const {
  if (name == kEmptyVarName || no_grad_.contains(name)) {
    return false;
  }
  const VarDesc* var = block_.FindVar(name);
  // An array carries one, too: operators that pass it on without a gradient must not go unnoticed.
  return var != nullptr && !var->stop_gradient &&
         (var->kind == VarKind::kLoDTensor || var->kind == VarKind::kLoDTensorArray) &&
         IsFloatingPoint(var->tensor.dtype);
}

// Operators between the parameters and the loss, last first.
std::vector<size_t> BackwardPass::Path(const std::vector<std::string>& parameters) {
  influenced_.insert(parameters.begin(), parameters.end());
  const auto& ops = block_.ops();
  path_end_ = writers_.at(loss_).back() + 1;
  std::vector<bool> depends(path_end_);
  for (size_t i = 0; i < path_end_; ++i) {
    const std::vector<std::string> inputs = ops[i]->InputNames();
    depends[i] =
        std::any_of(inputs.begin(), inputs.end(), [this](const auto& name) { return influenced_.contains(name); });
    if (depends[i]) {
      for (const std::string& name : ops[i]->OutputNames()) {
        if (CarriesGradient(name)) {
          influenced_.insert(name);
        }
      }
    }
  }
  Names leads_to_loss = {loss_};
  std::vector<size_t> path;
  for (size_t i = path_end_; i-- > 0;) {
    const std::vector<std::string> outputs = ops[i]->OutputNames();
    if (depends[i] &&
        std::any_of(outputs.begin(), outputs.end(), [&](const auto& name) { return leads_to_loss.contains(name); })) {
      path.push_back(i);
      for (const std::string& name : ops[i]->InputNames()) {
        if (influenced_.contains(name)) {
          leads_to_loss.insert(name);
        }
      }
    }
  }
  return path;
}

// A gradient belongs to a name. If the name stands for one value before and for another after some operator, it would
// be ambiguous.
void BackwardPass::CheckWrittenOnce(const std::string& name) const {
  HR_ENFORCE(writers_.at(name).size() == 1, InvalidArgument, "'", name, "' is written by several operators, '",
             block_.ops()[writers_.at(name).front()]->type, "' and '", block_.ops()[writers_.at(name).back()]->type,
             "' among them, on the way from the parameters to the loss; give each result a variable of its own");
}

void BackwardPass::CheckNotOverwritten(size_t index, const std::string& name) const {
  const auto it = writers_.find(name);
  if (it == writers_.end()) {
    return;
  }
  for (const size_t writer : it->second) {
    HR_ENFORCE(writer < index || writer >= path_end_, InvalidArgument, "'", name, "' is used by '",
               block_.ops()[index]->type, "' and then overwritten by '", block_.ops()[writer]->type,
               "' on the way from the parameters to the loss; give the result a variable of its own");
  }
}

// The gradient operator runs after all operators there are; the value it reads must still be the one that operator
// `index` saw.
void BackwardPass::CheckStillHolds(size_t index, const std::string& slot, const std::string& name) const {
  const auto it = writers_.find(name);
  if (it == writers_.end()) {
    return;
  }
  const OpDesc& op = *block_.ops()[index];
  const size_t last = it->second.back();
  const bool is_result = Contains(op.OutputNames(), name) && !Contains(op.Input(slot), name);
  HR_ENFORCE(last < index || (is_result && last == index), InvalidArgument, "the gradient of '", op.type, "' needs '",
             name, "', which '", block_.ops()[last]->type, "' overwrites");
}

void BackwardPass::Plan(size_t index) {
  const OpDesc& op = *block_.ops()[index];
  Step first;
  bool has_gradient = false;
  for (const std::string& name : op.OutputNames()) {
    const auto it = contributions_.find(name);
    if (it == contributions_.end()) {
      continue;
    }
    CheckWrittenOnce(name);
    has_gradient = true;
    if (it->second > 1) {
      first.sums.push_back(name);
    }
  }
  if (!has_gradient) {
    return;  // its results reach the loss only through inputs that have no gradient
  }
  const OpInfo& info = OpRegistry::Get(op.type);
  HR_ENFORCE(info.gradient != nullptr, Unimplemented, "operator '", op.type,
             "' is on the way from the parameters to the loss, but has no gradient", Remedy(op), ": ", op.ToString());
  steps_.push_back(std::move(first));
  for (OpDesc& gradient : info.gradient(op)) {
    PlanGradient(index, std::move(gradient));
  }
}

void BackwardPass::PlanGradient(size_t index, OpDesc gradient) {
  const OpDesc& op = *block_.ops()[index];
  std::map<std::string, std::string> output_gradients;  // v@GRAD → v, for the outputs of `op`
  for (const std::string& name : op.OutputNames()) {
    output_gradients.emplace(GradVarName(name), name);
  }
  std::map<std::string, std::string> input_gradients;
  for (const std::string& name : op.InputNames()) {
    input_gradients.emplace(GradVarName(name), name);
  }
  Step step;
  for (auto& [slot, names] : gradient.inputs) {
    for (std::string& name : names) {
      const auto it = output_gradients.find(name);
      if (it == output_gradients.end() && !made_up_.contains(name)) {
        CheckStillHolds(index, slot, name);
      } else if (it == output_gradients.end()) {
        step.renamed.emplace(name, "");
      } else if (contributions_.contains(it->second)) {
        step.renamed.insert(*it);
      } else {
        name = kEmptyVarName;
      }
    }
  }
  // A slot of missing gradients only counts as absent, so that the operator may leave it undeclared.
  std::erase_if(gradient.inputs, [](const auto& slot) {
    return std::all_of(slot.second.begin(), slot.second.end(), [](const auto& name) { return name == kEmptyVarName; });
  });
  std::vector<std::string> contributes;
  for (auto& [slot, names] : gradient.outputs) {
    for (std::string& name : names) {
      const auto it = input_gradients.find(name);
      if (name == kEmptyVarName) {
        continue;
      }
      if (it == input_gradients.end()) {
        made_up_.insert(name);
        step.renamed.emplace(name, "");
      } else if (influenced_.contains(it->second)) {
        CheckNotOverwritten(index, it->second);
        contributes.push_back(it->second);
        step.renamed.insert(*it);
      } else {
        name = kEmptyVarName;
      }
    }
  }
  const bool useful = std::any_of(gradient.outputs.begin(), gradient.outputs.end(), [](const auto& slot) {
    return std::any_of(slot.second.begin(), slot.second.end(), [](const auto& name) { return name != kEmptyVarName; });
  });
  if (!useful) {
    return;
  }
  for (const std::string& name : contributes) {
    ++contributions_[name];
  }
  step.op = std::move(gradient);
  steps_.push_back(std::move(step));
}

// A program may have several losses; each call gets gradient variables of its own.
void BackwardPass::ChooseSuffix() {
  const auto taken = [this] {
    return std::any_of(contributions_.begin(), contributions_.end(), [this](const auto& entry) {
      return block_.HasLocalVar(Unique(GradVarName(entry.first))) ||
             block_.HasLocalVar(Partial(GradVarName(entry.first), 0));
    });
  };
  for (int i = 1; taken(); ++i) {
    suffix_ = "@" + std::to_string(i);
  }
}

void BackwardPass::Declare(const std::string& name, const std::string& like) {
  if (block_.HasLocalVar(name)) {
    return;
  }
  const VarDesc* forward = block_.FindVar(like);
  const TensorSpec spec = forward == nullptr ? TensorSpec{} : forward->tensor;
  block_.Var(name).tensor = spec;
  declared_.push_back(name);
}

void BackwardPass::AppendLossGradient() {
  const TensorSpec& spec = block_.GetVar(loss_).tensor;
  const std::string name = Unique(GradVarName(loss_));
  Declare(name, loss_);
  OpDesc fill;
  fill.type = "fill_constant";
  fill.outputs["Out"] = {name};
  fill.attrs["shape"] = spec.dims;
  fill.attrs["dtype"] = static_cast<int32_t>(spec.dtype);
  fill.attrs["value"] = 1.0f;
  block_.AppendOp(std::move(fill));
}

void BackwardPass::AppendSum(const std::string& variable) {
  const std::string gradient = GradVarName(variable);
  OpDesc sum;
  sum.type = "sum";
  for (size_t i = 0; i < contributions_.at(variable); ++i) {
    sum.inputs["X"].push_back(Partial(gradient, i));
  }
  sum.outputs["Out"] = {Unique(gradient)};
  Declare(Unique(gradient), variable);
  block_.AppendOp(std::move(sum));
  summed_.insert(variable);
}

void BackwardPass::AppendStep(const Step& step) {
  for (const std::string& variable : step.sums) {
    AppendSum(variable);
  }
  if (step.op.type.empty()) {
    return;
  }
  OpDesc op = step.op;
  for (auto& [slot, names] : op.inputs) {
    for (std::string& name : names) {
      name = step.renamed.contains(name) ? Unique(name) : name;
    }
  }
  for (auto& [slot, names] : op.outputs) {
    for (std::string& name : names) {
      if (name == kEmptyVarName) {
        continue;
      }
      const std::string& variable = step.renamed.at(name);
      const bool partial = !variable.empty() && contributions_.at(variable) > 1;
      name = partial ? Partial(name, emitted_[variable]++) : Unique(name);
      Declare(name, variable);
    }
  }
  block_.AppendOp(std::move(op));
}

void BackwardPass::RollBack(size_t num_ops) noexcept {
  block_.RemoveOps(num_ops, block_.ops().size());
  for (const std::string& name : declared_) {
    block_.RemoveVar(name);
  }
}

std::vector<std::pair<std::string, std::string>> BackwardPass::Append(const std::vector<std::string>& wanted) {
  CheckLoss();
  const std::vector<std::string> parameters = Parameters(wanted);
  const std::vector<size_t> path = Path(parameters);
  contributions_[loss_] = 1;
  for (const size_t index : path) {
    Plan(index);
  }
  std::vector<std::pair<std::string, std::string>> result;
  std::vector<std::string> reached;
  for (const std::string& name : parameters) {
    if (contributions_.contains(name)) {
      reached.push_back(name);
    }
  }
  if (reached.empty()) {
    return result;
  }
  ChooseSuffix();
  const size_t num_ops = block_.ops().size();
  try {
    AppendLossGradient();
    for (const Step& step : steps_) {
      AppendStep(step);
    }
    for (const std::string& name : reached) {
      if (contributions_.at(name) > 1 && !summed_.contains(name)) {
        AppendSum(name);
      }
      result.emplace_back(name, Unique(GradVarName(name)));
    }
  } catch (...) {
    RollBack(num_ops);
    throw;
  }
  return result;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> AppendBackward(ProgramDesc* program, const std::string& loss,
                                                                const std::vector<std::string>& parameters,
                                                                const std::set<std::string>& no_grad) {
  HR_ENFORCE(program != nullptr, InvalidArgument, "there is no program to differentiate");
  return BackwardPass(program, loss, no_grad).Append(parameters);
}

}  // namespace headrace
