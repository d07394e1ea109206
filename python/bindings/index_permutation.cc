// _core.IndexPermutation.
#include "reader/index_permutation.h"

#include <pybind11/pybind11.h>

#include <cstdint>

#include "framework/errors.h"
#include "python/bindings/bindings.h"

namespace headrace::python {
namespace py = pybind11;

void BindIndexPermutation(py::module_& m) {
  py::class_<IndexPermutation>(m, "IndexPermutation", "A pseudo-random permutation of range(length), O(1) per index.")
      .def(py::init<uint64_t, uint64_t, uint64_t>(), py::arg("length"), py::arg("seed"), py::arg("epoch"))
      .def("__len__", &IndexPermutation::length)
      .def("__getitem__", [](const IndexPermutation& self, uint64_t position) {
        HR_ENFORCE(position < self.length(), OutOfRange, "position ", position, " is outside a permutation of ",
                   self.length());
        return self(position);
      });
}

}  // namespace headrace::python
