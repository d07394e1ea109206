#include "operators/control_flow/rank_table_op.h"

#include <utility>

namespace headrace::ops {

const LoDOffsets& PartsOf(const LoDRankTable& table, const LoDTensor& x) {
  const size_t level = table.level();
  const size_t sequences = NumUnits(x, level);
  HR_ENFORCE(level < x.lod().size() && sequences == table.items().size(), InvalidArgument,
             "input X: expected a LoD with ", table.items().size(), " sequences in level ", level,
             ", as the rank table has, got ", ToString(x.lod()));
  for (const auto& item : table.items()) {
    const size_t length = x.lod()[level][item.index + 1] - x.lod()[level][item.index];
    HR_ENFORCE(length == item.length, InvalidArgument, "input X: expected sequence ", item.index, " of length ",
               item.length, ", as in the rank table, got ", length);
  }
  return x.lod()[level];
}

void EnforceKind(const VarDesc* desc, VarKind kind, HashedName slot) {
  HR_ENFORCE(desc == nullptr || desc->kind == kind, TypeMismatch, slot, ": expected a ", VarKindName(kind), ", '",
             desc->name, "' is a ", VarKindName(desc->kind));
}

void EnforceTable(const InferShapeContext& ctx) {
  EnforceKind(ctx.InputDesc("RankTable"), VarKind::kLoDRankTable, "input RankTable");
}

DDim StepDims(const InferShapeContext& ctx, HashedName slot) {
  DDim dims = ctx.InputDim(slot);
  HR_ENFORCE(!dims.empty(), InvalidArgument, "input ", slot, ": expected a tensor with rows, got a scalar");
  dims[0] = -1;
  return dims;
}

OpRegistrar&& TableSlot(OpRegistrar&& op) {
  return std::move(op).Input("RankTable", "the table of the sequences that the steps are of");
}

GradientMaker RankGradient(std::vector<std::string> inputs, std::string array_slot) {
  return [inputs = std::move(inputs), array_slot = std::move(array_slot)](const OpDesc& op) {
    OpDesc grad;
    grad.type = op.type + "_grad";
    for (const std::string& slot : inputs) {
      grad.inputs[slot] = slot == "Out" ? op.Output(slot) : op.Input(slot);
    }
    grad.inputs["Out@GRAD"] = {GradVarName(op.Output("Out")[0])};
    grad.outputs["X@GRAD"] = {GradVarName(op.Input("X")[0])};
    if (array_slot == "Out") {
      grad.outputs["Out@GRAD"] = grad.inputs["Out@GRAD"];
    } else if (array_slot == "X") {
      grad.inputs["X@GRAD"] = grad.outputs["X@GRAD"];
    }
    return std::vector<OpDesc>{std::move(grad)};
  };
}

}  // namespace headrace::ops
