#include "framework/block_runner.h"

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
  int depth = 0;
  for (int32_t around = block.parent(); around >= 0; around = program.block(static_cast<size_t>(around)).parent()) {
    HR_ENFORCE(++depth <= kMaxBlockDepth, InvalidArgument, "block ", inner.index, " lies within more than ",
               kMaxBlockDepth, " others");
  }
  return block;
}

// A step must not see what the step before has left in the block's own tensors.
void CheckWrittenFirst(const BlockDesc& block) {
  std::set<std::string> written;
  for (const auto& op : block.ops()) {
    for (const std::string& name : op->InputNames()) {
      const VarDesc* desc = block.HasLocalVar(name) ? block.FindVar(name) : nullptr;
      HR_ENFORCE(desc == nullptr || desc->kind != VarKind::kLoDTensor || OutlivesRuns(*desc) || written.contains(name),
                 InvalidArgument, "'", op->type, "' reads '", name, "' of block ", block.index(),
                 " before an operator of the block has written it; what lasts longer than a step belongs into the "
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
  } else if (desc.kind == VarKind::kLoDTensorArray) {
    variable->GetMutable<LoDTensorArray>();
  }
}

bool OutlivesRuns(const VarDesc& var) {
  return var.persistable || var.kind == VarKind::kReader || var.kind == VarKind::kRaw;
}

void EmptyArrays(const BlockDesc& block, const Scope& scope) {
  for (const VarDesc* desc : block.LocalVars()) {
    if (desc->kind == VarKind::kLoDTensorArray && !OutlivesRuns(*desc)) {
      scope.GetVar(desc->name).GetMutable<LoDTensorArray>()->clear();
    }
  }
}

BlockRunner::BlockRunner(const BlockDesc& outer, BlockRef inner) : block_(CheckedBlock(outer, inner)) {
  CheckWrittenFirst(block_);
  for (const auto& op : block_.ops()) {
    ops_.push_back(OpRegistry::Create(*op));
    ops_.back()->Prepare(block_);
  }
}

void BlockRunner::Declare(Scope* scope) const {
  for (const VarDesc* desc : block_.LocalVars()) {
    if (!OutlivesRuns(*desc)) {
      InitializeVariable(*desc, scope->Var(desc->name));
    }
  }
}

void BlockRunner::Run(const Scope& scope, const Place& place) {
  EmptyArrays(block_, scope);
  for (const auto& op : ops_) {
    op->Run(scope, place);
  }
}

}  // namespace headrace
