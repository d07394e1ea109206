// _core.ProducerDeath.
#include <pybind11/pybind11.h>

#include "python/bindings/bindings.h"
#include "reader/shared_memory/batch_scheduler.h"

namespace headrace::python {
namespace py = pybind11;

using shared_memory::ProducerDeath;

void BindProducerDeath(py::module_& m) {
  py::class_<ProducerDeath>(m, "ProducerDeath", "What a producer was doing when its process ended.")
      .def_readonly("producer", &ProducerDeath::producer)
      .def_readonly("busy", &ProducerDeath::busy)
      .def_readonly("epoch", &ProducerDeath::epoch)
      .def_readonly("batch", &ProducerDeath::batch)
      .def_readonly("row", &ProducerDeath::row)
      .def_readonly("sequence", &ProducerDeath::sequence)
      .def_property_readonly("kind", [](const ProducerDeath& self) { return shared_memory::NameOf(self.kind); });
}

}  // namespace headrace::python
