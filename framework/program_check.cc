#include "framework/program_check.h"

#include "framework/operator.h"

namespace headrace {
namespace {

void CheckSlots(const BlockDesc& block, const OpDesc& op, const VarNameMap& slots, std::string_view direction) {
  for (const auto& [slot, names] : slots) {
    for (const std::string& name : names) {
      if (name != kEmptyVarName && block.FindVar(name) == nullptr) {
        NotFound error(StrCat("block ", block.index(), " and its ancestors declare no variable '", name,
                              "', which is in ", direction, " slot '", slot, "' of '", op.type, "'"));
        error.SetOpType(op.type);
        error.SetVariable(name);
        throw error;
      }
    }
  }
}

}  // namespace

void CheckVariablesExist(const BlockDesc& block, const OpDesc& op) {
  CheckSlots(block, op, op.inputs, "input");
  CheckSlots(block, op, op.outputs, "output");
}

void CheckBlockRefs(const BlockDesc& block, const OpDesc& op) {
  for (const auto& [name, attr] : op.attrs) {
    const auto* ref = std::get_if<BlockRef>(&attr);
    HR_ENFORCE(ref == nullptr || (ref->index >= 0 && static_cast<size_t>(ref->index) < block.program().num_blocks()),
               OutOfRange, "attribute '", name, "' of '", op.type, "' names block ", ref->index,
               ", but the program has ", block.program().num_blocks(), " blocks");
  }
}

}  // namespace headrace
