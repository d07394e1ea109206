// headrace._core.{ProgramDesc, BlockDesc, OpDesc, VarDesc}.
#include "python/bindings/program.h"

#include <pybind11/stl.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "python/bindings/attribute_caster.h"
#include "python/bindings/bindings.h"
#include "python/bindings/ddim_caster.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

using Names = std::map<std::string, std::vector<std::string>>;
using SpecTuple = std::tuple<std::vector<int64_t>, int32_t, int32_t>;  // dims, dtype, lod_level

DataType ToDataType(int32_t value) {
  HR_ENFORCE(IsDataType(value), InvalidArgument, value, " is not the number of a dtype");
  return static_cast<DataType>(value);
}

VarKind ToVarKind(int32_t value) {
  const auto kind = static_cast<VarKind>(value);
  VarKindName(kind);  // throws for an unknown one
  return kind;
}

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

std::vector<SpecTuple> ReaderSpecs(const VarHandle& self) {
  std::vector<SpecTuple> specs;
  for (const TensorSpec& spec : self.get().reader) {
    specs.emplace_back(spec.dims, static_cast<int32_t>(spec.dtype), spec.lod_level);
  }
  return specs;
}

void SetReaderSpecs(const VarHandle& self, const std::vector<SpecTuple>& specs) {
  std::vector<TensorSpec> reader;
  for (const auto& [dims, dtype, lod_level] : specs) {
    reader.push_back({dims, ToDataType(dtype), lod_level});
  }
  self.edit().reader = std::move(reader);
}

// Defines a property of a VarDesc whose setter marks the program as changed.
template <typename Get, typename Set>
void Property(py::class_<VarHandle>& cls, const char* name, Get get, Set set) {
  using T = decltype(get(std::declval<const VarDesc&>()));
  cls.def_property(
      name, [get](const VarHandle& self) { return get(self.get()); },
      [set](const VarHandle& self, const T& value) { set(self.edit(), value); });
}

void BindVarDesc(py::module_& m) {
  py::class_<VarHandle> cls(m, "VarDesc", "A declaration in a block. NotFound once it has been removed.");
  cls.def_property_readonly("name", [](const VarHandle& self) { return self.name; });
  cls.def_property_readonly("block_index", [](const VarHandle& self) { return self.index; });
  Property(
      cls, "kind", [](const VarDesc& v) { return static_cast<int32_t>(v.kind); },
      [](VarDesc& v, int32_t value) { v.kind = ToVarKind(value); });
  Property(
      cls, "shape", [](const VarDesc& v) { return v.tensor.dims; },
      [](VarDesc& v, const DDim& value) { v.tensor.dims = value; });
  Property(
      cls, "dtype", [](const VarDesc& v) { return static_cast<int32_t>(v.tensor.dtype); },
      [](VarDesc& v, int32_t value) { v.tensor.dtype = ToDataType(value); });
  Property(
      cls, "lod_level", [](const VarDesc& v) { return v.tensor.lod_level; },
      [](VarDesc& v, int32_t value) { v.tensor.lod_level = value; });
  Property(
      cls, "persistable", [](const VarDesc& v) { return v.persistable; },
      [](VarDesc& v, bool value) { v.persistable = value; });
  Property(
      cls, "stop_gradient", [](const VarDesc& v) { return v.stop_gradient; },
      [](VarDesc& v, bool value) { v.stop_gradient = value; });
  Property(
      cls, "is_parameter", [](const VarDesc& v) { return v.is_parameter; },
      [](VarDesc& v, bool value) { v.is_parameter = value; });
  cls.def_property("reader_specs", &ReaderSpecs, &SetReaderSpecs);
}

void BindOpDesc(py::module_& m) {
  py::class_<OpDesc>(m, "OpDesc", "An operator as it stands in a block: a copy, which does not change with the block.")
      .def_property_readonly("type", [](const OpDesc& op) { return op.type; })
      .def(
          "input", [](const OpDesc& op, const std::string& slot) { return op.Input(slot); }, py::arg("slot"))
      .def(
          "output", [](const OpDesc& op, const std::string& slot) { return op.Output(slot); }, py::arg("slot"))
      .def("input_names", [](const OpDesc& op) { return Slots(op.inputs); })
      .def("output_names", [](const OpDesc& op) { return Slots(op.outputs); })
      .def("input_arg_names", &OpDesc::InputNames)
      .def("output_arg_names", &OpDesc::OutputNames)
      .def("attrs", &Attrs)
      .def("__str__", &OpDesc::ToString);
}

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

}  // namespace

void BindProgram(py::module_& m) {
  BindVarDesc(m);
  BindOpDesc(m);
  BindBlockDesc(m);
  py::class_<ProgramDesc, std::shared_ptr<ProgramDesc>>(m, "ProgramDesc",
                                                        "A program as data. Built by one thread at a time.")
      .def(py::init<>())
      .def("copy", [](const ProgramDesc& self) { return std::make_shared<ProgramDesc>(self); })
      .def(
          "block",
          [](const std::shared_ptr<ProgramDesc>& self, size_t index) {
            self->block(index);  // throws if there is none
            return BlockHandle{self, index};
          },
          py::arg("index"))
      .def("num_blocks", &ProgramDesc::num_blocks)
      .def(
          "append_block",
          [](const std::shared_ptr<ProgramDesc>& self, int32_t parent) {
            return BlockHandle{self, static_cast<size_t>(self->AppendBlock(parent).index())};
          },
          py::arg("parent"))
      .def("serialize_to_string", [](const ProgramDesc& self) { return py::bytes(self.Serialize()); })
      .def_static(
          "parse_from_string",
          [](const py::bytes& bytes) {
            return std::shared_ptr<ProgramDesc>(ProgramDesc::Parse(std::string_view(bytes)));
          },
          py::arg("bytes"))
      .def_property_readonly("revision", &ProgramDesc::revision)
      .def("__str__", &ProgramDesc::ToString);
}

}  // namespace headrace::python
