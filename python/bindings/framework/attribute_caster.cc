#include "python/bindings/framework/attribute_caster.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "python/bindings/framework/program.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

[[noreturn]] void Refuse(const py::handle& value) {
  Throw<TypeMismatch>("a value of type ", Py_TYPE(value.ptr())->tp_name,
                      " cannot be an attribute: ", py::repr(value).cast<std::string>());
}

Attribute Integer(const py::handle& value) {
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  HR_ENFORCE(overflow == 0, InvalidArgument, "the integer ", py::repr(value).cast<std::string>(),
             " has more than 64 bits");
  if (number >= std::numeric_limits<int32_t>::min() && number <= std::numeric_limits<int32_t>::max()) {
    return static_cast<int32_t>(number);
  }
  return number;
}

// Throws TypeMismatch for an item that a T cannot hold, as for one that stands alone.
template <typename T>
std::vector<T> ListOf(const std::vector<Attribute>& items) {
  const Attribute like = T();
  std::vector<T> out;
  out.reserve(items.size());
  for (const Attribute& item : items) {
    out.push_back(std::get<T>(Coerce(item, like)));
  }
  return out;
}

Attribute List(const py::sequence& values) {
  bool all_bool = true;
  bool all_int = true;
  bool all_number = true;
  bool all_string = true;
  bool narrow = true;
  std::vector<Attribute> items;
  items.reserve(values.size());
  for (const auto& value : values) {
    const Attribute& item = items.emplace_back(AttributeFromPython(value));
    const bool is_bool = std::holds_alternative<bool>(item);
    const bool is_int = std::holds_alternative<int32_t>(item) || std::holds_alternative<int64_t>(item);
    all_bool &= is_bool;
    all_int &= is_int;
    narrow &= !std::holds_alternative<int64_t>(item);
    all_number &= is_int || std::holds_alternative<double>(item);
    all_string &= std::holds_alternative<std::string>(item);
  }
  if (all_string) {  // true for an empty list too, which the framework converts to any other kind
    return ListOf<std::string>(items);
  }
  if (all_bool) {
    return ListOf<bool>(items);
  }
  if (all_int) {
    return narrow ? Attribute(ListOf<int32_t>(items)) : Attribute(ListOf<int64_t>(items));
  }
  if (all_number) {
    return ListOf<float>(items);
  }
  Throw<TypeMismatch>("a list attribute holds values of one kind, got ", py::repr(values).cast<std::string>());
}

}  // namespace

Attribute AttributeFromPython(const py::handle& value) {
  if (py::isinstance<py::bool_>(value)) {
    return value.cast<bool>();
  }
  if (PyLong_Check(value.ptr())) {
    return Integer(value);
  }
  if (PyFloat_Check(value.ptr())) {
    return value.cast<double>();
  }
  if (py::isinstance<py::str>(value)) {
    return value.cast<std::string>();
  }
  if (py::isinstance<BlockHandle>(value)) {
    return BlockRef{static_cast<int32_t>(value.cast<const BlockHandle&>().index)};
  }
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    return List(py::reinterpret_borrow<py::sequence>(value));
  }
  if (py::hasattr(value, "tolist")) {  // NumPy's scalars and arrays
    const py::object plain = value.attr("tolist")();
    if (Py_TYPE(plain.ptr()) != Py_TYPE(value.ptr())) {
      return AttributeFromPython(plain);
    }
  }
  Refuse(value);
}

py::object AttributeToPython(const Attribute& attribute) {
  return std::visit(
      [](const auto& value) -> py::object {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return py::none();
        } else if constexpr (std::is_same_v<T, BlockRef>) {
          return py::int_(value.index);
        } else {
          return py::cast(value);
        }
      },
      attribute);
}

}  // namespace headrace::python
