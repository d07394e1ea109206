// Template members of program_desc.h.
#pragma once

#include "framework/errors.h"
#include "framework/program_desc.h"

namespace headrace {

template <typename T>
const T& OpDesc::Attr(std::string_view name) const {
  const auto it = attrs.find(name);
  HR_ENFORCE(it != attrs.end(), NotFound, "operator '", type, "' has no attribute '", name, "'");
  const T* value = std::get_if<T>(&it->second);
  HR_ENFORCE(value != nullptr, TypeMismatch, "attribute '", name, "' of operator '", type, "' is ",
             AttributeTypeName(it->second), ", expected ", AttributeTypeName(Attribute(T{})));
  return *value;
}

}  // namespace headrace
