// headrace._core.Scope.
#include "python/bindings/framework/scope.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>

#include "framework/errors.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"

namespace headrace::python {

namespace py = pybind11;

ScopeHandle::ScopeHandle() : scope_(std::make_unique<Scope>()) {}

ScopeHandle::ScopeHandle(std::shared_ptr<ScopeHandle> parent)
    : parent_(std::move(parent)), scope_(std::make_unique<Scope>(&parent_->scope())) {}

ScopeHandle::~ScopeHandle() {
  // Their owners may drop them as soon as the GIL is released.
  std::vector<std::shared_ptr<PreparedProgram>> programs;
  for (const auto& program : prepared_) {
    programs.push_back(program.lock());
  }
  GilReleased nogil;
  for (auto& program : programs) {
    if (program != nullptr) {
      program->Reset();
      program.reset();
    }
  }
  scope_.reset();
}

void ScopeHandle::Attach(const std::shared_ptr<PreparedProgram>& program) { prepared_.push_back(program); }

void ScopeHandle::Detach(const std::shared_ptr<PreparedProgram>& program) {
  std::erase_if(prepared_, [&program](const auto& attached) { return attached.lock() == program; });
}

namespace {

VariableRef Var(const std::shared_ptr<ScopeHandle>& self, const std::string& name) {
  HR_ENFORCE(!name.empty(), InvalidArgument, "a variable needs a name");
  return {self, self->scope().Var(name)};
}

py::object FindVarInScope(const std::shared_ptr<ScopeHandle>& self, const std::string& name) {
  Variable* variable = self->scope().FindVar(name);
  return variable == nullptr ? py::none() : py::cast(VariableRef{self, variable});
}

}  // namespace

void BindScope(py::module_& m) {
  py::class_<ScopeHandle, std::shared_ptr<ScopeHandle>>(
      m, "Scope",
      "A hierarchical name space of variables, which hold what outlives a run. Any thread may use it; the values of "
      "its variables\n"
      "are not guarded.")
      .def(py::init<>())
      .def("var", &Var, py::arg("name"), "The variable ``name`` of this very scope, created if it does not exist.")
      .def("find_var", &FindVarInScope, py::arg("name"),
           "The variable ``name`` of this scope or of an ancestor, or None.")
      .def(
          "new_scope", [](const std::shared_ptr<ScopeHandle>& self) { return std::make_shared<ScopeHandle>(self); },
          "A scope inside this one. It lives as long as any reference to it.")
      .def_property_readonly("parent", [](const ScopeHandle& self) { return self.parent(); })
      .def(
          "local_var_names", [](ScopeHandle& self) { return self.scope().LocalVarNames(); },
          "Names of this very scope, sorted.");
}

}  // namespace headrace::python
