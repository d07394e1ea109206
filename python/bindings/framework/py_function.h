// Python functions that operators call: see the operator py_func.
//
// Thread-safety: any method from any thread. Lifetime: held by std::shared_ptr; a function can be found by its number
// as long as somebody holds it.
#pragma once

#include <cstdint>
#include <memory>

#include "python/bindings/gil.h"

namespace headrace::python {

class PyFunction {
 public:
  // The caller holds the GIL.
  static std::shared_ptr<PyFunction> Make(pybind11::object callable);
  // Throws NotFound if there is none: it is gone, or of another process.
  static std::shared_ptr<PyFunction> Find(int64_t id);

  ~PyFunction();
  PyFunction(const PyFunction&) = delete;
  PyFunction& operator=(const PyFunction&) = delete;

  // Drawn at random, never negative: no other process has a function of that number, so that a program which has come
  // from there cannot call a wrong one.
  int64_t id() const { return id_; }
  // Use it under the GIL.
  PyObject* callable() const { return callable_.get(); }

 private:
  PyFunction(int64_t id, SharedObject callable);

  const int64_t id_;
  const SharedObject callable_;
};

}  // namespace headrace::python
