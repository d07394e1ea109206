// headrace._core.ScopeVariable.
#include <pybind11/stl.h>

#include <cstdint>
#include <utility>

#include "framework/errors.h"
#include "framework/lod_tensor.h"
#include "framework/selected_rows.h"
#include "python/bindings/bindings.h"
#include "python/bindings/framework/scope.h"
#include "python/bindings/gil.h"
#include "reader/lod_tensor_blocking_queue.h"
#include "reader/reader.h"

namespace headrace::python {

namespace py = pybind11;

void BindScopeVariable(py::module_& m) {
  py::class_<VariableRef>(m, "ScopeVariable", "A variable of a scope, which it keeps alive.")
      .def_property_readonly("name", [](const VariableRef& self) { return self.variable->name(); })
      .def(
          "is_initialized", [](const VariableRef& self) { return self.variable->initialized(); },
          "Whether it holds a value.")
      .def("is_int", [](const VariableRef& self) { return self.variable->IsType<int32_t>(); })
      .def(
          "get_int", [](const VariableRef& self) { return self.variable->Get<int32_t>(); },
          "The number that it holds. TypeError if it holds something else.")
      .def(
          "set_int", [](const VariableRef& self, int32_t value) { *self.variable->GetMutable<int32_t>() = value; },
          py::arg("value"), "Makes it hold a number. TypeError if it holds something else.")
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
          "A dict of totals of its reader: batches given out, and wait_s, how long those who read waited for them.")
      .def(
          "reader_can_rewind",
          [](const VariableRef& self) {
            GilReleased nogil;
            const auto reader = self.variable->Get<ReaderHolder>().Get();
            return reader != nullptr && reader->CanRewind();
          },
          "Whether its reader can read its data again at will, as it can files; not what comes from outside.");
}

}  // namespace headrace::python
