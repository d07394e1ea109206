// _core.ProducerDeath, a HeldClaim.
#include <pybind11/pybind11.h>

#include "python/bindings/bindings.h"
#include "reader/shared_memory/batch_scheduler.h"

namespace headrace::python {
namespace py = pybind11;

using shared_memory::HeldClaim;
using shared_memory::ProducerDeath;

void BindProducerDeath(py::module_& m) {
  py::class_<ProducerDeath, HeldClaim>(m, "ProducerDeath", "The claim of a producer whose process has exited.")
      .def_readonly("busy", &ProducerDeath::busy, "Whether it held a claim, which is free again.")
      .def_readonly("corrupt", &ProducerDeath::corrupt,
                    "Whether the scheduler has killed it, because of damage to shared memory.");
}

}  // namespace headrace::python
