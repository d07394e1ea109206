#include "framework/op_check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "framework/attribute.h"
#include "framework/errors.h"
#include "framework/fluid_attributes.h"
#include "framework/op_registry.h"
#include "framework/op_role.h"
#include "framework/operator.h"
#include "framework/spelling.h"

namespace headrace {
namespace {

void CheckSlots(const OpDesc& op, const std::vector<SlotInfo>& declared, VarNameMap* slots,
                std::string_view direction) {
  std::erase_if(*slots, [](const auto& slot) { return slot.second.empty(); });
  for (const auto& [slot, names] : *slots) {
    const auto info = std::ranges::find(declared, slot, &SlotInfo::name);
    HR_ENFORCE(info != declared.end(), NotFound, "operator '", op.type, "' has no ", direction, " slot '", slot, "'");
    HR_ENFORCE(info->duplicable || names.size() == 1, InvalidArgument, direction, " slot '", slot, "' of '", op.type,
               "' takes one variable, got ", names.size());
    HR_ENFORCE(std::none_of(names.begin(), names.end(), [](const auto& name) { return name.empty(); }), InvalidArgument,
               direction, " slot '", slot, "' of '", op.type, "' holds a variable without a name");
  }
  for (const SlotInfo& info : declared) {
    HR_ENFORCE(info.dispensable || slots->contains(info.name), InvalidArgument, direction, " slot '", info.name,
               "' of '", op.type, "' must be given");
  }
}

// Leaves out inputs that Fluid gives a gradient operator and that it has no use for here: the inputs and results of the
// operator that it belongs to, and the gradients of these results.
void DropUnusedOfForward(const OpInfo& info, OpDesc* op) {
  constexpr std::string_view kSuffix = "_grad";
  const std::string_view type = info.type;
  const OpInfo* forward =
      type.ends_with(kSuffix) ? OpRegistry::Find(type.substr(0, type.size() - kSuffix.size())) : nullptr;
  if (forward == nullptr) {
    return;
  }
  std::erase_if(op->inputs, [&](const auto& slot) {
    const auto& name = slot.first;
    const bool of_forward =
        forward->FindInput(name) != nullptr || forward->FindOutput(name) != nullptr ||
        std::ranges::any_of(forward->outputs, [&](const SlotInfo& out) { return GradVarName(out.name) == name; });
    return of_forward && info.FindInput(name) == nullptr;
  });
}

// The gradient of an input that is not there would have no shape.
void CheckGradientSlots(const OpInfo& info, const OpDesc& op) {
  constexpr std::string_view kSuffix = "@GRAD";
  for (const auto& [slot, names] : op.outputs) {
    if (!slot.ends_with(kSuffix) ||
        std::all_of(names.begin(), names.end(), [](const auto& name) { return name == kEmptyVarName; })) {
      continue;
    }
    const std::string input = slot.substr(0, slot.size() - kSuffix.size());
    HR_ENFORCE(info.FindInput(input) == nullptr || op.inputs.contains(input), InvalidArgument, "output slot '", slot,
               "' of '", op.type, "' is given, but not input slot '", input, "', of which it is the gradient");
  }
}

// The slots of `slots` that hold `name`.
std::vector<std::string_view> SlotsOf(const VarNameMap& slots, const std::string& name) {
  std::vector<std::string_view> found;
  for (const auto& [slot, names] : slots) {
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      found.push_back(slot);
    }
  }
  return found;
}

// Kernels write an output while they still read their inputs, and each takes its outputs to be tensors of their own.
void CheckOverlaps(const OpInfo& info, const OpDesc& op) {
  std::map<std::string_view, std::string_view> outputs;  // variable → slot
  for (const auto& [slot, names] : op.outputs) {
    for (const std::string& name : names) {
      if (name == kEmptyVarName) {
        continue;
      }
      const auto [first, is_new] = outputs.emplace(name, slot);
      HR_ENFORCE(is_new, InvalidArgument, "output slots '", first->second, "' and '", slot, "' of '", op.type,
                 "' both name variable '", name, "'; each result needs a variable of its own");
      for (const std::string_view input : SlotsOf(op.inputs, name)) {
        HR_ENFORCE(info.MayBeInPlace(slot, input), InvalidArgument, "output slot '", slot, "' of '", op.type,
                   "' names variable '", name, "', which is in input slot '", input,
                   "' as well, but cannot be written in place of it; give the result a variable of its own");
      }
    }
  }
}

// Attributes that every operator has, whatever it declares. They are kept, but no kernel asks for them. Those without a
// default may be absent.
const std::vector<AttrInfo>& CommonAttrs() {
  static const auto* attrs = new std::vector<AttrInfo>{
      {std::string(kOpRoleAttr), "see framework/op_role.h", int32_t{}, int32_t{kRoleForward},
       [](const Attribute& role) {
         HR_ENFORCE(std::get<int32_t>(role) >= 0, InvalidArgument, "attribute op_role: expected a sum of roles, got ",
                    ToString(role));
       }},
      {std::string(kOpRoleVarAttr), "see framework/op_role.h", std::vector<std::string>{}, std::nullopt, {}},
      {std::string(kOpNameScopeAttr), "see framework/op_role.h", std::string(), std::nullopt, {}}};
  return *attrs;
}

const AttrInfo* FindAttrOf(const OpInfo& info, std::string_view name) {
  if (const AttrInfo* own = info.FindAttr(name)) {
    return own;
  }
  const auto common = std::ranges::find(CommonAttrs(), name, &AttrInfo::name);
  return common == CommonAttrs().end() ? nullptr : &*common;
}

std::vector<std::string> AttrNames(const OpInfo& info) {
  std::vector<std::string> names;
  for (const AttrInfo& attr : info.attrs) {
    names.push_back(attr.name);
  }
  return names;
}

void CheckAttrs(const OpInfo& info, OpDesc* op) {
  std::erase_if(op->attrs, [&info](const auto& attr) {
    return FindAttrOf(info, attr.first) == nullptr && IsNeutralFluidAttr(info.type, attr.first, attr.second);
  });
  for (auto& [name, value] : op->attrs) {
    const AttrInfo* attr = FindAttrOf(info, name);
    HR_ENFORCE(attr != nullptr, NotFound, "operator '", op->type, "' has no attribute '", name, "'",
               DidYouMean(name, AttrNames(info)));
    try {
      value = Coerce(value, attr->like);
    } catch (const TypeMismatch& error) {
      Throw<TypeMismatch>("attribute '", name, "' of '", op->type, "': ", error.message());
    }
  }
  const auto complete = [op](const AttrInfo& attr) {
    auto it = op->attrs.find(attr.name);
    if (it == op->attrs.end()) {
      it = op->attrs.emplace(attr.name, *attr.default_value).first;
    }
    if (attr.check) {
      attr.check(it->second);
    }
  };
  for (const AttrInfo& attr : info.attrs) {
    HR_ENFORCE(attr.default_value.has_value() || op->attrs.contains(attr.name), InvalidArgument, "operator '", op->type,
               "' needs attribute '", attr.name, "' (", AttributeTypeName(attr.like), ")");
    complete(attr);
  }
  for (const AttrInfo& attr : CommonAttrs()) {
    if (attr.default_value.has_value() || op->attrs.contains(attr.name)) {
      complete(attr);
    }
  }
}

}  // namespace

bool HasAttrLike(const OpInfo& info, const std::string& name) {
  return FindAttrOf(info, name) != nullptr || IsFluidAttr(info.type, name) ||
         !DidYouMean(name, AttrNames(info)).empty();
}

void CheckAgainstDeclaration(const OpInfo& info, OpDesc* op) {
  DropUnusedOfForward(info, op);
  CheckSlots(*op, info.inputs, &op->inputs, "input");
  DropNeutralFluidOutputs(op);
  CheckSlots(*op, info.outputs, &op->outputs, "output");
  CheckOverlaps(info, *op);
  CheckGradientSlots(info, *op);
  CheckAttrs(info, op);
}

}  // namespace headrace
