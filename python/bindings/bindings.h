// The parts of the extension module; each is defined in the file of its name and called once by module.cc.
#pragma once

#include <pybind11/pybind11.h>

namespace headrace::python {

void BindErrors(pybind11::module_& m);
void BindTensor(pybind11::module_& m);
void BindScope(pybind11::module_& m);
void BindProgram(pybind11::module_& m);
void BindRegistry(pybind11::module_& m);
void BindBackward(pybind11::module_& m);
void BindExecutor(pybind11::module_& m);
void BindQueue(pybind11::module_& m);
void BindLoaderConsumer(pybind11::module_& m);
void BindLoaderProducer(pybind11::module_& m);

}  // namespace headrace::python
