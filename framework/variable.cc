#include "framework/variable.h"

#include <cxxabi.h>

#include <cstdlib>
#include <string_view>
#include <utility>

namespace headrace {

std::string Demangle(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                    std::free);
  if (status != 0) {
    return type.name();
  }
  const std::string_view full = name.get();
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
