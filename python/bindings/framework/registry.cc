// The bindings of the operator registry, and of libraries that add operators.
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "framework/op_library.h"
#include "framework/op_registry.h"
#include "framework/testing/memory_declarations.h"
#include "operators/math/vector_math.h"
#include "python/bindings/bindings.h"
#include "python/bindings/framework/attribute_caster.h"
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
    entry["shape_only"] = slot.shape_only;
    out.append(entry);
  }
  return out;
}

py::dict DescribeOp(const std::string& type) {
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
  py::list in_place;
  for (const InPlacePair& pair : info.in_place) {
    in_place.append(py::make_tuple(pair.output, pair.input));
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
  out["in_place"] = in_place;
  out["kernels"] = kernels;
  out["differentiable"] = static_cast<bool>(info.gradient);
  return out;
}

}  // namespace

void BindRegistry(py::module_& m) {
  m.def("op_types", &OpRegistry::Types, "The types of all operators, sorted.");
  m.def("uses_avx512", &ops::UsesAvx512, "Whether this processor runs the kernels that are compiled for AVX-512, too.");
  m.def("op_info", &DescribeOp, py::arg("type"),
        "The operator's declaration: version, comment, inputs, outputs, attrs, in_place (pairs of an output and the "
        "input "
        "whose memory it may have), the dtypes of its kernels, and whether it has a gradient. An input that is "
        "shape_only may have lost its elements.\n"
        "KeyError for an unknown type.");
  m.def("has_attr_like", &OpRegistry::HasAttrLike, py::arg("type"), py::arg("name"),
        "Whether the operator has an attribute of that name, or takes one of Fluid's, or has one that is spelt almost "
        "so.\n"
        "KeyError for an unknown type.");
  m.def(
      "broken_memory_declarations",
      [](const OpDesc& op, const std::map<std::string, LoDTensor>& inputs) {
        GilReleased nogil;
        return BrokenMemoryDeclarations(op, [&](Scope* scope) {
          for (const auto& [name, tensor] : inputs) {
            auto* copy = scope->Var(name)->GetMutable<LoDTensor>();
            copy->CopyFrom(tensor);
            copy->set_lod(tensor.lod());
          }
        });
      },
      py::arg("op"), py::arg("inputs"),
      "Runs an operator on copies of its inputs as its declarations in_place and shape_only permit, and returns what\n"
      "differs from its results in memory of their own, a line for each run.");
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
