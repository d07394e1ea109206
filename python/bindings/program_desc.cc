// headrace._core.ProgramDesc.
#include <memory>
#include <string_view>

#include "python/bindings/bindings.h"
#include "python/bindings/program.h"

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
      .def_property_readonly("revision", &ProgramDesc::revision)
      .def("__str__", &ProgramDesc::ToString);
}

}  // namespace headrace::python
