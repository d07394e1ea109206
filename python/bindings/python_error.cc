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

// An equal exception without frames of those that it was raised to; itself if that cannot be made. No __init__ of the
// user's runs: it may want other arguments than `args` holds.
py::object CopyWithoutTraceback(const py::object& exception) {
  try {
    const py::type type = py::type::of(exception);
    const py::tuple args = exception.attr("args");
    const py::object builtin_init = py::reinterpret_borrow<py::object>(PyExc_BaseException).attr("__init__");
    const bool is_builtin_init = py::isinstance(type.attr("__init__"), py::type::of(builtin_init));
    py::object copy = is_builtin_init ? type(*args) : type.attr("__new__")(type, *args);
    if (!py::type::of(copy).is(type)) {
      return exception;
    }
    copy.attr("__dict__").attr("update")(exception.attr("__dict__"));
    for (const char* name : {"__cause__", "__context__", "__suppress_context__"}) {  // the cause sets the last one
      copy.attr(name) = exception.attr(name);
    }
    return copy;
  } catch (py::error_already_set&) {
    return exception;
  }
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
  const py::object raised = py::reinterpret_borrow<py::object>(exception_.get());
  exception_ = ShareObject(CopyWithoutTraceback(raised));
  PyObject* exception = raised.ptr();
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(exception));
  Py_INCREF(type);
  Py_INCREF(exception);
  Py_XINCREF(traceback_.get());
  PyErr_Restore(type, exception, traceback_.get());
}

}  // namespace headrace::python
