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
#include <iterator>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>

#include "framework/block_runner.h"
#include "framework/gradient_influence.h"
#include "framework/op_registry.h"
#include "framework/op_role.h"
#include "framework/operator.h"
#include "framework/value_versions.h"

namespace headrace {
namespace {

bool IsUpdate(const OpDesc& op) { return HasRole(op, kRoleOptimize); }

void AppendBackwardOp(BlockDesc* to, OpDesc op, int32_t role = kRoleBackward) {
  op.attrs[std::string(kOpRoleAttr)] = role;
  to->AppendOp(std::move(op));
}

class BlockPass;

// A gradient operator that will be appended.
struct Step {
  std::vector<std::string> sums;  // keys of gradients that must be added up before it runs
  OpDesc op;                      // no type: nothing but the sums
  // The names in `op` that are not those of the forward pass: gradients → their key; what the gradient maker made up
  // → "". In place, the gradients of an input and an output have one name.
  std::map<std::string, std::string> renamed_inputs;
  std::map<std::string, std::string> renamed_outputs;
  // Of an operator with a block: its place, how its steps are differentiated, the slot of their scopes, and by
  // attribute of `op` the variables in the block whose gradients a step is given and makes.
  size_t index = 0;
  std::shared_ptr<BlockPass> inner;
  std::string scopes;
  std::map<std::string, std::vector<std::string>> given;
  std::map<std::string, StepsGradient::Made> made;
};

// What a variable that a gradient maker made up is computed from: values alone, gradients, or gradients that there are
// not, so that there is no such variable either.
enum class MadeUp { kOfValues, kOfGradients, kMissing };

// Plans the gradient of one block and then appends it.
class BlockPass {
 public:
  // `end`: the operators from it on do not matter. `outer`: that of the block around this one, whose operator
  // `outer_index` runs this one; nullptr: the root block.
  BlockPass(BlockDesc& block, size_t end, const Names& no_grad, const Names& influenced, Findings* findings,
            const BlockPass* outer, size_t outer_index);

  // For a block that is run by an operator: until nothing is added, since a step may be followed by itself. `own` are
  // variables of the block itself that depend on a parameter before its first operator.
  void PropagateInfluence(const Names& own = {});
  bool IsInfluenced(const std::string& name) const { return influenced_.contains(name); }

  // The gradient of the last version of `name` will be given, or a part of it.
  void Expect(const std::string& name) { ++contributions_[name]; }
  // Plans to compute, from the gradients that are expected, those that depend on parameters.
  void Plan();

  // Whether the gradient of what `name` is before the first operator gets contributions.
  bool Makes(const std::string& name) const { return contributions_.contains(values_.Key(name, 0)); }
  // The variables of the blocks around this one of which that is true.
  Names MadeOutside() const;

  // Prepares the block itself: values that will be overwritten are saved, operators with blocks keep their steps.
  void FinishForward();
  // What is emitted goes to the end of `to`: this block, if it is the root block, or a new one within it.
  void EmitTo(BlockDesc* to, const std::string& suffix);
  // The variable in `to` for the gradient of the last version of `name` that is given, or for a part of it.
  std::string DeclareGiven(const std::string& name);
  // Gives the gradient of the last version of `name`, or a part of it, as the variable `gradient`, which may be used
  // for that as it is.
  void Give(const std::string& name, const std::string& gradient);
  // Appends the gradient operators.
  void Emit();
  // The variable with the gradient of what `name` was before the first operator. Only if Makes(name).
  std::string Made(const std::string& name) { return Total(values_.Key(name, 0)); }

  // For the root block. Whether the gradient of `name` gets contributions. Throws InvalidArgument if `name` is
  // overwritten after it has contributed, since it would not be clear which value the gradient belongs to.
  bool Reaches(const std::string& name) const;
  // The variable with the gradient of a key that gets contributions.
  std::string Total(const std::string& key);
  bool GradientNameIsTaken(const std::string& suffix) const;

 private:
  class Steps;

  void PlanOperator(size_t index);
  void PlanGradient(size_t index, OpDesc gradient);
  void DropUnreadSteps(size_t begin);
  // The pass of a step of `block`, which operator `index` runs: see PropagateInfluence and Plan.
  std::shared_ptr<BlockPass> PlannedStep(BlockDesc& block, size_t index, const Names& own, const Names& given) const;
  void PlanBlock(size_t index, const BlockDesc& inner);
  void PlanSteps(size_t index, const StepsGradientMaker& maker);
  void Contribute(const std::string& name, size_t index);

  std::string Unique(const std::string& gradient) const { return gradient + suffix_; }
  std::string Gradient(const std::string& key) const {
    const auto given = given_.find(key);
    return given == given_.end() ? Unique(GradVarName(key)) : given->second;
  }
  std::string Partial(const std::string& gradient, size_t i) const {
    return gradient + "@RENAME@" + std::to_string(i) + suffix_;
  }
  std::string NextOutput(const std::string& key);
  void Declare(const std::string& name, const std::string& like);
  void EmitSum(const std::string& key);
  void EmitStep(const Step& step);
  void EmitSteps(const Step& step, OpDesc op);
  BlockDesc& StartEmitting(BlockDesc* to, const std::string& suffix);

  BlockDesc& block_;
  const size_t end_;
  const Names& no_grad_;
  Names influenced_;  // variables that depend on a parameter, parameters included
  Findings* const findings_;
  const bool is_step_;  // whether an operator runs the block, perhaps many times
  ValueVersions values_;
  std::vector<bool> depends_;  // whether an operator reads what is influenced
  std::vector<Step> steps_;
  std::map<std::string, MadeUp> made_up_;        // by gradient makers, for their own use
  std::map<std::string, size_t> contributions_;  // key → how many operators contribute to its gradient
  Names used_;                                   // keys to which others contribute than the operator that overwrites it

  BlockDesc* to_ = nullptr;
  std::string suffix_;
  std::map<std::string, size_t> emitted_;     // key → contributions appended so far
  std::map<std::string, std::string> given_;  // key → the variable of another name that has the gradient
  Names summed_;
};

BlockPass::BlockPass(BlockDesc& block, size_t end, const Names& no_grad, const Names& influenced, Findings* findings,
                     const BlockPass* outer, size_t outer_index)
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

void BlockPass::PropagateInfluence(const Names& own) {
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
      return;
    }
  }
  if (is_step_) {
    findings_->influenced[block_.index()] = influenced_;
  }
}

void BlockPass::Plan() {
  for (size_t i = end_; i-- > 0;) {
    if (depends_[i]) {
      PlanOperator(i);
    }
  }
}

void BlockPass::PlanOperator(size_t index) {
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
             "' is on the way from the parameters to the loss, but has no gradient (let no gradient pass there: give "
             "what it reads stop_gradient): ",
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
  const size_t begin = steps_.size();
  for (OpDesc& gradient : gradients) {
    PlanGradient(index, std::move(gradient));
  }
  DropUnreadSteps(begin);
}

// Of the steps from `begin` on, those that make nothing but what gradient makers made up, for none of those behind.
void BlockPass::DropUnreadSteps(size_t begin) {
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
void BlockPass::Contribute(const std::string& name, size_t index) {
  const size_t version = values_.Version(name, index, false);
  const std::string key = values_.Key(name, version);
  size_t& count = contributions_[key];
  count = IsArray(block_, name) ? 1 : count + 1;
  if (version == values_.LastVersion(name) || values_.Writer(name, version + 1) != index) {
    used_.insert(key);
  }
}

void BlockPass::PlanGradient(size_t index, OpDesc gradient) {
  const OpDesc& op = *block_.ops()[index];
  const std::vector<std::string> op_outputs = op.OutputNames();
  std::map<std::string, std::string> output_gradients;  // v@GRAD → v, for the outputs of `op`
  for (const std::string& name : op_outputs) {
    output_gradients.emplace(GradVarName(name), name);
  }
  std::map<std::string, std::string> input_gradients;
  for (const std::string& name : op.InputNames()) {
    input_gradients.emplace(GradVarName(name), name);
  }
  for (const auto& [name, variable] : output_gradients) {
    if (IsArray(block_, variable)) {
      input_gradients.emplace(name, variable);
    }
  }
  for (const auto& [name, variable] : input_gradients) {
    if (IsArray(block_, variable)) {
      output_gradients.emplace(name, variable);
    }
  }
  Step step;
  bool takes_gradients = false;
  bool has_gradients = false;
  for (auto& [slot, names] : gradient.inputs) {
    for (std::string& name : names) {
      const auto it = output_gradients.find(name);
      const auto made_up = made_up_.find(name);
      if (name == kEmptyVarName) {
        continue;
      }
      if (it == output_gradients.end() && made_up == made_up_.end()) {
        name = values_.SavedValue(name, index, Contains(op_outputs, name) && !Contains(op.Input(slot), name));
        continue;
      }
      bool exists = true;
      if (it == output_gradients.end()) {
        exists = made_up->second != MadeUp::kMissing;
        step.renamed_inputs.emplace(name, "");
      } else {
        const std::string key = values_.KeyAfter(it->second, index);
        exists = contributions_.contains(key) || (IsArray(block_, it->second) && influenced_.contains(it->second));
        step.renamed_inputs.emplace(name, key);
      }
      if (it != output_gradients.end() || made_up->second != MadeUp::kOfValues) {
        takes_gradients = true;
        has_gradients = has_gradients || exists;
      }
      if (!exists) {
        name = kEmptyVarName;
      }
    }
  }
  // Gradients are linear in those that they are computed from.
  const bool is_zero = takes_gradients && !has_gradients;
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
        made_up_[name] = is_zero ? MadeUp::kMissing : takes_gradients ? MadeUp::kOfGradients : MadeUp::kOfValues;
        step.renamed_outputs.emplace(name, "");
      } else if (influenced_.contains(it->second)) {
        contributes.push_back(it->second);
        step.renamed_outputs.emplace(name, values_.KeyBefore(it->second, index));
      } else {
        name = kEmptyVarName;
      }
    }
  }
  const bool useful = std::any_of(gradient.outputs.begin(), gradient.outputs.end(), [](const auto& slot) {
    return std::any_of(slot.second.begin(), slot.second.end(), [](const auto& name) { return name != kEmptyVarName; });
  });
  if (!useful || is_zero) {
    return;
  }
  for (const std::string& name : contributes) {
    Contribute(name, index);
  }
  step.op = std::move(gradient);
  steps_.push_back(std::move(step));
}

std::shared_ptr<BlockPass> BlockPass::PlannedStep(BlockDesc& block, size_t index, const Names& own,
                                                  const Names& given) const {
  auto step = std::make_shared<BlockPass>(block, block.ops().size(), no_grad_, influenced_, findings_, this, index);
  step->PropagateInfluence(own);
  for (const std::string& name : given) {
    step->Expect(name);
  }
  step->Plan();
  return step;
}

void BlockPass::PlanBlock(size_t index, const BlockDesc& inner) {
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
class BlockPass::Steps : public DifferentiatedSteps {
 public:
  Steps(BlockPass& pass, BlockDesc& block, size_t index) : pass_(pass), block_(block), index_(index) {}

  bool IsInfluenced(const std::string& name) const override { return pass_.influenced_.contains(name); }
  bool HasGradient(const std::string& name) const override {
    return pass_.contributions_.contains(pass_.values_.KeyAfter(name, index_));
  }
  void Plan(const Names& own, const Names& given) override { inner_ = pass_.PlannedStep(block_, index_, own, given); }
  bool IsInfluencedWithin(const std::string& name) const override { return Planned().IsInfluenced(name); }
  bool Makes(const std::string& name) const override { return Planned().Makes(name); }
  Names MadeOutside() const override { return Planned().MadeOutside(); }

  std::shared_ptr<BlockPass> Take() {
    Planned();
    return std::move(inner_);
  }

 private:
  const BlockPass& Planned() const {
    HR_ENFORCE(inner_ != nullptr, FailedPrecondition, "the gradient of a step has not been planned yet");
    return *inner_;
  }

  BlockPass& pass_;
  BlockDesc& block_;
  const size_t index_;
  std::shared_ptr<BlockPass> inner_;
};

void BlockPass::PlanSteps(size_t index, const StepsGradientMaker& maker) {
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

Names BlockPass::MadeOutside() const {
  Names names;
  for (const auto& [key, count] : contributions_) {
    const std::string name = ValueVersions::NameOf(key);
    if (!block_.HasLocalVar(name) && key == values_.Key(name, 0)) {
      names.insert(name);
    }
  }
  return names;
}

bool BlockPass::Reaches(const std::string& name) const {
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
bool BlockPass::GradientNameIsTaken(const std::string& suffix) const {
  return std::any_of(contributions_.begin(), contributions_.end(), [&](const auto& entry) {
    return block_.HasLocalVar(GradVarName(entry.first) + suffix) ||
           block_.HasLocalVar(GradVarName(entry.first) + "@RENAME@0" + suffix);
  });
}

void BlockPass::FinishForward() {
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

void BlockPass::Declare(const std::string& name, const std::string& like) {
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

std::string BlockPass::NextOutput(const std::string& key) {
  const std::string gradient = GradVarName(key);
  return contributions_.at(key) > 1 ? Partial(gradient, emitted_[key]++) : Unique(gradient);
}

void BlockPass::EmitSum(const std::string& key) {
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

std::string BlockPass::DeclareGiven(const std::string& name) {
  const std::string variable = NextOutput(name);
  Declare(variable, name);
  return variable;
}

std::string BlockPass::Total(const std::string& key) {
  if (contributions_.at(key) > 1 && !summed_.contains(key)) {
    EmitSum(key);
  }
  return Gradient(key);
}

void BlockPass::EmitTo(BlockDesc* to, const std::string& suffix) {
  to_ = to;
  suffix_ = suffix;
}

void BlockPass::Give(const std::string& name, const std::string& gradient) {
  if (contributions_.at(name) == 1) {
    given_.emplace(name, gradient);
    return;
  }
  OpDesc assign;
  assign.type = "assign";
  assign.inputs["X"] = {gradient};
  assign.outputs["Out"] = {DeclareGiven(name)};
  AppendBackwardOp(to_, std::move(assign));
}

void BlockPass::Emit() {
  for (const Step& step : steps_) {
    EmitStep(step);
  }
}

void BlockPass::EmitStep(const Step& step) {
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
BlockDesc& BlockPass::StartEmitting(BlockDesc* to, const std::string& suffix) {
  FinishForward();
  EmitTo(&to->program().AppendBlock(block_.index()), suffix);
  return *to_;
}

void BlockPass::EmitSteps(const Step& step, OpDesc op) {
  BlockPass& inner = *step.inner;
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
std::vector<std::string> Reached(const BlockPass& pass, const std::vector<std::string>& parameters) {
  std::vector<std::string> reached;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(reached),
               [&pass](const auto& name) { return pass.Reaches(name); });
  return reached;
}

// Begins to emit, with a suffix that makes the gradients' names unique.
void BeginEmitting(BlockPass* pass, BlockDesc* root) {
  std::string suffix;
  for (int i = 1; pass->GradientNameIsTaken(suffix); ++i) {
    suffix = "@" + std::to_string(i);
  }
  pass->FinishForward();
  pass->EmitTo(root, suffix);
}

// Emits the gradients of the parameters, and returns them with their gradients.
std::vector<std::pair<std::string, std::string>> Emit(BlockPass* pass, BlockDesc* root,
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
  BlockPass pass(root, end, no_grad, Names(parameters.begin(), parameters.end()), &findings, nullptr, 0);
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
  BlockPass pass(root, root.ops().size(), no_grad, Names(variables.begin(), variables.end()), &findings, nullptr, 0);
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
    if (!target.weights.empty()) {
      pass.Give(target.name, target.weights);
      continue;
    }
    OpDesc fill;
    fill.type = "fill_any_like";
    fill.inputs["X"] = {target.name};
    fill.outputs["Out"] = {pass.DeclareGiven(target.name)};
    fill.attrs["value"] = 1.0;
    AppendBackwardOp(&root, std::move(fill));
  }
  auto result = Emit(&pass, &root, reached);
  program->Swap(&changed);
  return result;
}

}  // namespace headrace
