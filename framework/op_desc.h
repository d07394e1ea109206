// An operator in a program.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "framework/attribute.h"
#include "framework/errors.h"
#include "framework/export.h"

namespace headrace {

// Slot name → names of the variables in it.
using VarNameMap = std::map<std::string, std::vector<std::string>, std::less<>>;

struct OpDesc {
  std::string type;
  VarNameMap inputs;
  VarNameMap outputs;
  AttributeMap attrs;

  // The variables of a slot; empty if the slot is absent.
  HEADRACE_API const std::vector<std::string>& Input(std::string_view slot) const;
  HEADRACE_API const std::vector<std::string>& Output(std::string_view slot) const;
  HEADRACE_API std::vector<std::string> InputNames() const;   // of all slots
  HEADRACE_API std::vector<std::string> OutputNames() const;  // of all slots
  HEADRACE_API std::vector<BlockRef> Blocks() const;          // that its attributes refer to

  // The attribute `name`. Throws NotFound, or TypeMismatch if it holds another type.
  template <typename T>
  const T& Attr(std::string_view name) const {
    const auto it = attrs.find(name);
    HR_ENFORCE(it != attrs.end(), NotFound, "operator '", type, "' has no attribute '", name, "'");
    const T* value = std::get_if<T>(&it->second);
    HR_ENFORCE(value != nullptr, TypeMismatch, "attribute '", name, "' of operator '", type, "' is ",
               AttributeTypeName(it->second), ", expected ", AttributeTypeName(Attribute(T{})));
    return *value;
  }

  // Within a `catch (...)`: rethrows the operator's exception with its context: the operator's type, and the
  // variables in the slot that the message is about ("input X: …"); if it is about none, those of the first input.
  // Exceptions of the standard library (a plugin's, say) become Errors: std::bad_alloc and std::length_error
  // ResourceExhausted, std::out_of_range OutOfRange, std::invalid_argument and std::domain_error InvalidArgument,
  // std::system_error IoError, others FailedPrecondition. Exceptions that are no std::exception pass unchanged.
  [[noreturn]] HEADRACE_API void RethrowWithContext() const;

  // "conv2d(Input=[img], Filter=[conv_w]) → Output=[tmp_0]".
  HEADRACE_API std::string ToString() const;
};

}  // namespace headrace
