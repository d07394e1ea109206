// A Python exception that travels through C++: thrown by one thread, kept by a queue, rethrown and raised by another as
// the same object with its original traceback.
//
// Whoever is raised an exception adds frames to its traceback, and with them all that is in these frames. What C++
// keeps must not keep that alive, least of all where the garbage collector cannot see it: so an exception that was
// raised is replaced by a copy here, which is what is raised the next time.
//
// Thread-safety: a value, as any Error. Its copies share the exception, which is guarded by the GIL; the last one drops
// it under the GIL, on any thread.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <memory>

#include "framework/errors.h"
#include "python/bindings/gil.h"

namespace headrace::python {

class PythonError final : public Error {
 public:
  // Carries `exception`, an instance of BaseException. The caller holds the GIL.
  explicit PythonError(const pybind11::object& exception);

  // Takes over the exception that is set in this thread. The caller holds the GIL.
  static PythonError Fetch();

  // Sets the exception in this thread, with the traceback that it came with; the first time the object itself, then
  // copies: of the same type, with the same arguments, attributes, cause and context. An exception that cannot be
  // copied stays the same. The caller holds the GIL.
  void Restore() const;

  // What Restore sets next; the caller holds the GIL.
  PyObject* exception() const { return shared_->exception.get(); }

  // Shares the exception: of all copies, the first that is restored raises the object itself.
  std::exception_ptr Copy() const override;

 private:
  struct Shared {
    SharedObject exception;        // guarded by the GIL
    const SharedObject traceback;  // nullptr if there is none
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace headrace::python
