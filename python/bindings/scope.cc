// headrace._core.Scope and headrace._core.Variable.
#include "python/bindings/scope.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>

#include "framework/errors.h"
#include "framework/lod_tensor.h"
#include "framework/selected_rows.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "reader/lod_tensor_blocking_queue.h"
#include "reader/reader.h"

namespace headrace::python {

namespace py = pybind11;

ScopeHandle::ScopeHandle() : scope_(std::make_unique<Scope>()) {}

ScopeHandle::ScopeHandle(std::shared_ptr<ScopeHandle> parent)
    : parent_(std::move(parent)), scope_(std::make_unique<Scope>(&parent_->scope())) {}

ScopeHandle::~ScopeHandle() {
  GilReleased nogil;
  for (PreparedProgram* program : prepared_) {
    program->Reset();
  }
  scope_.reset();
}

void ScopeHandle::Attach(PreparedProgram* program) { prepared_.push_back(program); }

void ScopeHandle::Detach(PreparedProgram* program) { std::erase(prepared_, program); }

namespace {

VariableRef Var(const std::shared_ptr<ScopeHandle>& self, const std::string& name) {
  HR_ENFORCE(!name.empty(), InvalidArgument, "a variable needs a name");
  return {self, self->scope().Var(name)};
}

py::object FindVar(const std::shared_ptr<ScopeHandle>& self, const std::string& name) {
  Variable* variable = self->scope().FindVar(name);
  return variable == nullptr ? py::none() : py::cast(VariableRef{self, variable});
}

}  // namespace

void BindScope(py::module_& m) {
  py::class_<VariableRef>(m, "ScopeVariable", "A variable of a scope, which it keeps alive.")
      .def_property_readonly("name", [](const VariableRef& self) { return self.variable->name(); })
      .def(
          "is_initialized", [](const VariableRef& self) { return self.variable->initialized(); },
          "Whether it holds a value.")
      .def(
          "get_tensor", [](const VariableRef& self) { return self.variable->GetMutable<LoDTensor>(); },
          py::return_value_policy::reference, py::keep_alive<0, 1>(),
          "The tensor that it holds, created empty if there is none yet. TypeError if it holds something else.")
      .def(
          "get_selected_rows", [](const VariableRef& self) { return self.variable->GetMutable<SelectedRows>(); },
          py::return_value_policy::reference, py::keep_alive<0, 1>(),
          "The SelectedRows that it holds, created empty if there are none yet. TypeError if it holds something else.")
      .def(
          "get_lod_tensor_array", [](const VariableRef& self) { return *self.variable->GetMutable<LoDTensorArray>(); },
          "A list of the tensors in the array that it holds, which share their memory with them. TypeError if it holds "
          "something\n"
          "else.")
      .def(
          "set_lod_tensor_array",
          [](const VariableRef& self, LoDTensorArray tensors) {
            *self.variable->GetMutable<LoDTensorArray>() = std::move(tensors);
          },
          py::arg("tensors"),
          "Makes it hold an array of these tensors, which share their memory. TypeError if it holds something else.")
      .def(
          "get_queue",
          [](const VariableRef& self) { return self.variable->Get<LoDTensorBlockingQueueHolder>().GetQueue(); },
          "The queue of its LoDTensorBlockingQueueHolder. TypeError if it holds something else.")
      .def(
          "reset_reader",
          [](const VariableRef& self) {
            auto& holder = *self.variable->GetMutable<ReaderHolder>();
            GilReleased nogil;
            holder.ResetAll();
          },
          "Brings the chain of readers that it belongs to back to the start. TypeError if it holds something else.")
      .def(
          "reader_stats",
          [](const VariableRef& self) {
            ReaderStats stats;
            {
              GilReleased nogil;
              const auto reader = self.variable->Get<ReaderHolder>().Get();
              HR_ENFORCE(reader != nullptr, FailedPrecondition, "the variable '", self.variable->name(),
                         "' holds no reader yet");
              stats = reader->stats();
            }
            py::dict out;
            out["batches"] = stats.batches;
            out["wait_s"] = static_cast<double>(stats.wait_ns) * 1e-9;
            return out;
          },
          "A dict of totals of its reader: batches given out, and wait_s, how long those who read waited for them.");

  py::class_<ScopeHandle, std::shared_ptr<ScopeHandle>>(
      m, "Scope",
      "A hierarchical name space of variables, which hold what outlives a run. Any thread may use it; the values of "
      "its variables\n"
      "are not guarded.")
      .def(py::init<>())
      .def("var", &Var, py::arg("name"), "The variable ``name`` of this very scope, created if it does not exist.")
      .def("find_var", &FindVar, py::arg("name"), "The variable ``name`` of this scope or of an ancestor, or None.")
      .def(
          "new_scope", [](const std::shared_ptr<ScopeHandle>& self) { return std::make_shared<ScopeHandle>(self); },
          "A scope inside this one. It lives as long as somebody refers to it.")
      .def_property_readonly("parent", [](const ScopeHandle& self) { return self.parent(); })
      .def(
          "local_var_names", [](ScopeHandle& self) { return self.scope().LocalVarNames(); },
          "Names of this very scope, sorted.");
}

}  // namespace headrace::python
