#include "framework/block_runner.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>

#include "framework/errors.h"
#include "framework/lod_tensor.h"
#include "framework/op_registry.h"

namespace headrace {
namespace {

const BlockDesc& CheckedBlock(const BlockDesc& outer, BlockRef inner) {
  const ProgramDesc& program = outer.program();
  const BlockDesc& block = program.block(static_cast<size_t>(inner.index));
  HR_ENFORCE(block.parent() == outer.index(), InvalidArgument, "block ", inner.index, " lies within block ",
             block.parent(), "; an operator of block ", outer.index(), " cannot run it");
  return block;
}

const BlockDesc& CheckedGradientBlock(const BlockDesc& outer, BlockRef inner) {
  const BlockDesc& block = outer.program().block(static_cast<size_t>(inner.index));
  HR_ENFORCE(block.index() > outer.index(), InvalidArgument, "block ", inner.index,
             " cannot be run as the gradient of a block by an operator of block ", outer.index(),
             ", which comes later in the program");
  return block;
}

// A variable that outlives runs is created by the executor, in the scope that it is given.
void CheckNoneOutlivesRuns(const BlockDesc& block) {
  for (const VarDesc* var : block.LocalVars()) {
    HR_ENFORCE(!OutlivesRuns(*var), InvalidArgument, "variable '", var->name, "' of block ", block.index(),
               " is persistable, a reader or raw; one that lasts longer than a run belongs in block 0");
  }
}

// A step must not see what the step before has left in the block's own tensors.
void CheckWrittenFirst(const BlockDesc& block, const std::vector<std::string>& given) {
  std::set<std::string> written(given.begin(), given.end());
  for (const auto& op : block.ops()) {
    for (const std::string& name : op->InputNames()) {
      const VarDesc* desc = block.HasLocalVar(name) ? block.FindVar(name) : nullptr;
      HR_ENFORCE(desc == nullptr || desc->kind != VarKind::kLoDTensor || written.contains(name), InvalidArgument, "'",
                 op->type, "' reads '", name, "' of block ", block.index(),
                 " before an operator of the block has written it; what lasts longer than a step belongs in the "
                 "block around it");
    }
    for (const std::string& name : op->OutputNames()) {
      written.insert(name);
    }
  }
}

}  // namespace

void InitializeVariable(const VarDesc& desc, Variable* variable) {
  if (variable->initialized()) {
    return;
  }
  if (desc.kind == VarKind::kLoDTensor) {
    variable->GetMutable<LoDTensor>();
  } else if (desc.kind == VarKind::kSelectedRows) {
    variable->GetMutable<SelectedRows>();
  } else if (desc.kind == VarKind::kLoDTensorArray) {
    variable->GetMutable<LoDTensorArray>();
  }
}

bool OutlivesRuns(const VarDesc& var) {
  return var.persistable || var.kind == VarKind::kReader || var.kind == VarKind::kRaw;
}

std::unique_ptr<OperatorBase> PreparedOperator(const BlockDesc& block, const OpDesc& op) {
  try {
    auto prepared = OpRegistry::Create(op);
    prepared->Prepare(block);
    return prepared;
  } catch (const Error&) {
    op.RethrowWithContext();
  }
}

void AddInnerNames(const BlockDesc& block, const OpDesc& op, std::vector<std::string>* inputs,
                   std::vector<std::string>* outputs) {
  for (const BlockRef ref : op.Blocks()) {
    const BlockDesc& inner = block.program().block(static_cast<size_t>(ref.index));
    if (inner.parent() != block.index()) {
      continue;  // so that this ends
    }
    std::vector<std::string> reads;
    std::vector<std::string> writes;
    for (const auto& inner_op : inner.ops()) {
      const std::vector<std::string> op_reads = inner_op->InputNames();
      const std::vector<std::string> op_writes = inner_op->OutputNames();
      reads.insert(reads.end(), op_reads.begin(), op_reads.end());
      writes.insert(writes.end(), op_writes.begin(), op_writes.end());
      AddInnerNames(inner, *inner_op, &reads, &writes);
    }
    const auto is_outer = [&inner](const std::string& name) { return !inner.HasLocalVar(name); };
    std::copy_if(reads.begin(), reads.end(), std::back_inserter(*inputs), is_outer);
    std::copy_if(writes.begin(), writes.end(), std::back_inserter(*outputs), is_outer);
  }
}

std::vector<std::string> LeftFromRuns(const BlockDesc& block) {
  std::set<std::string> written;  // by operators without blocks, which do run
  std::set<std::string> left;
  for (const auto& op : block.ops()) {
    std::vector<std::string> reads;
    std::vector<std::string> writes = op->OutputNames();
    AddInnerNames(block, *op, &reads, &writes);
    const bool runs_always = op->Blocks().empty();
    for (const std::string& name : writes) {
      if (runs_always) {
        written.insert(name);
      } else if (!written.contains(name)) {
        left.insert(name);
      }
    }
  }
  std::vector<std::string> names;
  for (const VarDesc* desc : block.LocalVars()) {
    const bool is_array = desc->kind == VarKind::kLoDTensorArray;
    const bool is_tensor = desc->kind == VarKind::kLoDTensor || desc->kind == VarKind::kSelectedRows;
    if (!OutlivesRuns(*desc) && (is_array || (is_tensor && left.contains(desc->name)))) {
      names.push_back(desc->name);
    }
  }
  return names;
}

void Clear(Variable* variable) {
  if (variable->IsType<LoDTensorArray>()) {
    variable->GetMutable<LoDTensorArray>()->clear();
  } else if (variable->IsType<SelectedRows>()) {
    *variable->GetMutable<SelectedRows>() = SelectedRows();
  } else if (variable->IsType<LoDTensor>()) {
    *variable->GetMutable<LoDTensor>() = LoDTensor();
  }
}

BlockRunner::BlockRunner(const BlockDesc& outer, BlockRef inner, const std::vector<std::string>& given,
                         bool is_gradient)
    : block_(is_gradient ? CheckedGradientBlock(outer, inner) : CheckedBlock(outer, inner)), given_(given) {
  CheckWrittenFirst(block_, given_);
  CreateOps();
}

void BlockRunner::CreateOps() {
  CheckNoneOutlivesRuns(block_);
  left_ = LeftFromRuns(block_);
  std::erase_if(left_,
                [this](const auto& name) { return std::find(given_.begin(), given_.end(), name) != given_.end(); });
  for (const auto& op : block_.ops()) {
    ops_.push_back(PreparedOperator(block_, *op));
  }
}

void BlockRunner::Declare(Scope* scope) const {
  for (const VarDesc* desc : block_.LocalVars()) {
    InitializeVariable(*desc, scope->Var(desc->name));
  }
}

void BlockRunner::Run(const Scope& scope, const Place& place) {
  for (Variable* variable : LeftIn(scope)) {
    Clear(variable);
  }
  for (const auto& op : ops_) {
    op->Run(scope, place);
  }
}

const std::vector<Variable*>& BlockRunner::LeftIn(const Scope& scope) {
  if (left_.empty()) {
    static const std::vector<Variable*> kNone;
    return kNone;
  }
  return left_in_.At(scope, [&] { return scope.GetVars(left_); });
}

void BlockRunner::Unbind() {
  left_in_.Clear();
  for (const auto& op : ops_) {
    op->Unbind();
  }
}

}  // namespace headrace
