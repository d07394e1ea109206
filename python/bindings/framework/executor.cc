// headrace._core.Executor.
#include "framework/executor.h"

#include "python/bindings/bindings.h"

namespace headrace::python {

namespace py = pybind11;

void BindExecutor(py::module_& m) {
  py::class_<Executor>(m, "Executor", "Threads that run programs; 0: as many as the environment variable CPU_NUM says.")
      .def(py::init([](int cpu_num) { return Executor({}, cpu_num); }), py::arg("cpu_num"))
      .def_property_readonly("cpu_num", &Executor::cpu_num);
}

}  // namespace headrace::python
