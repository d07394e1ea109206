// headrace._core.VarDesc.
#include <pybind11/stl.h>

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "python/bindings/bindings.h"
#include "python/bindings/framework/attribute_caster.h"
#include "python/bindings/framework/ddim_caster.h"
#include "python/bindings/framework/program.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

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

// One field of all tensors of a reader, under Fluid's names. Setting it says how many they are.
template <typename T, typename Get>
std::vector<T> OfReader(const VarHandle& self, const Get& get) {
  std::vector<T> values;
  for (const TensorSpec& spec : self.get().reader) values.push_back(get(spec));
  return values;
}

template <typename T, typename Set>
void SetOfReader(const VarHandle& self, const std::vector<T>& values, const Set& set) {
  std::vector<TensorSpec> reader = self.get().reader;
  reader.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) set(reader[i], values[i]);
  self.edit().reader = std::move(reader);
}

py::dict VarAttrs(const VarHandle& self) {
  py::dict attrs;
  for (const auto& [name, value] : self.get().attrs) {
    attrs[py::str(name)] = AttributeToPython(value);
  }
  return attrs;
}

// Only what differs counts as a change of the program.
void SetVarAttrs(const VarHandle& self, const py::dict& attrs) {
  AttributeMap map;
  for (const auto& [name, value] : attrs) {
    map[name.cast<std::string>()] = AttributeFromPython(value);
  }
  if (map != self.get().attrs) {
    self.edit().attrs = std::move(map);
  }
}

// Defines a property of a VarDesc whose setter marks the program as changed.
template <typename Get, typename Set>
void Property(py::class_<VarHandle>& cls, const char* name, Get get, Set set) {
  using T = decltype(get(std::declval<const VarDesc&>()));
  cls.def_property(
      name, [get](const VarHandle& self) { return get(self.get()); },
      [set](const VarHandle& self, const T& value) { set(self.edit(), value); });
}

}  // namespace

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
  cls.def_property("attrs", &VarAttrs, &SetVarAttrs, "What else belongs to it, and is stored with it; a copy.");
  cls.def_property("reader_specs", &ReaderSpecs, &SetReaderSpecs);
  cls.def("shapes", [](const VarHandle& self) { return OfReader<DDim>(self, std::mem_fn(&TensorSpec::dims)); });
  cls.def(
      "set_shapes",
      [](const VarHandle& self, const std::vector<DDim>& shapes) {
        SetOfReader(self, shapes, [](TensorSpec& spec, const DDim& dims) { spec.dims = dims; });
      },
      py::arg("shapes"), "Those of the tensors of a reader, as many as it has then.");
  cls.def("dtypes", [](const VarHandle& self) {
    return OfReader<int32_t>(self, [](const TensorSpec& spec) { return static_cast<int32_t>(spec.dtype); });
  });
  cls.def(
      "set_dtypes",
      [](const VarHandle& self, const std::vector<int32_t>& dtypes) {
        SetOfReader(self, dtypes, [](TensorSpec& spec, int32_t dtype) { spec.dtype = ToDataType(dtype); });
      },
      py::arg("dtypes"));
  cls.def("lod_levels",
          [](const VarHandle& self) { return OfReader<int32_t>(self, std::mem_fn(&TensorSpec::lod_level)); });
  cls.def(
      "set_lod_levels",
      [](const VarHandle& self, const std::vector<int32_t>& levels) {
        SetOfReader(self, levels, [](TensorSpec& spec, int32_t level) { spec.lod_level = level; });
      },
      py::arg("lod_levels"));
}

}  // namespace headrace::python
