#include "python/bindings/python_error.h"

#include <exception>
#include <memory>
#include <string>
#include <utility>

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

// Whether the type has a method as Python's own exceptions have it.
bool HasBuiltin(const py::type& type, const char* method) {
  const py::object builtin = py::reinterpret_borrow<py::object>(PyExc_BaseException).attr(method);
  return py::isinstance(type.attr(method), py::type::of(builtin));
}

// An equal exception, made as one that is pickled is, without frames of those that it was raised to; itself if that
// cannot be made. An __init__ of the user's does not run: unless there is a __reduce__, too, nothing tells its
// arguments.
py::object CopyWithoutTraceback(const py::object& exception) {
  try {
    const py::type type = py::type::of(exception);
    const py::tuple reduced = exception.attr("__reduce__")();
    const py::tuple args = reduced[1];
    const bool as_made = HasBuiltin(type, "__init__") || !HasBuiltin(type, "__reduce__");
    py::object copy = as_made ? py::object(reduced[0])(*args) : type.attr("__new__")(type, *args);
    if (!py::type::of(copy).is(type)) {
      return exception;
    }
    if (reduced.size() > 2 && !py::object(reduced[2]).is_none()) {
      copy.attr("__setstate__")(reduced[2]);
    }
    for (const char* name : {"__cause__", "__context__", "__suppress_context__"}) {  // the cause sets the last one
      copy.attr(name) = exception.attr(name);
    }
    return copy;
  } catch (py::error_already_set&) {
    return exception;
  }
}

// nullptr if there is none.
SharedObject TracebackOf(const py::object& exception) {
  PyObject* traceback = PyException_GetTraceback(exception.ptr());
  return traceback == nullptr ? nullptr : ShareObject(py::reinterpret_steal<py::object>(traceback));
}

}  // namespace

PythonError::PythonError(const py::object& exception)
    : Error(Describe(exception)),
      shared_(std::make_shared<Shared>(Shared{ShareObject(exception), TracebackOf(exception)})) {}

PythonError PythonError::Fetch() {
  const py::error_already_set error;  // fetches and normalizes what is set
  const py::object& exception = error.value();
  if (error.trace()) {
    PyException_SetTraceback(exception.ptr(), error.trace().ptr());
  }
  return PythonError(exception);
}

void PythonError::Restore() const {
  const auto next = py::reinterpret_borrow<py::object>(exception());
  // Copying may run Python code, and so other threads that get here.
  const SharedObject raised = std::exchange(shared_->exception, ShareObject(CopyWithoutTraceback(next)));
  PyObject* exception = raised.get();
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(exception));
  Py_INCREF(type);
  Py_INCREF(exception);
  Py_XINCREF(shared_->traceback.get());
  PyErr_Restore(type, exception, shared_->traceback.get());
}

std::exception_ptr PythonError::Copy() const { return std::make_exception_ptr(*this); }

}  // namespace headrace::python
