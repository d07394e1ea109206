// Translates the C++ family of errors into the classes of headrace/errors.py.
#include "framework/errors.h"

#include <exception>
#include <string_view>

#include "python/bindings/bindings.h"
#include "python/bindings/python_error.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// Names that come from a file may be any bytes.
py::object Text(std::string_view bytes) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

// Sets an instance of headrace.errors.<name> as the current exception.
void Raise(const char* name, const Error& error) {
  try {
    const py::object type = py::module_::import("headrace.errors").attr(name);
    py::object exception = type(Text(error.what()));
    if (!error.op_type().empty()) {
      exception.attr("op_type") = Text(error.op_type());
    }
    if (!error.variable().empty()) {
      exception.attr("variable") = Text(error.variable());
    }
    if (error.sample_index() >= 0) {
      exception.attr("sample_index") = error.sample_index();
    }
    PyErr_SetObject(type.ptr(), exception.ptr());
  } catch (py::error_already_set& failed) {
    failed.restore();
  }
}

void Translate(std::exception_ptr pointer) {
  if (!pointer) {
    return;
  }
  try {
    std::rethrow_exception(pointer);
  } catch (const PythonError& e) {
    e.Restore();
  } catch (const InvalidArgument& e) {
    Raise("InvalidArgument", e);
  } catch (const TypeMismatch& e) {
    Raise("TypeMismatch", e);
  } catch (const OutOfRange& e) {
    Raise("OutOfRange", e);
  } catch (const NotFound& e) {
    Raise("NotFound", e);
  } catch (const AlreadyExists& e) {
    Raise("AlreadyExists", e);
  } catch (const FailedPrecondition& e) {
    Raise("FailedPrecondition", e);
  } catch (const Unimplemented& e) {
    Raise("Unimplemented", e);
  } catch (const ResourceExhausted& e) {
    Raise("ResourceExhausted", e);
  } catch (const DataLoss& e) {
    Raise("DataLoss", e);
  } catch (const IoError& e) {
    Raise("IoError", e);
  } catch (const Timeout& e) {
    Raise("Timeout", e);
  } catch (const QueueClosed& e) {
    Raise("QueueClosedError", e);
  } catch (const EndOfData& e) {
    Raise("EOFException", e);
  } catch (const Error& e) {
    Raise("HeadraceError", e);
  }
}

}  // namespace

void BindErrors(py::module_& /*m*/) { py::register_exception_translator(&Translate); }

}  // namespace headrace::python
