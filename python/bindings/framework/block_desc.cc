// headrace._core.BlockDesc.
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "python/bindings/bindings.h"
#include "python/bindings/framework/attribute_caster.h"
#include "python/bindings/framework/program.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

using Names = std::map<std::string, std::vector<std::string>>;

OpDesc MakeOp(const std::string& type, const Names& inputs, const Names& outputs, const py::dict& attrs) {
  OpDesc op;
  op.type = type;
  op.inputs.insert(inputs.begin(), inputs.end());
  op.outputs.insert(outputs.begin(), outputs.end());
  for (const auto& [name, value] : attrs) {
    const auto attr = name.cast<std::string>();
    try {
      op.attrs[attr] = AttributeFromPython(value);
    } catch (Error& error) {
      error.SetOpType(type);
      error.SetVariable(attr);
      throw;
    }
  }
  return op;
}

void SetAttr(const BlockHandle& self, size_t position, const std::string& name, const py::object& value) {
  BlockDesc& block = self.get();
  HR_ENFORCE(position < block.ops().size(), OutOfRange, "there is no operator ", position, " in a block of ",
             block.ops().size());
  OpDesc changed = *block.ops()[position];
  changed.attrs[name] = AttributeFromPython(value);
  OpRegistry::Check(changed);
  block.MutableOp(position) = std::move(changed);
}

std::vector<OpDesc> Ops(const BlockHandle& self) {
  std::vector<OpDesc> ops;
  for (const auto& op : self.get().ops()) {
    ops.push_back(*op);
  }
  return ops;
}

std::vector<VarHandle> Vars(const BlockHandle& self) {
  std::vector<VarHandle> vars;
  for (const VarDesc* var : self.get().LocalVars()) {
    vars.push_back({self.program, self.index, var->name});
  }
  return vars;
}

py::object FindVar(const BlockHandle& self, const std::string& name) {
  for (size_t index = self.index;;) {
    const BlockDesc& block = self.program->block(index);
    if (block.HasLocalVar(name)) {
      return py::cast(VarHandle{self.program, index, name});
    }
    if (block.parent() < 0) {
      return py::none();
    }
    index = static_cast<size_t>(block.parent());
  }
}

}  // namespace

void BindBlockDesc(py::module_& m) {
  py::class_<BlockHandle>(m, "BlockDesc", "A block of a program, which it keeps alive.")
      .def_property_readonly("index", [](const BlockHandle& self) { return self.index; })
      .def_property_readonly("parent", [](const BlockHandle& self) { return self.get().parent(); })
      .def(
          "var",
          [](const BlockHandle& self, const std::string& name) {
            self.get().Var(name);
            return VarHandle{self.program, self.index, name};
          },
          py::arg("name"))
      .def("find_var", &FindVar, py::arg("name"))
      .def(
          "has_var", [](const BlockHandle& self, const std::string& name) { return self.get().HasLocalVar(name); },
          py::arg("name"))
      .def(
          "remove_var", [](const BlockHandle& self, const std::string& name) { self.get().RemoveVar(name); },
          py::arg("name"))
      .def("vars", &Vars)
      .def("ops", &Ops)
      .def("op_count", [](const BlockHandle& self) { return self.get().ops().size(); })
      .def(
          "append_op",
          [](const BlockHandle& self, const std::string& type, const Names& inputs, const Names& outputs,
             const py::dict& attrs) { return OpDesc(self.get().AppendOp(MakeOp(type, inputs, outputs, attrs))); },
          py::arg("type"), py::arg("inputs"), py::arg("outputs"), py::arg("attrs"))
      .def(
          "insert_op",
          [](const BlockHandle& self, size_t position, const std::string& type, const Names& inputs,
             const Names& outputs, const py::dict& attrs) {
            return OpDesc(self.get().InsertOp(position, MakeOp(type, inputs, outputs, attrs)));
          },
          py::arg("position"), py::arg("type"), py::arg("inputs"), py::arg("outputs"), py::arg("attrs"))
      .def(
          "remove_ops", [](const BlockHandle& self, size_t begin, size_t end) { self.get().RemoveOps(begin, end); },
          py::arg("begin"), py::arg("end"))
      .def("set_attr", &SetAttr, py::arg("position"), py::arg("name"), py::arg("value"));
}

}  // namespace headrace::python
