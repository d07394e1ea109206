// The registered operators, and libraries that add more.
#include <pybind11/stl.h>

#include <string>

#include "framework/op_library.h"
#include "framework/op_registry.h"
#include "python/bindings/attribute_caster.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

py::list Slots(const std::vector<SlotInfo>& slots) {
  py::list out;
  for (const SlotInfo& slot : slots) {
    py::dict entry;
    entry["name"] = slot.name;
    entry["comment"] = slot.comment;
    entry["duplicable"] = slot.duplicable;
    entry["dispensable"] = slot.dispensable;
    out.append(entry);
  }
  return out;
}

py::dict Describe(const std::string& type) {
  const OpInfo& info = OpRegistry::Get(type);
  py::list attrs;
  for (const AttrInfo& attr : info.attrs) {
    py::dict entry;
    entry["name"] = attr.name;
    entry["comment"] = attr.comment;
    entry["type"] = std::string(AttributeTypeName(attr.like));
    entry["required"] = !attr.default_value.has_value();
    entry["default"] = attr.default_value ? AttributeToPython(*attr.default_value) : py::none();
    attrs.append(entry);
  }
  py::list kernels;
  for (const DataType dtype : OpRegistry::KernelTypes(info)) {
    kernels.append(std::string(DataTypeName(dtype)));
  }
  py::dict out;
  out["type"] = info.type;
  out["version"] = info.version;
  out["comment"] = info.comment;
  out["inputs"] = Slots(info.inputs);
  out["outputs"] = Slots(info.outputs);
  out["attrs"] = attrs;
  out["kernels"] = kernels;
  out["differentiable"] = static_cast<bool>(info.gradient);
  return out;
}

}  // namespace

void BindRegistry(py::module_& m) {
  m.def("op_types", &OpRegistry::Types, "The types of all operators, sorted.");
  m.def("op_info", &Describe, py::arg("type"),
        "What the operator declares: version, comment, inputs, outputs, attrs, the dtypes of its kernels, and whether "
        "it has a "
        "gradient.\n"
        "KeyError for an unknown type.");
  m.def(
      "load_op_library",
      [](const std::string& path) {
        GilReleased nogil;
        return LoadOpLibrary(path);
      },
      py::arg("path"),
      "Opens a library of operators and returns their types. OSError with the linker's message, ValueError if it "
      "registers an\n"
      "operator that exists.");
}

}  // namespace headrace::python
