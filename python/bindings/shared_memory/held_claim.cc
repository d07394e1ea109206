// _core.HeldClaim.
#include <pybind11/pybind11.h>

#include "python/bindings/bindings.h"
#include "reader/shared_memory/batch_scheduler.h"

namespace headrace::python {
namespace py = pybind11;

using shared_memory::HeldClaim;

void BindHeldClaim(py::module_& m) {
  py::class_<HeldClaim>(m, "HeldClaim", "The claim of a producer, or the last one if its process has exited.")
      .def_readonly("producer", &HeldClaim::producer)
      .def_readonly("sequence", &HeldClaim::sequence)
      .def_readonly("epoch", &HeldClaim::epoch)
      .def_readonly("batch", &HeldClaim::batch)
      .def_readonly("row", &HeldClaim::row)
      .def_property_readonly("kind", [](const HeldClaim& self) { return shared_memory::NameOf(self.kind); })
      .def_readonly("at_row", &HeldClaim::at_row, "Whether it has started the row, and does not only prepare.");
}

}  // namespace headrace::python
