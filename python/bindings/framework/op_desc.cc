// headrace._core.OpDesc.
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "framework/op_role.h"
#include "framework/operator.h"
#include "python/bindings/bindings.h"
#include "python/bindings/framework/attribute_caster.h"
#include "python/bindings/framework/program.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

py::dict Attrs(const OpDesc& op) {
  py::dict attrs;
  for (const auto& [name, value] : op.attrs) {
    attrs[py::str(name)] = AttributeToPython(value);
  }
  return attrs;
}

std::vector<std::string> Slots(const VarNameMap& slots) {
  std::vector<std::string> names;
  for (const auto& entry : slots) {
    names.push_back(entry.first);
  }
  return names;
}

std::vector<OpDesc> GradientOps(const OpDesc& op) {
  const OpInfo& info = OpRegistry::Get(op.type);
  HR_ENFORCE(info.gradient != nullptr, Unimplemented, "operator '", op.type, "' has no gradient of its own");
  return info.gradient(op);
}

// The gradient operators, without the gradients in `no_grad`; and of each gradient that they make, of what it is one.
std::pair<std::vector<OpDesc>, std::map<std::string, std::string>> GradientOpsWithout(
    const OpDesc& op, const std::set<std::string>& no_grad) {
  std::vector<OpDesc> ops;
  std::map<std::string, std::string> variable_of;
  if (const OpInfo& info = OpRegistry::Get(op.type); info.gradient != nullptr) {
    ops = info.gradient(op);
  }
  for (OpDesc& gradient : ops) {
    for (auto& [slot, names] : gradient.outputs) {
      for (std::string& name : names) {
        if (no_grad.contains(name)) {
          name = kEmptyVarName;
        }
      }
    }
    // A slot that is empty is left out, so that it need not be declared; so is an operator that makes nothing.
    std::erase_if(gradient.outputs, [](const auto& slot) {
      return std::all_of(slot.second.begin(), slot.second.end(),
                         [](const auto& name) { return name == kEmptyVarName; });
    });
    const std::vector<std::string> made = gradient.OutputNames();
    for (const std::string& name : op.InputNames()) {
      if (const std::string of = GradVarName(name); std::find(made.begin(), made.end(), of) != made.end()) {
        variable_of.emplace(of, name);
      }
    }
  }
  std::erase_if(ops, [](const OpDesc& gradient) { return gradient.outputs.empty(); });
  return {std::move(ops), std::move(variable_of)};
}

}  // namespace

void BindOpDesc(py::module_& m) {
  py::class_<OpDesc>(m, "OpDesc", "An operator as it stands in a block: a copy, which does not change with the block.")
      .def_property_readonly("type", [](const OpDesc& op) { return op.type; })
      .def_property_readonly("role", &RoleOf, "Its role in the program; see framework/op_role.h.")
      .def_property_readonly(
          "is_training", [](const OpDesc& op) { return HasRole(op, kRoleTraining); },
          "Whether its role is to train: a backward pass, an optimizer or a learning rate added it.")
      .def(
          "input", [](const OpDesc& op, const std::string& slot) { return op.Input(slot); }, py::arg("slot"))
      .def(
          "output", [](const OpDesc& op, const std::string& slot) { return op.Output(slot); }, py::arg("slot"))
      .def("input_names", [](const OpDesc& op) { return Slots(op.inputs); })
      .def("output_names", [](const OpDesc& op) { return Slots(op.outputs); })
      .def("input_arg_names", &OpDesc::InputNames)
      .def("output_arg_names", &OpDesc::OutputNames)
      .def("attrs", &Attrs)
      .def(
          "has_attr", [](const OpDesc& op, const std::string& name) { return op.attrs.contains(name); },
          py::arg("name"))
      .def(
          "attr",
          [](const OpDesc& op, const std::string& name) {
            const auto it = op.attrs.find(name);
            HR_ENFORCE(it != op.attrs.end(), NotFound, "operator '", op.type, "' has no attribute '", name, "'");
            return AttributeToPython(it->second);
          },
          py::arg("name"), "The value of an attribute. KeyError if there is none of that name.")
      .def("gradient_ops", &GradientOps,
           "The operators that compute the gradients of its inputs from those of its outputs, in their order: the "
           "gradient of\n"
           "variable v is v@GRAD. Unimplemented if it has none.")
      .def("gradient_ops_without", &GradientOpsWithout, py::arg("no_grad"),
           "The same without the gradients in `no_grad`, with an empty list if it has none; and a dict from each "
           "gradient to its variable.")
      .def("__str__", &OpDesc::ToString);
}

}  // namespace headrace::python
