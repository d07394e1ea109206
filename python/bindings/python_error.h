// A Python exception that travels through C++: thrown by one thread, kept by a queue, rethrown and raised again by
// another as the same object with its original traceback.
//
// Thread-safety: immutable; copies share the exception, and the last one drops it under the GIL, on any thread.
#pragma once

#include <pybind11/pybind11.h>

#include "framework/errors.h"
#include "python/bindings/gil.h"

namespace headrace::python {

class PythonError : public Error {
 public:
  // Carries `exception`, an instance of BaseException. The caller holds the GIL.
  explicit PythonError(const pybind11::object& exception);

  // Takes over the exception that is set in this thread. The caller holds the GIL.
  static PythonError Fetch();

  // Sets the exception in this thread, with the traceback that it came with. The caller holds the GIL.
  void Restore() const;

  // The exception itself; use it under the GIL.
  PyObject* exception() const { return exception_.get(); }

 private:
  SharedObject exception_;
  SharedObject traceback_;  // nullptr if there is none
};

}  // namespace headrace::python
