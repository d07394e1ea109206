// _core.SerialIterator: an iterator whose steps never overlap.
#include <pybind11/pybind11.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <new>

#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "reader/shared_memory/batch_scheduler.h"
#include "reader/shared_memory/futex.h"
#include "reader/shared_memory/process_id.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

// How long a signal may go unnoticed by a thread that waits for its turn.
constexpr int64_t kSignalCheckNs = 100'000'000;

// Whose turn it is: a mutex that knows its holder. Thread-safety: any thread; the caller holds the GIL, which WaitFor
// releases.
class Turn {
 public:
  bool TryTake() {
    uint32_t free = 0;
    if (!taken_.compare_exchange_strong(free, 1)) {
      return false;
    }
    holder_.store(PyThread_get_thread_ident(), std::memory_order_relaxed);
    return true;
  }
  // Only its holder can find itself here.
  bool IsMine() const {
    return holder_.load(std::memory_order_relaxed) == PyThread_get_thread_ident() && taken_.load() != 0;
  }
  // False, with an exception set, if a signal handler raised one.
  bool WaitFor() {
    waiting_.fetch_add(1);
    bool mine = false;
    while (!mine && PyErr_CheckSignals() == 0) {
      {
        const GilReleased released;
        shared_memory::FutexWait(taken_, 1, kSignalCheckNs);
      }
      mine = TryTake();
    }
    waiting_.fetch_sub(1);
    return mine;
  }
  void GiveUp() {
    holder_.store(0, std::memory_order_relaxed);
    taken_.store(0);
    if (waiting_.load() != 0) {
      shared_memory::FutexWake(taken_, 1);
    }
  }
  bool InOwner() const { return shared_memory::ProcessId() == owner_; }

 private:
  std::atomic<uint32_t> taken_{0};  // futex
  std::atomic<uint32_t> waiting_{0};
  std::atomic<unsigned long> holder_{0};
  const pid_t owner_ = shared_memory::ProcessId();
};

struct Iterator {
  PyObject_HEAD Turn turn;
};

void RaiseFailedPrecondition(const char* message) {
  try {
    const py::object type = py::module_::import("headrace.errors").attr("FailedPrecondition");
    PyErr_SetString(type.ptr(), message);
  } catch (py::error_already_set& error) {
    error.restore();
  }
}

PyObject* Call(PyObject* self, const char* name) {
  const auto method = py::reinterpret_steal<py::object>(PyObject_GetAttrString(self, name));
  return method ? PyObject_CallNoArgs(method.ptr()) : nullptr;
}

// False, with an exception set, if it is not to be this thread's turn.
bool TakeTurn(PyObject* self, Turn* turn) {
  if (!turn->InOwner()) {
    RaiseFailedPrecondition(shared_memory::kNotTheOwner);
    return false;
  }
  if (turn->TryTake()) {
    return true;
  }
  if (turn->IsMine()) {
    RaiseFailedPrecondition(
        "next() was called on this iterator while it is making a batch: by its own dataset, collate_fn or sampler, or "
        "by a signal handler");
    return false;
  }
  const auto allowed = py::reinterpret_steal<py::object>(Call(self, "_before_waiting"));
  return allowed && turn->WaitFor();
}

PyObject* New(PyTypeObject* type, PyObject* /*args*/, PyObject* /*kwargs*/) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    new (&reinterpret_cast<Iterator*>(self)->turn) Turn;
  }
  return self;
}

py::object Attribute(PyObject* object, PyObject* name) {
  return py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
}

// Takes what the step has left, and counts it; null, with an exception set, if it is an error.
PyObject* TakeStep(PyObject* self) {
  static PyObject* const step_name = PyUnicode_InternFromString("_step");
  static PyObject* const progress_name = PyUnicode_InternFromString("progress");
  static PyObject* const reached_name = PyUnicode_InternFromString("reached");
  static PyObject* const failure_type_name = PyUnicode_InternFromString("failure_type");
  static PyObject* const error_name = PyUnicode_InternFromString("error");
  const py::object step = Attribute(self, step_name);
  const py::object progress = Attribute(self, progress_name);
  const py::object failure_type = Attribute(self, failure_type_name);
  PyObject* result = nullptr;
  PyObject* reached = nullptr;
  if (!step || !progress || !failure_type || PyArg_ParseTuple(step.ptr(), "OO", &result, &reached) == 0 ||
      PyObject_SetAttr(progress.ptr(), reached_name, reached) != 0 || PyObject_SetAttr(self, step_name, Py_None) != 0) {
    return nullptr;
  }
  if (reinterpret_cast<PyObject*>(Py_TYPE(result)) != failure_type.ptr()) {
    Py_INCREF(result);
    return result;
  }
  if (const py::object error = Attribute(result, error_name)) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  }
  return nullptr;
}

PyObject* Next(PyObject* self) {
  static PyObject* const name = PyUnicode_InternFromString("_advance");
  Turn& turn = reinterpret_cast<Iterator*>(self)->turn;
  if (!TakeTurn(self, &turn)) {
    return nullptr;
  }
  const auto advanced = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(self, name));
  PyObject* result = advanced ? TakeStep(self) : nullptr;
  turn.GiveUp();
  return result;
}

PyObject* Self(PyObject* self) {
  Py_INCREF(self);
  return self;
}

constexpr const char* kDoc =
    "An iterator whose steps, calls of its method `_advance`, never overlap. A thread that calls next() while another "
    "one is in a step waits for its turn; `_before_waiting` is called first, and may raise instead. A step that calls "
    "next() itself, and any call in a fork of the process that made the iterator, raises FailedPrecondition. A step "
    "leaves `_step`, a pair: what next() returns, and what `progress.reached` becomes. next() sets that and clears "
    "`_step` where no signal handler can run, as it could at a step's return. If the first of the pair is an instance "
    "of the class's `failure_type`, next() raises its `error` instead.";

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(&New)},
    {Py_tp_iter, reinterpret_cast<void*>(&Self)},
    {Py_tp_iternext, reinterpret_cast<void*>(&Next)},
    {Py_tp_doc, const_cast<char*>(kDoc)},
    {0, nullptr},
};
PyType_Spec spec{"headrace._core.SerialIterator", sizeof(Iterator), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};

}  // namespace

void BindSerialIterator(py::module_& m) {
  m.attr("SerialIterator") = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
}

}  // namespace headrace::python
