#include "framework/compile_time_infer_shape.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace {
namespace {

// Throws TypeMismatch unless `var` is a tensor, or something else that its slot takes. Arrays of tensors are tensors to
// operators that are more than a kernel: these know which of their inputs and outputs are arrays.
void CheckKind(const VarDesc& var, const OpDesc& op, const OpInfo& info, std::string_view direction,
               std::string_view slot) {
  const SlotInfo* declared = direction == "input" ? info.FindInput(slot) : info.FindOutput(slot);
  const bool fits = var.kind == VarKind::kLoDTensor || (var.kind == VarKind::kLoDTensorArray && info.factory) ||
                    (var.kind == VarKind::kSelectedRows && declared != nullptr && declared->selected_rows);
  if (!fits) {
    TypeMismatch error(StrCat("variable '", var.name, "' in ", direction, " slot '", slot, "' of '", op.type, "' is a ",
                              VarKindName(var.kind), ", expected a LoDTensor",
                              direction == "input" && var.kind == VarKind::kSelectedRows
                                  ? "; get_tensor_from_selected_rows makes one of it"
                                  : ""));
    error.SetVariable(var.name);
    throw error;
  }
}

// Kernels work on tensors, whether shape inference looks at all of them or not.
void CheckKinds(const BlockDesc& block, const OpDesc& op, const OpInfo& info) {
  if (info.factory) {
    return;
  }
  for (const auto& [direction, slots] : {std::pair("input", &op.inputs), std::pair("output", &op.outputs)}) {
    for (const auto& [slot, names] : *slots) {
      for (const std::string& name : names) {
        if (const VarDesc* var = name == kEmptyVarName ? nullptr : block.FindVar(name)) {
          CheckKind(*var, op, info, direction, slot);
        }
      }
    }
  }
}

class CompileTimeContext : public InferShapeContext {
 public:
  CompileTimeContext(BlockDesc* block, const OpDesc& op, const OpInfo& info)
      : block_(*block), op_(op), attrs_(op), info_(info) {}

  // Writes what the shape function has set to the program. Throws, having written nothing, if an input would change its
  // type.
  void Commit() {
    const std::vector<std::string> inputs = op_.InputNames();
    for (const auto& [var, copy] : outputs_) {
      HR_ENFORCE(
          var->tensor.dtype == copy.tensor.dtype || std::find(inputs.begin(), inputs.end(), var->name) == inputs.end(),
          InvalidArgument, "'", var->name, "' of type ", DataTypeName(var->tensor.dtype), " is an input of '", op_.type,
          "' and cannot take its result of type ", DataTypeName(copy.tensor.dtype),
          "; give the result a variable of its own");
    }
    for (auto& [var, copy] : outputs_) {
      if (!has_lod_.contains(&copy)) {
        copy.tensor.lod_level = 0;
      }
      block_.MutableVar(var->name) = std::move(copy);
    }
  }

  const OpDesc& op() const override { return op_; }
  const AttributeIndex& attrs() const override { return attrs_; }
  bool IsRuntime() const override { return false; }
  bool HasInput(HashedName slot, size_t i) const override { return Find(Inputs(slot), i) != nullptr; }
  bool HasOutput(HashedName slot, size_t i) const override { return Find(Outputs(slot), i) != nullptr; }

  size_t InputSize(HashedName slot) const override { return Inputs(slot).size(); }
  size_t OutputSize(HashedName slot) const override { return Outputs(slot).size(); }
  DDim InputDim(HashedName slot, size_t i) const override { return InputTensor(slot, i).dims; }
  DataType InputType(HashedName slot, size_t i) const override { return InputTensor(slot, i).dtype; }
  int32_t InputLoDLevel(HashedName slot, size_t i) const override { return InputTensor(slot, i).lod_level; }

  void SetOutputDim(HashedName slot, const DDim& dims, size_t i) override {
    CheckDims(dims);
    if (VarDesc* var = CopyOf(slot, i)) {
      var->tensor.dims = dims;
    }
  }

  void SetOutputType(HashedName slot, DataType type, size_t i) override {
    if (VarDesc* var = CopyOf(slot, i)) {
      var->tensor.dtype = type;
    }
  }

  void ShareLoD(HashedName input, HashedName output, size_t i, size_t j) override {
    SetOutputLoDLevel(output, InputTensor(input, i).lod_level, j);
  }

  void SetOutputLoDLevel(HashedName slot, int32_t level, size_t i) override {
    if (VarDesc* var = OutputDesc(slot, i)) {
      var->tensor.lod_level = level;
    }
  }

  bool InputIsSelectedRows(HashedName slot, size_t i) const override {
    return InputVar(slot, i).kind == VarKind::kSelectedRows;
  }
  bool OutputIsSelectedRows(HashedName slot, size_t i) const override {
    const VarDesc* var = Find(Outputs(slot), i);
    return var != nullptr && var->kind == VarKind::kSelectedRows;
  }
  void SetOutputSelectedRows(HashedName slot, size_t i) override {
    if (VarDesc* var = CopyOf(slot, i)) {
      var->kind = VarKind::kSelectedRows;
    }
  }

  const VarDesc* InputDesc(HashedName slot, size_t i) const override { return Find(Inputs(slot), i); }

  // Whoever asks for the whole declaration decides about the LoD depth, too.
  VarDesc* OutputDesc(HashedName slot, size_t i) override {
    VarDesc* var = CopyOf(slot, i);
    if (var != nullptr) {
      has_lod_.insert(var);
    }
    return var;
  }

 private:
  const std::vector<std::string>& Inputs(HashedName slot) const { return op_.Input(slot.ToString()); }
  const std::vector<std::string>& Outputs(HashedName slot) const { return op_.Output(slot.ToString()); }

  // The output as it will be; nullptr if the slot is empty.
  VarDesc* CopyOf(HashedName slot, size_t i) {
    const VarDesc* var = Find(Outputs(slot), i);
    if (var == nullptr) {
      return nullptr;
    }
    const auto [found, is_new] = outputs_.try_emplace(var, *var);
    const SlotInfo* declared = is_new ? info_.FindOutput(slot.ToString()) : nullptr;
    if (declared != nullptr && declared->selected_rows && var->kind == VarKind::kSelectedRows) {
      found->second.kind = VarKind::kLoDTensor;
    }
    return &found->second;
  }

  const VarDesc* Find(const std::vector<std::string>& names, size_t i) const {
    return i < names.size() && names[i] != kEmptyVarName ? block_.FindVar(names[i]) : nullptr;
  }

  const VarDesc& InputVar(HashedName slot, size_t i) const {
    const VarDesc* var = Find(Inputs(slot), i);
    HR_ENFORCE(var != nullptr, NotFound, "input slot '", slot, "' of '", op_.type, "' holds no variable at position ",
               i);
    CheckKind(*var, op_, info_, "input", slot.ToString());
    CheckDims(var->tensor.dims);
    return *var;
  }

  const TensorSpec& InputTensor(HashedName slot, size_t i) const { return InputVar(slot, i).tensor; }

  BlockDesc& block_;
  const OpDesc& op_;
  const AttributeIndex attrs_;
  const OpInfo& info_;
  std::map<const VarDesc*, VarDesc> outputs_;  // as they will be
  std::set<const VarDesc*> has_lod_;           // those of them whose LoD depth is inferred; the others have none
};

// Whether there is a kernel for what the variable may be fed as.
bool MayBeFedForKernel(const VarDesc& var, const OpInfo& info) {
  if (!var.MayBeFedOtherwise()) {
    return false;
  }
  const std::vector<DataType> types = OpRegistry::KernelTypes(info);
  return std::any_of(types.begin(), types.end(), [&var](DataType t) { return MayBeGivenAs(var.tensor.dtype, t); });
}

// Whether there is a kernel for the dtype that is declared for the input, or given by the attribute, that will select
// it. What is no tensor selects none.
void CheckKernel(const BlockDesc& block, const OpDesc& op, const OpInfo& info) {
  if (info.factory || info.kernels.empty()) {
    return;
  }
  if (!info.kernel_type_attr.empty()) {
    OpRegistry::GetKernel(info, static_cast<DataType>(op.Attr<int32_t>(info.kernel_type_attr)));
    return;
  }
  const auto check = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const VarDesc* var = name == kEmptyVarName ? nullptr : block.FindVar(name);
      if (var != nullptr && (var->kind == VarKind::kLoDTensor || var->kind == VarKind::kSelectedRows)) {
        try {
          if (!MayBeFedForKernel(*var, info)) {
            OpRegistry::GetKernel(info, var->tensor.dtype);
          }
        } catch (Error& error) {
          error.SetVariable(name);
          throw;
        }
        return true;
      }
    }
    return false;
  };
  if (!info.kernel_type_slot.empty() && check(op.Input(info.kernel_type_slot))) {
    return;
  }
  for (const SlotInfo& slot : info.inputs) {
    if (check(op.Input(slot.name))) {
      return;
    }
  }
}

}  // namespace

void InferShapeAtCompileTime(BlockDesc* block, const OpDesc& op) {
  const OpInfo& info = OpRegistry::Get(op.type);
  try {
    CheckKinds(*block, op, info);
    std::optional<CompileTimeContext> context;
    if (info.infer_shape) {
      context.emplace(block, op, info);
      info.infer_shape(*context);
    }
    CheckKernel(*block, op, info);
    if (context) {
      context->Commit();
    }
  } catch (...) {
    op.RethrowWithContext();
  }
}

}  // namespace headrace
