// headrace._core.SelectedRows.
#include "framework/selected_rows.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "python/bindings/bindings.h"

namespace headrace::python {

namespace py = pybind11;

void BindSelectedRows(py::module_& m) {
  py::class_<SelectedRows>(
      m, "SelectedRows",
      "Some rows of a tall tensor: row ``i`` of ``get_tensor()`` is row ``rows()[i]``; rows that occur several times "
      "are added\n"
      "up, all others are zero.\n\n"
      "Not thread-safe: concurrent reads are fine, a write needs the rows for itself.")
      .def(py::init([](const std::vector<int64_t>& rows, int64_t height) {
             SelectedRows made;
             made.mutable_rows()->assign(rows.begin(), rows.end());
             made.set_height(height);
             return made;
           }),
           py::arg("rows") = std::vector<int64_t>(), py::arg("height") = 0)
      .def(
          "rows", [](const SelectedRows& self) { return self.rows(); }, "The numbers of the rows.")
      .def(
          "set_rows",
          [](SelectedRows& self, const std::vector<int64_t>& rows) {
            self.mutable_rows()->assign(rows.begin(), rows.end());
          },
          py::arg("rows"))
      .def("height", &SelectedRows::height, "How many rows the tall tensor has; 0: as many as the rows need.")
      .def("set_height", &SelectedRows::set_height, py::arg("height"))
      .def(
          "sync_index", [](const SelectedRows&) {}, "Fluid's; does nothing: operators look at ``rows()``.")
      .def(
          "get_tensor", [](SelectedRows& self) { return self.mutable_value(); },
          py::return_value_policy::reference_internal, "The rows' elements, [len(rows()), ...].")
      .def("__repr__", [](const SelectedRows& self) {
        return StrCat("SelectedRows(rows=", self.rows().size(), ", height=", self.height(), ")");
      });
}

}  // namespace headrace::python
