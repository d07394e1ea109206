#include "framework/program_check.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "framework/compile_time_infer_shape.h"
#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace {
namespace {

void CheckVariablesInSlots(const BlockDesc& block, const OpDesc& op, const VarNameMap& slots,
                           std::string_view direction) {
  for (const auto& [slot, names] : slots) {
    for (const std::string& name : names) {
      if (name == kEmptyVarName) {
        continue;
      }
      const VarDesc* var = block.FindVar(name);
      if (var == nullptr) {
        NotFound error(StrCat("block ", block.index(), " and its ancestors declare no variable '", name,
                              "', which is in ", direction, " slot '", slot, "' of '", op.type, "'"));
        error.SetOpType(op.type);
        error.SetVariable(name);
        throw error;
      }
      HR_ENFORCE(var->name == name, InvalidArgument, "the declaration of '", name, "', which is in ", direction,
                 " slot '", slot, "' of '", op.type, "', has the name '", var->name,
                 "'; one that is assigned has to keep its own");
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

// A block belongs to one operator: were it run by several, preparing n blocks could take 2^n operators.
void CheckProgram(ProgramDesc* program, size_t block) {
  std::vector<int> depth(program->num_blocks(), 0);  // by the blocks around a block, or by those that run one another
  std::vector<bool> has_operator(program->num_blocks(), false);
  std::vector<bool> within(program->num_blocks(), false);
  for (size_t b = block; b < program->num_blocks(); ++b) {
    BlockDesc& checked = program->block(b);
    const bool is_within = checked.parent() >= 0 && within[static_cast<size_t>(checked.parent())];
    within[b] = is_within || b == block;
    depth[b] = is_within ? std::max(depth[b], depth[static_cast<size_t>(checked.parent())] + 1) : 0;
    HR_ENFORCE(depth[b] <= kMaxBlockDepth, InvalidArgument, "block ", b, " lies more than ", kMaxBlockDepth,
               " blocks deep");
    for (size_t i = 0; within[b] && i < checked.ops().size(); ++i) {
      OpDesc& op = checked.MutableOp(i);
      OpRegistry::Check(op);
      CheckVariablesExist(checked, op);
      CheckBlockRefs(checked, op);
      for (const BlockRef ref : op.Blocks()) {
        const auto inner = static_cast<size_t>(ref.index);
        HR_ENFORCE(!has_operator[inner], InvalidArgument, "block ", inner, " belongs to two operators, the second a '",
                   op.type, "' in block ", b, "; each needs a block of its own");
        has_operator[inner] = true;
        depth[inner] = std::max(depth[inner], depth[b] + 1);
      }
    }
  }
  for (size_t b = 0; b < program->num_blocks(); ++b) {
    HR_ENFORCE(!has_operator[b] || within[b], InvalidArgument, "block ", b, " does not lie within block ", block,
               ", so that no operator of it can run it");
  }
}

void CheckTypes(const ProgramDesc& program, size_t block) {
  ProgramDesc copy(program);
  InferTypes(&copy.block(block));
}

void CheckVariablesExist(const BlockDesc& block, const OpDesc& op) {
  CheckVariablesInSlots(block, op, op.inputs, "input");
  CheckVariablesInSlots(block, op, op.outputs, "output");
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
