#include "python/bindings/gil.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "python/bindings/python_error.h"

namespace headrace::python {
namespace {

// The gate: a thread first counts itself in, then looks at `closed`; the closer first closes, then waits for the count
// to fall. In the single total order of these operations either the thread sees the gate closed or the closer sees the
// thread.
std::atomic<bool> gate_closed{false};
std::atomic<int> inside_gate{0};
std::atomic<std::thread::id> closer{};

}  // namespace

GilReleased::~GilReleased() noexcept(false) {
  inside_gate.fetch_add(1);
  if (gate_closed.load() && std::this_thread::get_id() != closer.load()) {
    inside_gate.fetch_sub(1);
    for (;;) {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  PyEval_RestoreThread(state_);
  inside_gate.fetch_sub(1);
}

GilHeld::GilHeld() {
  if (Py_IsInitialized() == 0) {
    return;
  }
  if (PyGILState_Check() == 0) {
    inside_gate.fetch_add(1);
    counted_ = true;
    if (gate_closed.load()) {
      inside_gate.fetch_sub(1);
      counted_ = false;
      return;
    }
  }
  state_ = PyGILState_Ensure();
  held_ = true;
}

GilHeld::~GilHeld() {
  if (held_) {
    PyGILState_Release(state_);
  }
  if (counted_) {
    inside_gate.fetch_sub(1);
  }
}

SharedObject ShareObject(pybind11::object object) {
  return SharedObject(object.release().ptr(), [](PyObject* raw) {
    GilHeld gil;
    if (gil) {
      Py_DECREF(raw);
    }
  });
}

void CheckSignals() {
  GilHeld gil;
  if (gil && PyErr_CheckSignals() != 0) {
    throw PythonError::Fetch();
  }
}

void CloseGilGate() {
  closer.store(std::this_thread::get_id());
  gate_closed.store(true);
  GilReleased nogil;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (inside_gate.load() != 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace headrace::python
