#include "framework/backward_pass.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "framework/block_runner.h"
#include "framework/errors.h"
#include "framework/op_registry.h"

namespace headrace {
namespace {

bool IsUpdate(const OpDesc& op) { return HasRole(op, kRoleOptimize); }

}  // namespace

void AppendBackwardOp(BlockDesc* to, OpDesc op, int32_t role) {
  op.attrs[std::string(kOpRoleAttr)] = role;
  op.attrs.erase(std::string(kOpRoleVarAttr));  // gradient makers copy it from operators that were appended before
  to->AppendOp(std::move(op));
}

BackwardPass::BackwardPass(BlockDesc& block, size_t end, const Names& no_grad, const Names& influenced,
                           Findings* findings, const BackwardPass* outer, size_t outer_index)
    : block_(block),
      end_(end),
      no_grad_(no_grad),
      findings_(findings),
      is_step_(outer != nullptr),
      values_(block, end, outer == nullptr ? nullptr : &outer->values_, outer_index),
      depends_(end) {
  std::copy_if(influenced.begin(), influenced.end(), std::inserter(influenced_, influenced_.end()),
               [&](const auto& name) { return outer == nullptr || !block.HasLocalVar(name); });
}

void BackwardPass::PropagateInfluence(const Names& own) {
  if (is_step_) {
    const Names& known = findings_->influenced[block_.index()];
    influenced_.insert(known.begin(), known.end());
    influenced_.insert(own.begin(), own.end());
  }
  for (size_t before = 0; before != influenced_.size();) {
    before = influenced_.size();
    for (size_t i = 0; i < end_; ++i) {
      depends_[i] =
          !IsUpdate(*block_.ops()[i]) && PassInfluenceOn(block_, *block_.ops()[i], no_grad_, &influenced_, findings_);
    }
    if (!is_step_) {
      return;  // only a step is run again with what it has influenced
    }
  }
  if (is_step_) {
    findings_->influenced[block_.index()] = influenced_;
  }
}

void BackwardPass::Plan() {
  for (size_t i = end_; i-- > 0;) {
    if (depends_[i]) {
      PlanOperator(i);
    }
  }
}

void BackwardPass::PlanOperator(size_t index) {
  const OpDesc& op = *block_.ops()[index];
  const Access access(block_, op);
  Step first;
  bool has_gradient = false;
  for (const std::string& name : Names(access.writes.begin(), access.writes.end())) {
    const std::string key = values_.KeyAfter(name, index);
    const auto it = contributions_.find(key);
    if (it != contributions_.end()) {
      has_gradient = true;
      if (it->second > 1) {
        first.sums.push_back(key);
      }
    }
  }
  if (!has_gradient) {
    return;  // its results reach the loss only through inputs that have no gradient, or not at all
  }
  const OpInfo& info = OpRegistry::Get(op.type);
  const BlockDesc* inner = InnerBlock(block_, op);
  HR_ENFORCE(info.gradient != nullptr || inner != nullptr || info.steps_gradient, Unimplemented, "operator '", op.type,
             "' is on the way from the parameters to the loss, but has no gradient (set stop_gradient of its inputs "
             "if none is to pass there): ",
             op.ToString());
  steps_.push_back(std::move(first));
  if (info.steps_gradient) {
    PlanSteps(index, info.steps_gradient);
    return;
  }
  if (inner != nullptr) {
    PlanBlock(index, *inner);
    return;
  }
  const bool writes_array = std::any_of(access.writes.begin(), access.writes.end(),
                                        [this](const std::string& name) { return IsArray(block_, name); });
  const GradientMaker& maker = writes_array && info.array_gradient != nullptr ? info.array_gradient : info.gradient;
  std::vector<OpDesc> gradients;
  try {
    gradients = maker(op);
  } catch (...) {
    op.RethrowWithContext();
  }
  const GradientNames names = NamesOfGradients(op);
  const size_t begin = steps_.size();
  for (OpDesc& gradient : gradients) {
    PlanGradient(index, names, std::move(gradient));
  }
  DropUnreadSteps(begin);
}

// Of the steps from `begin` on, those that make nothing but what gradient makers made up, for none of those behind.
void BackwardPass::DropUnreadSteps(size_t begin) {
  Names read;
  for (size_t i = steps_.size(); i-- > begin;) {
    const Step& step = steps_[i];
    const bool is_read = std::any_of(step.renamed_outputs.begin(), step.renamed_outputs.end(), [&](const auto& output) {
      return !output.second.empty() || read.contains(output.first);
    });
    if (!is_read) {
      steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    for (const auto& [slot, names] : step.op.inputs) {
      read.insert(names.begin(), names.end());
    }
  }
}

// One more operator contributes to the gradient of what `name` is before operator `index`.
void BackwardPass::Contribute(const std::string& name, size_t index) {
  const size_t version = values_.Version(name, index, false);
  const std::string key = values_.Key(name, version);
  size_t& count = contributions_[key];
  count = IsArray(block_, name) ? 1 : count + 1;
  if (version == values_.LastVersion(name) || values_.Writer(name, version + 1) != index) {
    used_.insert(key);
  }
}

// Gradient operators read the gradients of the operator's outputs and write those of its inputs. That of an array is
// changed in place, and so is both read and written.
BackwardPass::GradientNames BackwardPass::NamesOfGradients(const OpDesc& op) const {
  GradientNames names;
  for (const std::string& name : op.OutputNames()) {
    names.read.emplace(GradVarName(name), name);
  }
  for (const std::string& name : op.InputNames()) {
    names.written.emplace(GradVarName(name), name);
  }
  for (const auto& [name, variable] : names.read) {
    if (IsArray(block_, variable)) {
      names.written.emplace(name, variable);
    }
  }
  for (const auto& [name, variable] : names.written) {
    if (IsArray(block_, variable)) {
      names.read.emplace(name, variable);
    }
  }
  return names;
}

void BackwardPass::PlanGradient(size_t index, const GradientNames& names, OpDesc gradient) {
  Step step;
  const Source source = PlanInputs(index, names, &gradient, &step);
  // A slot of missing gradients only counts as absent, so that the operator may leave it undeclared.
  std::erase_if(gradient.inputs, [](const auto& slot) {
    return std::all_of(slot.second.begin(), slot.second.end(), [](const auto& name) { return name == kEmptyVarName; });
  });
  const std::vector<std::string> contributes = PlanOutputs(index, names, source, &gradient, &step);
  const bool useful = std::any_of(gradient.outputs.begin(), gradient.outputs.end(), [](const auto& slot) {
    return std::any_of(slot.second.begin(), slot.second.end(), [](const auto& name) { return name != kEmptyVarName; });
  });
  // Gradients are linear in those that they are computed from: without those they are zero.
  if (!useful || source == Source::kMissingGradients) {
    return;
  }
  for (const std::string& name : contributes) {
    Contribute(name, index);
  }
  step.op = std::move(gradient);
  steps_.push_back(std::move(step));
}

// Gives the values that `gradient` reads the names under which they are saved, and leaves out the gradients that there
// are not.
BackwardPass::Source BackwardPass::PlanInputs(size_t index, const GradientNames& names, OpDesc* gradient, Step* step) {
  const OpDesc& op = *block_.ops()[index];
  const std::vector<std::string> op_outputs = op.OutputNames();
  bool takes_gradients = false;
  bool has_gradients = false;
  for (auto& [slot, inputs] : gradient->inputs) {
    for (std::string& name : inputs) {
      const auto it = names.read.find(name);
      const auto made_up = made_up_.find(name);
      if (name == kEmptyVarName) {
        continue;
      }
      if (it == names.read.end() && made_up == made_up_.end()) {
        name = values_.SavedValue(name, index, Contains(op_outputs, name) && !Contains(op.Input(slot), name));
        continue;
      }
      bool exists = true;
      if (it == names.read.end()) {
        exists = made_up->second != Source::kMissingGradients;
        step->renamed_inputs.emplace(name, "");
      } else {
        const std::string key = values_.KeyAfter(it->second, index);
        exists = contributions_.contains(key) || (IsArray(block_, it->second) && influenced_.contains(it->second));
        step->renamed_inputs.emplace(name, key);
      }
      if (it != names.read.end() || made_up->second != Source::kValues) {
        takes_gradients = true;
        has_gradients = has_gradients || exists;
      }
      if (!exists) {
        name = kEmptyVarName;
      }
    }
  }
  return !takes_gradients ? Source::kValues : has_gradients ? Source::kGradients : Source::kMissingGradients;
}

// Leaves out the gradients that nobody needs. Returns the variables to whose gradients `gradient` contributes.
std::vector<std::string> BackwardPass::PlanOutputs(size_t index, const GradientNames& names, Source source,
                                                   OpDesc* gradient, Step* step) {
  std::vector<std::string> contributes;
  for (auto& [slot, outputs] : gradient->outputs) {
    for (std::string& name : outputs) {
      const auto it = names.written.find(name);
      if (name == kEmptyVarName) {
        continue;
      }
      if (it == names.written.end()) {
        made_up_[name] = source;
        step->renamed_outputs.emplace(name, "");
      } else if (influenced_.contains(it->second)) {
        contributes.push_back(it->second);
        step->renamed_outputs.emplace(name, values_.KeyBefore(it->second, index));
      } else {
        name = kEmptyVarName;
      }
    }
  }
  return contributes;
}

std::shared_ptr<BackwardPass> BackwardPass::PlannedStep(BlockDesc& block, size_t index, const Names& own,
                                                        const Names& given) const {
  auto step = std::make_shared<BackwardPass>(block, block.ops().size(), no_grad_, influenced_, findings_, this, index);
  step->PropagateInfluence(own);
  for (const std::string& name : given) {
    step->Expect(name);
  }
  step->Plan();
  return step;
}

void BackwardPass::PlanBlock(size_t index, const BlockDesc& inner) {
  const OpDesc& op = *block_.ops()[index];
  const BlockGradient& slots = *OpRegistry::Get(op.type).block_gradient;
  const auto is_test = op.attrs.find("is_test");
  HR_ENFORCE(is_test == op.attrs.end() || !std::get<bool>(is_test->second), InvalidArgument, "operator '", op.type,
             "' is on the way from the parameters to the loss, but has is_test and so keeps nothing to compute a "
             "gradient from");
  const Access access(block_, op);
  const Names writes(access.writes.begin(), access.writes.end());
  Names given;
  std::copy_if(writes.begin(), writes.end(), std::inserter(given, given.end()),
               [&](const auto& name) { return contributions_.contains(values_.KeyAfter(name, index)); });
  const Names given_from_outside = given;
  BlockDesc& block = block_.program().block(static_cast<size_t>(inner.index()));
  Step step;
  Names made;
  Names& known = findings_->given[block.index()];
  given.insert(known.begin(), known.end());
  for (size_t before = 0; step.inner == nullptr || before != given.size();) {
    before = given.size();
    step.inner = PlannedStep(block, index, {}, given);
    made = step.inner->MadeOutside();
    for (const std::string& name : made) {
      if (writes.contains(name) || IsArray(block_, name)) {
        given.insert(name);
      }
    }
  }
  known = given;
  OpDesc& gradient = step.op;
  gradient.type = op.type + "_grad";
  std::vector<int32_t> carried;
  std::vector<std::string>& step_given = step.given["given"];
  StepsGradient::Made& step_made = step.made["made"];
  step_made.slot = GradVarName(slots.reads);
  for (const std::string& name : given) {
    const bool is_array = IsArray(block_, name);
    const bool from_outside = given_from_outside.contains(name) || is_array;
    // Where the gradient is missing it is a zero like the value. That of what a variable was before its first operator
    // is nobody's, so it may have any dims; and if that operator did not run its block, there is no such value.
    const bool is_first = slots.runs_at_most_once && from_outside && block_.HasLocalVar(name) &&
                          !block_.GetVar(name).persistable && values_.Version(name, index, false) == 0;
    const bool needs_value = !is_array && !is_first && !(from_outside && made.contains(name));
    const std::string key = values_.KeyAfter(name, index);
    step_given.push_back(name);
    gradient.inputs[slots.writes].push_back(needs_value ? values_.SavedValue(name, index, true) : name);
    gradient.inputs[GradVarName(slots.writes)].push_back(from_outside ? GradVarName(name) : std::string(kEmptyVarName));
    step.renamed_inputs.emplace(GradVarName(name), key);
  }
  Names reads = made;
  reads.insert(given.begin(), given.end());
  for (const std::string& name : reads) {
    const auto place = std::find(step_given.begin(), step_given.end(), name);
    const bool is_carried = place != step_given.end();
    const std::string key = values_.KeyBefore(name, index);
    step_made.names.push_back(name);
    carried.push_back(is_carried ? static_cast<int32_t>(place - step_given.begin()) : -1);
    gradient.inputs[slots.reads].push_back(is_carried ? name : values_.SavedValue(name, index, false));
    gradient.outputs[GradVarName(slots.reads)].push_back(GradVarName(name));
    step.renamed_outputs.emplace(GradVarName(name), key);
    Contribute(name, index);
  }
  gradient.attrs["carried"] = carried;
  step.index = index;
  step.scopes = slots.scopes;
  steps_.push_back(std::move(step));
}

// What the maker of the gradient sees of the steps that operator `index` runs.
class BackwardPass::Steps : public DifferentiatedSteps {
 public:
  Steps(BackwardPass& pass, BlockDesc& block, size_t index) : pass_(pass), block_(block), index_(index) {}

  bool IsInfluenced(const std::string& name) const override { return pass_.influenced_.contains(name); }
  bool HasGradient(const std::string& name) const override {
    return pass_.contributions_.contains(pass_.values_.KeyAfter(name, index_));
  }
  void Plan(const Names& own, const Names& given) override { inner_ = pass_.PlannedStep(block_, index_, own, given); }
  bool IsInfluencedWithin(const std::string& name) const override { return Planned().IsInfluenced(name); }
  bool Makes(const std::string& name) const override { return Planned().Makes(name); }
  Names MadeOutside() const override { return Planned().MadeOutside(); }

  std::shared_ptr<BackwardPass> Take() {
    Planned();
    return std::move(inner_);
  }

 private:
  const BackwardPass& Planned() const {
    HR_ENFORCE(inner_ != nullptr, FailedPrecondition, "the gradient of a step has not been planned yet");
    return *inner_;
  }

  BackwardPass& pass_;
  BlockDesc& block_;
  const size_t index_;
  std::shared_ptr<BackwardPass> inner_;
};

void BackwardPass::PlanSteps(size_t index, const StepsGradientMaker& maker) {
  const OpDesc& op = *block_.ops()[index];
  BlockDesc& block = block_.program().block(static_cast<size_t>(op.Attr<BlockRef>("sub_block").index));
  HR_ENFORCE(block.parent() == block_.index(), InvalidArgument, "block ", block.index(), " lies within block ",
             block.parent(), "; an operator of block ", block_.index(), " cannot run it");
  Steps steps(*this, block, index);
  StepsGradient gradient = maker(op, steps);
  if (gradient.op.outputs.empty()) {
    return;
  }
  Step step;
  step.op = std::move(gradient.op);
  for (auto& [slot, names] : step.op.inputs) {
    for (std::string& name : names) {
      step.renamed_inputs.emplace(GradVarName(name), values_.KeyAfter(name, index));
      name = GradVarName(name);
    }
  }
  for (auto& [slot, names] : step.op.outputs) {
    for (std::string& name : names) {
      if (name != kEmptyVarName) {
        step.renamed_outputs.emplace(GradVarName(name), values_.KeyBefore(name, index));
        Contribute(name, index);
        name = GradVarName(name);
      }
    }
  }
  step.index = index;
  step.inner = steps.Take();
  step.scopes = std::move(gradient.scopes);
  step.given = std::move(gradient.given);
  step.made = std::move(gradient.made);
  steps_.push_back(std::move(step));
}

Names BackwardPass::MadeOutside() const {
  Names names;
  for (const auto& [key, count] : contributions_) {
    const std::string name = ValueVersions::NameOf(key);
    if (!block_.HasLocalVar(name) && key == values_.Key(name, 0)) {
      names.insert(name);
    }
  }
  return names;
}

bool BackwardPass::Reaches(const std::string& name) const {
  const VarDesc& desc = block_.GetVar(name);
  const bool is_computed = !desc.persistable && !desc.attrs.contains("is_data");
  for (size_t version = 0; version < values_.LastVersion(name); ++version) {
    const OpDesc& writer = *block_.ops()[values_.Writer(name, version + 1)];
    const std::string key = values_.Key(name, version);
    // The branches of a condition write one variable in turn, and pass on the gradient of what it was before.
    const bool is_passed_on = is_computed && InnerBlock(block_, writer) != nullptr && !used_.contains(key);
    HR_ENFORCE(is_passed_on || !contributions_.contains(key), InvalidArgument, "'", name,
               "' is used and then overwritten by '", writer.type,
               "' on the way from the parameters to the loss; give the result a variable of its own");
  }
  return contributions_.contains(name);
}

// A program may have several losses; each call gets gradient variables of its own.
bool BackwardPass::GradientNameIsTaken(const std::string& suffix) const {
  return std::any_of(contributions_.begin(), contributions_.end(), [&](const auto& entry) {
    return block_.HasLocalVar(GradVarName(entry.first) + suffix) ||
           block_.HasLocalVar(GradVarName(entry.first) + "@RENAME@0" + suffix);
  });
}

void BackwardPass::FinishForward() {
  for (Step& step : steps_) {
    if (step.inner == nullptr) {
      continue;
    }
    const OpDesc& op = *block_.ops()[step.index];
    const std::string& slot = step.scopes;
    if (op.Output(slot).empty()) {
      std::string scopes;
      for (size_t i = 0; scopes.empty() || block_.FindVar(scopes) != nullptr; ++i) {
        scopes = StrCat(op.type, "@STEPS@", block_.index(), "@", i);
      }
      VarDesc& var = block_.Var(scopes);
      var.kind = VarKind::kStepScopes;
      var.stop_gradient = true;
      block_.MutableOp(step.index).outputs[slot] = {scopes};
    }
    step.op.inputs[slot] = block_.ops()[step.index]->Output(slot);
  }
  values_.InsertSaves();
}

void BackwardPass::Declare(const std::string& name, const std::string& like) {
  if (to_->HasLocalVar(name)) {
    return;
  }
  const VarDesc* forward = block_.FindVar(like);
  VarDesc& var = to_->Var(name);
  if (forward != nullptr) {
    var.tensor = forward->tensor;
    var.kind = forward->kind;
  }
}

std::string BackwardPass::NextOutput(const std::string& key) {
  const std::string gradient = GradVarName(key);
  return contributions_.at(key) > 1 ? Partial(gradient, emitted_[key]++) : Unique(gradient);
}

void BackwardPass::EmitSum(const std::string& key) {
  const std::string gradient = GradVarName(key);
  OpDesc sum;
  sum.type = "sum";
  for (size_t i = 0; i < contributions_.at(key); ++i) {
    sum.inputs["X"].push_back(Partial(gradient, i));
  }
  sum.outputs["Out"] = {Unique(gradient)};
  Declare(Unique(gradient), ValueVersions::NameOf(key));
  AppendBackwardOp(to_, std::move(sum));
  summed_.insert(key);
}

std::string BackwardPass::DeclareGiven(const std::string& name) {
  const std::string variable = NextOutput(name);
  Declare(variable, name);
  return variable;
}

std::string BackwardPass::Total(const std::string& key) {
  if (contributions_.at(key) > 1 && !summed_.contains(key)) {
    EmitSum(key);
  }
  return Gradient(key);
}

void BackwardPass::EmitTo(BlockDesc* to, const std::string& suffix) {
  to_ = to;
  suffix_ = suffix;
}

void BackwardPass::Emit() {
  for (const Step& step : steps_) {
    EmitStep(step);
  }
}

void BackwardPass::EmitStep(const Step& step) {
  for (const std::string& key : step.sums) {
    if (!summed_.contains(key)) {
      EmitSum(key);
    }
  }
  if (step.op.type.empty()) {
    return;
  }
  OpDesc op = step.op;
  for (auto& [slot, names] : op.inputs) {
    for (std::string& name : names) {
      const auto it = step.renamed_inputs.find(name);
      if (it != step.renamed_inputs.end()) {
        name = it->second.empty() ? Unique(name) : Gradient(it->second);
        Declare(name, ValueVersions::NameOf(it->second));  // the gradient of an array that no operator has written yet
      }
    }
  }
  for (auto& [slot, names] : op.outputs) {
    for (std::string& name : names) {
      if (name == kEmptyVarName) {
        continue;
      }
      const std::string& key = step.renamed_outputs.at(name);
      name = key.empty() ? Unique(name) : NextOutput(key);
      Declare(name, ValueVersions::NameOf(key));
    }
  }
  if (step.inner != nullptr) {
    EmitSteps(step, std::move(op));
  } else {
    AppendBackwardOp(to_, std::move(op));
  }
}

// Gives the block that this differentiates a gradient block, which is empty.
BlockDesc& BackwardPass::StartEmitting(BlockDesc* to, const std::string& suffix) {
  FinishForward();
  EmitTo(&to->program().AppendBlock(block_.index()), suffix);
  return *to_;
}

void BackwardPass::EmitSteps(const Step& step, OpDesc op) {
  BackwardPass& inner = *step.inner;
  BlockDesc& block = inner.StartEmitting(to_, suffix_);
  std::map<std::string, std::string> given;  // a variable may be given twice, as an output and a state, say
  for (const auto& [attr, names] : step.given) {
    std::vector<std::string> variables;
    for (const std::string& name : names) {
      const auto [variable, is_new] = given.try_emplace(name);
      if (is_new) {
        variable->second = inner.DeclareGiven(name);
      }
      variables.push_back(variable->second);
    }
    op.attrs[attr] = variables;
  }
  inner.Emit();
  for (const auto& [attr, made] : step.made) {
    std::vector<std::string> variables;
    for (size_t i = 0; i < made.names.size(); ++i) {
      variables.push_back(inner.Makes(made.names[i]) ? inner.Made(made.names[i]) : std::string(kEmptyVarName));
      const std::string& gradient = op.outputs.at(made.slot)[i];
      if (variables.back() != kEmptyVarName && gradient != kEmptyVarName &&
          block.GetVar(variables.back()).kind == VarKind::kSelectedRows) {
        to_->MutableVar(gradient).kind = VarKind::kSelectedRows;
      }
    }
    op.attrs[attr] = variables;
  }
  op.attrs["sub_block"] = BlockRef{block.index()};
  AppendBackwardOp(to_, std::move(op));
}

}  // namespace headrace
