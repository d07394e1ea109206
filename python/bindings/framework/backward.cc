// The bindings of the backward pass: append_backward, gradients.
#include "framework/backward.h"

#include <pybind11/stl.h>

#include <set>
#include <string>
#include <vector>

#include "python/bindings/bindings.h"

namespace headrace::python {

namespace py = pybind11;

void BindBackward(py::module_& m) {
  m.def(
      "append_backward",
      [](ProgramDesc& program, const std::string& loss, const std::vector<std::string>& parameters,
         const std::set<std::string>& no_grad) { return AppendBackward(&program, loss, parameters, no_grad); },
      py::arg("program"), py::arg("loss"), py::arg("parameters"), py::arg("no_grad"));
}

}  // namespace headrace::python
