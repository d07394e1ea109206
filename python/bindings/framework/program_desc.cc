// headrace._core.ProgramDesc.
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/model_files.h"
#include "python/bindings/bindings.h"
#include "python/bindings/framework/program.h"

namespace headrace::python {

namespace py = pybind11;

void BindProgramDesc(py::module_& m) {
  py::class_<ProgramDesc, std::shared_ptr<ProgramDesc>>(m, "ProgramDesc",
                                                        "A program as data. Built by one thread at a time.")
      .def(py::init<>())
      .def("copy", [](const ProgramDesc& self) { return std::make_shared<ProgramDesc>(self); })
      .def(
          "block",
          [](const std::shared_ptr<ProgramDesc>& self, size_t index) {
            self->block(index);  // throws if there is none
            return BlockHandle{self, index};
          },
          py::arg("index"))
      .def("num_blocks", &ProgramDesc::num_blocks)
      .def(
          "append_block",
          [](const std::shared_ptr<ProgramDesc>& self, int32_t parent) {
            return BlockHandle{self, static_cast<size_t>(self->AppendBlock(parent).index())};
          },
          py::arg("parent"))
      .def("serialize_to_string", [](const ProgramDesc& self) { return py::bytes(self.Serialize()); })
      .def("to_text_format", &ProgramDesc::ToTextFormat)
      .def_static(
          "parse_from_string",
          [](const py::bytes& bytes) {
            return std::shared_ptr<ProgramDesc>(ProgramDesc::Parse(std::string_view(bytes)));
          },
          py::arg("bytes"))
      .def(
          "prune",
          [](ProgramDesc& self, const std::vector<std::string>& feeds, const std::vector<std::string>& fetches) {
            Prune(&self, feeds, fetches);
          },
          py::arg("feeds"), py::arg("fetches"),
          "Removes what the root block does not need to compute ``fetches`` from ``feeds``. KeyError for a name that "
          "it does not declare.")
      .def(
          "inference_program",
          [](const ProgramDesc& self, const std::vector<std::string>& feeds, const std::vector<std::string>& fetches) {
            return std::make_shared<ProgramDesc>(InferenceProgram(self, feeds, fetches));
          },
          py::arg("feeds"), py::arg("fetches"),
          "The part that computes ``fetches`` from ``feeds`` as in inference, with operators ``feed`` and ``fetch``. "
          "See InferenceProgram of C++.")
      .def_property_readonly("revision", &ProgramDesc::revision)
      .def("__str__", &ProgramDesc::ToString);
}

}  // namespace headrace::python
