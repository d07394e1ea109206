#include "framework/program_check.h"

#include <variant>

#include "framework/compile_time_infer_shape.h"
#include "framework/operator.h"

namespace headrace {
namespace {

void CheckSlotKinds(const BlockDesc& block, const OpDesc& op, const VarNameMap& slots, std::string_view direction) {
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

void InferTypes(BlockDesc* block) {
  for (const auto& op : block->ops()) {
    for (const BlockRef ref : op->Blocks()) {
      // A block that comes before its operator is refused when the operator is prepared.
      if (ref.index > block->index()) {
        InferTypes(&block->program().block(static_cast<size_t>(ref.index)));
      }
    }
    try {
      InferShapeAtCompileTime(block, *op);
    } catch (const TypeMismatch&) {
      throw;
    } catch (const Unimplemented&) {  // a kernel that is missing
      throw;
    } catch (const Error&) {
      // Shapes are declared as they are in the end; a variable may have had another when the operator was added. The
      // kernel will check them.
    }
  }
}

}  // namespace

void CheckTypes(const ProgramDesc& program, size_t block) {
  ProgramDesc copy(program);
  InferTypes(&copy.block(block));
}

void CheckVariablesExist(const BlockDesc& block, const OpDesc& op) {
  CheckSlotKinds(block, op, op.inputs, "input");
  CheckSlotKinds(block, op, op.outputs, "output");
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
