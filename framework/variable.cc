#include "framework/variable.h"

#include <string_view>
#include <utility>

#include "framework/demangle.h"

namespace headrace {

std::string Demangle(const std::type_info& type) {
  const std::string name = Demangled(type.name());
  const std::string_view full = name;
  constexpr std::string_view kOurs = "headrace::";
  if (full.starts_with("std::vector<headrace::LoDTensor,")) {
    return "LoDTensorArray";  // an alias
  }
  return std::string(full.starts_with(kOurs) ? full.substr(kOurs.size()) : full);
}

Variable::Variable(std::string name) : name_(std::move(name)) {}
Variable::~Variable() = default;

void Variable::CheckIs(const std::type_info& wanted) const {
  HR_ENFORCE(holder_ != nullptr, FailedPrecondition, "variable '", name_, "' is empty, expected a ", Demangle(wanted));
  HR_ENFORCE(holder_->type() == wanted, TypeMismatch, "variable '", name_, "' holds a ", Demangle(holder_->type()),
             ", expected a ", Demangle(wanted));
}

}  // namespace headrace
