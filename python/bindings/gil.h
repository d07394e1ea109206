// Everything that deals with Python's global interpreter lock (GIL). No other file of the bindings calls its API.
//
// The bindings keep three rules, so that the GIL never takes part in a deadlock:
//
//  1. Release the GIL before a call into a type that has a lock of its own (queue, reader, prepared program), however
//     short the call: a thread that holds that lock may be waiting for the GIL to drop a Python object.
//  2. C++ threads touch Python only inside GilHeld, and check whether they hold it: when the process ends, the gate
//     closes, and what they wanted to drop is left to the operating system.
//  3. Objects cross threads only as SharedObjects.
//
// Subinterpreters are not supported.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace headrace::python {

// Releases the GIL for the life of this object. The calling thread holds it before and after.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  // Once the gate is closed, any thread but the one that ends the interpreter stays in here forever: Python would end
  // it by unwinding its stack, which aborts the process at the first function that must not throw.
  ~GilReleased() noexcept(false);
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// Holds the GIL for the life of this object, on any thread, whether or not it holds it already. May wait.
class GilHeld {
 public:
  GilHeld();
  ~GilHeld();
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

  // False if the process is ending and Python must not be touched any more.
  explicit operator bool() const { return held_; }

 private:
  bool held_ = false;
  bool counted_ = false;
  PyGILState_STATE state_{};
};

// A Python object that any thread may share and drop; to use it, hold the GIL.
using SharedObject = std::shared_ptr<PyObject>;

// Shares `object`. The caller holds the GIL.
SharedObject ShareObject(pybind11::object object);

// Runs Python's signal handlers if this is the main thread and signals have arrived; throws the Python exception that
// one raised (KeyboardInterrupt, say) as a PythonError. The caller does not hold the GIL.
void CheckSignals();

// Refuses the GIL to all threads that do not hold it from now on, and waits, at most a second, until those inside have
// left. Called once, at the end of the process, by the thread that holds the GIL.
void CloseGilGate();

}  // namespace headrace::python
