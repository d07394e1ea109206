// _core.Claim.
#include <pybind11/pybind11.h>

#include "python/bindings/bindings.h"
#include "reader/shared_memory/batch_producer.h"

namespace headrace::python {
namespace py = pybind11;

using shared_memory::Claim;

void BindClaim(py::module_& m) {
  py::class_<Claim>(m, "Claim", "A producer's hold on rows of a batch.")
      .def_readonly("begin", &Claim::begin)
      .def_readonly("end", &Claim::end)
      .def_readonly("rows", &Claim::rows)
      .def_property_readonly("kind", [](const Claim& self) { return shared_memory::NameOf(self.kind); })
      .def_readonly("stream", &Claim::stream)
      .def_property_readonly("stream_batch", [](const Claim& self) { return self.batch; })
      .def_readonly("deaths", &Claim::deaths, "Of producers, at this claim's rows.")
      .def_readonly("epoch", &Claim::epoch)
      .def_readonly("revision", &Claim::revision, "Of the dataset that its rows are to be made from.")
      .def_readonly("batch", &Claim::batch);
}

}  // namespace headrace::python
