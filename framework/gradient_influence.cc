#include "framework/gradient_influence.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "framework/block_runner.h"
#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace {
namespace {

// Whether `op` has `name` in inputs of which the dims, dtype and LoD alone are read, and in no others: nothing it makes
// depends on the elements.
bool ReadsNoElements(const OpDesc& op, const std::string& name) {
  const OpInfo& info = OpRegistry::Get(op.type);
  bool has_it = false;
  for (const auto& [slot, names] : op.inputs) {
    if (Contains(names, name)) {
      const SlotInfo* input = info.FindInput(slot);
      if (input == nullptr || !input->shape_only) {
        return false;
      }
      has_it = true;
    }
  }
  return has_it;
}

// Whether `op` is the gradient of an operator, and reads one of the results of that which are in `stopped`.
bool ReadsStoppedResult(const OpDesc& op, const Names& stopped) {
  constexpr std::string_view kGrad = "_grad";
  const std::string_view type = op.type;
  const OpInfo* forward =
      type.ends_with(kGrad) ? OpRegistry::Find(type.substr(0, type.size() - kGrad.size())) : nullptr;
  return forward != nullptr && std::any_of(op.inputs.begin(), op.inputs.end(), [&](const auto& input) {
           return forward->FindOutput(input.first) != nullptr &&
                  std::any_of(input.second.begin(), input.second.end(),
                              [&](const std::string& name) { return stopped.contains(name); });
         });
}

// Whether variable `name` keeps what a gradient operator reads of steps, through which it depends on parameters as much
// as through tensors.
bool IsStepScopes(const BlockDesc& block, const std::string& name) {
  const VarDesc* var = block.FindVar(name);
  return var != nullptr && var->kind == VarKind::kStepScopes;
}

}  // namespace

bool IsFloatingPoint(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16;
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsArray(const BlockDesc& block, const std::string& name) {
  const VarDesc* var = block.FindVar(name);
  return var != nullptr && var->kind == VarKind::kLoDTensorArray;
}

bool CarriesGradient(const BlockDesc& block, const Names& no_grad, const std::string& name) {
  if (name == kEmptyVarName || no_grad.contains(name)) {
    return false;
  }
  const VarDesc* var = block.FindVar(name);
  return var != nullptr && !var->stop_gradient &&
         (var->kind == VarKind::kLoDTensor || var->kind == VarKind::kLoDTensorArray) &&
         IsFloatingPoint(var->tensor.dtype);
}

const BlockDesc* InnerBlock(const BlockDesc& block, const OpDesc& op) {
  if (!OpRegistry::Get(op.type).block_gradient.has_value()) {
    return nullptr;
  }
  const BlockDesc& inner = block.program().block(static_cast<size_t>(op.Attr<BlockRef>("sub_block").index));
  return inner.parent() == block.index() ? &inner : nullptr;
}

Access::Access(const BlockDesc& block, const OpDesc& op) : reads(op.InputNames()), writes(op.OutputNames()) {
  AddInnerNames(block, op, &reads, &writes);
  const auto is_empty = [](const std::string& name) { return name == kEmptyVarName; };
  std::erase_if(reads, is_empty);
  std::erase_if(writes, is_empty);
  const bool may_not_run = OpRegistry::Get(op.type).block_gradient.has_value();
  std::copy_if(writes.begin(), writes.end(), std::back_inserter(reads),
               [&](const std::string& name) { return may_not_run || IsArray(block, name); });
}

bool PassInfluenceOn(const BlockDesc& block, const OpDesc& op, const Names& no_grad, Names* names, Findings* findings) {
  const Access access(block, op);
  if (std::none_of(access.reads.begin(), access.reads.end(),
                   [&](const auto& name) { return names->contains(name) && !ReadsNoElements(op, name); }) &&
      !ReadsStoppedResult(op, findings->stopped)) {
    return false;
  }
  const BlockDesc* inner = InnerBlock(block, op);
  if (inner == nullptr) {
    for (const std::string& name : access.writes) {
      if (CarriesGradient(block, no_grad, name) || IsStepScopes(block, name)) {
        names->insert(name);
      } else if (const VarDesc* var = block.FindVar(name); var != nullptr && IsFloatingPoint(var->tensor.dtype)) {
        findings->stopped.insert(name);
      }
    }
    return true;
  }
  Names& within = findings->influenced[inner->index()];
  std::copy_if(names->begin(), names->end(), std::inserter(within, within.end()),
               [inner](const auto& name) { return !inner->HasLocalVar(name); });
  for (size_t before = 0; before != within.size();) {
    before = within.size();
    for (const auto& inner_op : inner->ops()) {
      PassInfluenceOn(*inner, *inner_op, no_grad, &within, findings);
    }
  }
  std::copy_if(within.begin(), within.end(), std::inserter(*names, names->end()),
               [inner](const auto& name) { return !inner->HasLocalVar(name); });
  return true;
}

}  // namespace headrace
