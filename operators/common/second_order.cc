#include "operators/common/second_order.h"

#include <algorithm>
#include <utility>

#include "framework/op_registry.h"
#include "framework/op_role.h"
#include "framework/operator.h"

namespace headrace::ops {
namespace {

std::string FirstOf(const std::vector<std::string>& names) {
  return names.empty() ? std::string(kEmptyVarName) : names.front();
}

std::string GradientOrEmpty(const std::string& name) { return name == kEmptyVarName ? name : GradVarName(name); }

bool AnyIsEmpty(const GradientTerms::Slots& slots) {
  return std::any_of(slots.begin(), slots.end(), [](const auto& slot) { return slot.second == kEmptyVarName; });
}

}  // namespace

std::string GradientTerms::Value(std::string_view slot) const {
  return op_.inputs.contains(slot) ? FirstOf(op_.Input(slot)) : FirstOf(op_.Output(slot));
}

std::string GradientTerms::Given(std::string_view output) const { return GradientOrEmpty(FirstOf(op_.Output(output))); }

std::string GradientTerms::Wanted(std::string_view input) const { return GradientOrEmpty(FirstOf(op_.Input(input))); }

AttributeMap GradientTerms::Attrs() const {
  AttributeMap attrs = op_.attrs;
  attrs.erase(std::string(kOpRoleAttr));
  attrs.erase(std::string(kOpRoleVarAttr));
  return attrs;
}

void GradientTerms::Add(const std::string& type, const Slots& inputs, const Slots& outputs, AttributeMap attrs) {
  if (AnyIsEmpty(inputs) || AnyIsEmpty(outputs)) {
    return;
  }
  OpDesc& op = ops_.emplace_back();
  op.type = type;
  op.attrs = std::move(attrs);
  for (const auto& [slot, name] : inputs) {
    op.inputs[slot] = {name};
  }
  for (const auto& [slot, name] : outputs) {
    op.outputs[slot] = {name};
  }
}

std::string GradientTerms::Make(const std::string& type, const Slots& inputs, const std::string& output,
                                AttributeMap attrs) {
  if (AnyIsEmpty(inputs)) {
    return std::string(kEmptyVarName);
  }
  // The operator's outputs are its own, so that no other one makes the name.
  const std::vector<std::string> outputs = op_.OutputNames();
  const auto own = std::find_if(outputs.begin(), outputs.end(), [](const auto& name) { return name != kEmptyVarName; });
  std::string name = *own + "@TERM@" + std::to_string(made_++);
  Add(type, inputs, {{output, name}}, std::move(attrs));
  return name;
}

GradientMaker GradientOfLinear(std::string type, std::string x, std::string out, std::string constant) {
  return [type = std::move(type), x = std::move(x), out = std::move(out),
          constant = std::move(constant)](const OpDesc& op) {
    GradientTerms terms(op);
    AttributeMap attrs = terms.Attrs();
    if (attrs.contains(constant)) {
      attrs[constant] = 0.0;
    }
    terms.Add(type, {{x, terms.Given(GradVarName(x))}}, {{out, terms.Wanted(GradVarName(out))}}, std::move(attrs));
    std::vector<OpDesc> ops = terms.Take();
    for (OpDesc& linear : ops) {
      for (const auto& [slot, names] : op.inputs) {
        if (slot != x && OpRegistry::Get(type).FindInput(slot) != nullptr) {
          linear.inputs[slot] = names;
        }
      }
    }
    return ops;
  };
}

GradientMaker GradientOfBilinear(std::string type, std::string x, std::string y, std::string out) {
  return [type = std::move(type), x = std::move(x), y = std::move(y), out = std::move(out)](const OpDesc& op) {
    GradientTerms terms(op);
    const std::string x_value = terms.Value(x);
    const std::string y_value = terms.Value(y);
    const std::string d = terms.Value(GradVarName(out));
    const std::string u = terms.Given(GradVarName(x));
    const std::string v = terms.Given(GradVarName(y));
    const AttributeMap attrs = terms.Attrs();
    terms.Add(type, {{x, u}, {y, y_value}}, {{out, terms.Wanted(GradVarName(out))}}, attrs);
    terms.Add(type, {{x, x_value}, {y, v}}, {{out, terms.Wanted(GradVarName(out))}}, attrs);
    terms.Add(type + "_grad", {{x, x_value}, {y, v}, {GradVarName(out), d}}, {{GradVarName(x), terms.Wanted(x)}},
              attrs);
    terms.Add(type + "_grad", {{x, u}, {y, y_value}, {GradVarName(out), d}}, {{GradVarName(y), terms.Wanted(y)}},
              attrs);
    return terms.Take();
  };
}

GradientMaker GradientOfMask(std::vector<std::string> constants, std::string gradient, std::string output) {
  return
      [constants = std::move(constants), gradient = std::move(gradient), output = std::move(output)](const OpDesc& op) {
        GradientTerms terms(op);
        GradientTerms::Slots inputs = {{gradient, terms.Given(output)}};
        for (const std::string& slot : constants) {
          if (!op.Input(slot).empty()) {
            inputs.emplace(slot, terms.Value(slot));
          }
        }
        terms.Add(op.type, inputs, {{output, terms.Wanted(gradient)}}, terms.Attrs());
        return terms.Take();
      };
}

}  // namespace headrace::ops
