// Everything that deals with Python's global interpreter lock (GIL). No other file of the bindings calls its API.
//
// The bindings keep three rules, so that the GIL never takes part in a deadlock:
//
//  1. Give the GIL up before a call into a type that has a lock of its own (queue, reader, prepared program), however
//     short the call: a thread that holds that lock may be waiting for the GIL to drop a Python object.
//  2. C++ threads touch Python only inside GilHeld, and ask whether they hold it: when the process ends the gate is
//     closed, and what they wanted to drop is left to the operating system.
//  3. An object that crosses threads does so as a SharedObject.
//
// Subinterpreters are not supported.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace headrace::python {

// Gives the GIL up for the life of this object. The calling thread holds it before and after.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  // Once the gate is closed, a thread other than the one that ends the interpreter stays in here for ever: Python would
  // end it by unwinding its stack, which aborts the process at the first function that must not throw.
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

// From here on, threads that do not hold the GIL are refused it; waits, at most a second, until those that are inside
// have come out. Called once, at the end of the process, by the thread that holds the GIL.
void CloseGilGate();

}  // namespace headrace::python
