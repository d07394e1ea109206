#include "operators/control_flow/block_op.h"

#include <algorithm>
#include <functional>
#include <set>
#include <variant>

namespace headrace::ops {
namespace {

using NameSet = std::set<std::string, std::less<>>;

// Adds the names in lists of `op` and those that operators of its blocks read. `seen`: the blocks that have been added.
void AddNamesRead(const ProgramDesc& program, const OpDesc& op, NameSet* names, std::set<int32_t>* seen) {
  for (const auto& [attr_name, attr] : op.attrs) {
    if (const auto* list = std::get_if<std::vector<std::string>>(&attr)) {
      names->insert(list->begin(), list->end());
    } else if (const auto* ref = std::get_if<BlockRef>(&attr); ref != nullptr && seen->insert(ref->index).second) {
      for (const auto& inner : program.block(static_cast<size_t>(ref->index)).ops()) {
        const std::vector<std::string> reads = inner->InputNames();
        names->insert(reads.begin(), reads.end());
        AddNamesRead(program, *inner, names, seen);
      }
    }
  }
}

// The names by which the operators that find the steps in `scopes` read variables of theirs.
NameSet NamesReadByGradients(const ProgramDesc& program, const std::string& scopes) {
  NameSet names;
  std::set<int32_t> seen;
  for (size_t b = 0; b < program.num_blocks(); ++b) {
    for (const auto& op : program.block(b).ops()) {
      const std::vector<std::string> reads = op->InputNames();
      if (std::find(reads.begin(), reads.end(), scopes) != reads.end()) {
        AddNamesRead(program, *op, &names, &seen);
      }
    }
  }
  return names;
}

void LetGoOfMemory(const std::vector<Variable*>& variables) {
  for (Variable* variable : variables) {
    if (variable->IsType<LoDTensor>()) {
      variable->GetMutable<LoDTensor>()->SetMemory(nullptr);
    } else if (variable->IsType<SelectedRows>()) {
      variable->GetMutable<SelectedRows>()->mutable_value()->SetMemory(nullptr);
    } else if (variable->IsType<LoDTensorArray>()) {
      variable->GetMutable<LoDTensorArray>()->clear();
    }
  }
}

}  // namespace

void BlockOp::PrepareBlock(const BlockDesc& block, const std::vector<std::string>& given) {
  runner_.emplace(block, Attr<BlockRef>("sub_block"), given);
  for (const std::string& name : Outputs(scopes_.ToString())) {
    const VarDesc& var = block.GetVar(name);
    // Anywhere else it could outlive the scope that the steps' scopes lie in.
    HR_ENFORCE(block.HasLocalVar(name) && var.kind == VarKind::kStepScopes && !var.persistable, InvalidArgument, "'",
               name, "' must be a StepScopes of block ", block.index(), " that does not persist");
    const NameSet read = NamesReadByGradients(block.program(), name);
    for (const VarDesc* desc : runner_->block().LocalVars()) {
      if (!read.contains(desc->name)) {
        passing_.push_back(desc->name);
      }
    }
  }
}

void BlockOp::Unbind() {
  OperatorBase::Unbind();
  if (runner_.has_value()) {
    runner_->Unbind();
  }
  inner_.reset();
  outer_id_ = 0;
}

void BlockOp::Start(const ExecutionContext& variables, const Scope& scope, bool keep) {
  HR_ENFORCE(runner_.has_value(), FailedPrecondition, "the operator has not been prepared with its program");
  kept_ = keep && variables.HasOutput(scopes_) ? variables.OutputAs<StepScopes>(scopes_) : nullptr;
  if (kept_ != nullptr) {
    if (kept_->block != runner_->block().index()) {
      kept_->scopes.clear();
      kept_->passing.clear();
      kept_->block = runner_->block().index();
    }
    kept_->size = 0;
  } else if (outer_id_ != scope.id()) {
    inner_.emplace(&scope);
    outer_id_ = scope.id();
    runner_->Declare(&*inner_);
  }
}

Scope& BlockOp::NextStep(const Scope& scope) {
  if (kept_ == nullptr) {
    return *inner_;
  }
  if (kept_->size == kept_->scopes.size()) {
    kept_->scopes.emplace_back(&scope);
    runner_->Declare(&kept_->scopes.back());
    kept_->passing.push_back(kept_->scopes.back().GetVars(passing_));
  }
  return kept_->scopes[kept_->size++];
}

void BlockOp::EndStep() {
  if (kept_ != nullptr) {
    LetGoOfMemory(kept_->passing[kept_->size - 1]);
  }
}

const Scope& GradientStepScopes::Enter(const BlockRunner& runner, const Scope& forward, size_t t) {
  while (steps_.size() <= t) {
    steps_.emplace_back();
  }
  Step& step = steps_[t];
  if (step.outer_id != forward.id()) {
    step.scope.emplace(&forward);
    step.outer_id = forward.id();
    runner.Declare(&*step.scope);
    std::vector<std::string> names;
    for (const VarDesc* desc : runner.block().LocalVars()) {
      names.push_back(desc->name);
    }
    step.variables = step.scope->GetVars(names);
  }
  return *step.scope;
}

void GradientStepScopes::Leave(size_t t) { LetGoOfMemory(steps_[t].variables); }

}  // namespace headrace::ops
