// The bindings of the backward pass: append_backward, append_gradients.
#include "framework/backward.h"

#include <pybind11/stl.h>

#include <set>
#include <string>
#include <utility>
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
  m.def(
      "append_gradients",
      [](ProgramDesc& program, const std::vector<std::pair<std::string, std::string>>& targets,
         const std::vector<std::string>& wanted, const std::set<std::string>& no_grad) {
        std::vector<GradientTarget> of;
        for (const auto& [name, weights] : targets) {
          of.push_back({name, weights});
        }
        return AppendGradients(&program, of, wanted, no_grad);
      },
      py::arg("program"), py::arg("targets"), py::arg("wanted"), py::arg("no_grad"));
}

}  // namespace headrace::python
