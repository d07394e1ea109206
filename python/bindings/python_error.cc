#include "python/bindings/python_error.h"

#include <string>

namespace headrace::python {
namespace {

namespace py = pybind11;

// "ValueError: the text", or the type alone if the exception cannot be printed.
std::string Describe(const py::handle& exception) {
  std::string text = Py_TYPE(exception.ptr())->tp_name;
  try {
    const std::string message = py::str(exception);
    if (!message.empty()) {
      text += ": " + message;
    }
  } catch (py::error_already_set&) {
    text += " (which cannot be printed)";
  }
  return text;
}

}  // namespace

PythonError::PythonError(const py::object& exception) : Error(Describe(exception)), exception_(ShareObject(exception)) {
  if (PyObject* traceback = PyException_GetTraceback(exception.ptr()); traceback != nullptr) {
    traceback_ = ShareObject(py::reinterpret_steal<py::object>(traceback));
  }
}

PythonError PythonError::Fetch() {
  const py::error_already_set error;  // fetches and normalizes what is set
  const py::object& exception = error.value();
  if (error.trace()) {
    PyException_SetTraceback(exception.ptr(), error.trace().ptr());
  }
  return PythonError(exception);
}

void PythonError::Restore() const {
  PyObject* exception = exception_.get();
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(exception));
  Py_INCREF(type);
  Py_INCREF(exception);
  Py_XINCREF(traceback_.get());
  PyErr_Restore(type, exception, traceback_.get());
}

}  // namespace headrace::python
