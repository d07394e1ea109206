// _core.IndexPermutation.
#include "reader/index_permutation.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>

#include "framework/errors.h"
#include "python/bindings/bindings.h"

namespace headrace::python {
namespace py = pybind11;

using Positions = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

void BindIndexPermutation(py::module_& m) {
  py::class_<IndexPermutation>(m, "IndexPermutation", "A pseudo-random permutation of range(length), O(1) per index.")
      .def(py::init<uint64_t, uint64_t, uint64_t>(), py::arg("length"), py::arg("seed"), py::arg("epoch"))
      .def("__len__", &IndexPermutation::length)
      .def("__getitem__",
           [](const IndexPermutation& self, uint64_t position) {
             HR_ENFORCE(position < self.length(), OutOfRange, "position ", position, " is outside a permutation of ",
                        self.length());
             return self(position);
           })
      .def(
          "take",
          [](const IndexPermutation& self, const Positions& positions) {
            py::array_t<int64_t> indices(positions.size());
            const int64_t* from = positions.data();
            int64_t* to = indices.mutable_data();
            for (py::ssize_t i = 0; i < positions.size(); ++i) {
              HR_ENFORCE(from[i] >= 0 && static_cast<uint64_t>(from[i]) < self.length(), OutOfRange, "position ",
                         from[i], " is outside a permutation of ", self.length());
              to[i] = static_cast<int64_t>(self(static_cast<uint64_t>(from[i])));
            }
            return indices;
          },
          py::arg("positions"),
          "The indices at int64 `positions` (n,): a new int64 array (n,). IndexError if one is outside.");
}

}  // namespace headrace::python
