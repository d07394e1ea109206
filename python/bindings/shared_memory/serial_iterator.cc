// _core.SerialIterator: an iterator whose steps never overlap.
#include <pybind11/pybind11.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "framework/errors.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/python_error.h"
#include "python/bindings/shared_memory/batch_scheduler.h"
#include "reader/shared_memory/arena/process_id.h"
#include "reader/shared_memory/batch_scheduler.h"
#include "reader/shared_memory/waiting/futex.h"

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

// A turn that was taken; given up at the end.
class HeldTurn {
 public:
  explicit HeldTurn(Turn* turn) : turn_(*turn) {}
  ~HeldTurn() { turn_.GiveUp(); }
  HeldTurn(const HeldTurn&) = delete;
  HeldTurn& operator=(const HeldTurn&) = delete;

 private:
  Turn& turn_;
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

py::list ListOf(py::object value) {
  py::list list(1);
  list[0] = std::move(value);
  return list;
}

struct Names {
  PyObject* const source = PyUnicode_InternFromString("_source");
  PyObject* const step = PyUnicode_InternFromString("_step");
  PyObject* const progress = PyUnicode_InternFromString("progress");
  PyObject* const reached = PyUnicode_InternFromString("reached");
  PyObject* const failure_type = PyUnicode_InternFromString("failure_type");
  PyObject* const error = PyUnicode_InternFromString("error");
  PyObject* const advance = PyUnicode_InternFromString("_advance");
};

const Names& TheNames() {
  static const Names names;
  return names;
}

// Takes a batch from the iterator's source. Null if there is no source, or it gave no batch: `*first` is then a list of
// what it gave or raised, for a step to see to. A list, which the step empties: no frame of an exception's traceback
// must refer to the exception. Null with an exception set if that failed.
PyObject* TakeFromSource(PyObject* self, py::object* first) {
  const Names& names = TheNames();
  const py::object source = Attribute(self, names.source);
  const py::object step = Attribute(self, names.step);
  PyObject* scheduler = nullptr;
  double timeout = 0;
  if (!source || !step || source.is_none() || !step.is_none() ||
      PyArg_ParseTuple(source.ptr(), "Od", &scheduler, &timeout) == 0) {
    return nullptr;
  }
  try {
    std::optional<uint64_t> number;
    py::object result = TakeBatch(scheduler, timeout, &number);
    if (!number) {
      *first = ListOf(std::move(result));
      return nullptr;
    }
    const py::object progress = Attribute(self, names.progress);
    const py::int_ reached(*number + 1);
    return progress && PyObject_SetAttr(progress.ptr(), names.reached, reached.ptr()) == 0 ? result.release().ptr()
                                                                                           : nullptr;
  } catch (const py::error_already_set& error) {
    *first = ListOf(error.value());
  } catch (const PythonError& error) {
    *first = ListOf(py::reinterpret_borrow<py::object>(error.exception()));
  } catch (const Error&) {  // which the step meets again
  }
  return nullptr;
}

// Takes what the step has left, and counts it; null, with an exception set, if it is an error.
PyObject* TakeStep(PyObject* self) {
  const Names& names = TheNames();
  const py::object step = Attribute(self, names.step);
  const py::object progress = Attribute(self, names.progress);
  const py::object failure_type = Attribute(self, names.failure_type);
  PyObject* result = nullptr;
  PyObject* reached = nullptr;
  if (!step || !progress || !failure_type || PyArg_ParseTuple(step.ptr(), "OO", &result, &reached) == 0 ||
      PyObject_SetAttr(progress.ptr(), names.reached, reached) != 0 ||
      PyObject_SetAttr(self, names.step, Py_None) != 0) {
    return nullptr;
  }
  if (reinterpret_cast<PyObject*>(Py_TYPE(result)) != failure_type.ptr()) {
    Py_INCREF(result);
    return result;
  }
  if (const py::object error = Attribute(result, names.error)) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  }
  return nullptr;
}

// What a turn gives; null, with an exception set, if it is an error. Throws what else fails, for want of memory, say.
PyObject* TakeNext(PyObject* self) {
  py::object first = py::none();
  PyObject* result = TakeFromSource(self, &first);
  if (result != nullptr || PyErr_Occurred() != nullptr) {
    return result;
  }
  const auto advanced =
      py::reinterpret_steal<py::object>(PyObject_CallMethodOneArg(self, TheNames().advance, first.ptr()));
  return advanced ? TakeStep(self) : nullptr;
}

PyObject* Next(PyObject* self) {
  Turn& turn = reinterpret_cast<Iterator*>(self)->turn;
  // What consumes the batches may be in C, too, as list() is.
  if (PyErr_CheckSignals() != 0 || !TakeTurn(self, &turn)) {
    return nullptr;
  }
  const HeldTurn held(&turn);
  try {
    return TakeNext(self);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
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
    "of the class's `failure_type`, next() raises its `error` instead. `_source`, if it is not None, is a "
    "BatchScheduler and a timeout: as long as it has batches, next() takes them from there without a step, and sets "
    "`progress.reached` to one more than the batch's number. A step is called with a list of what else the "
    "scheduler's `next` gave or raised, or None.";

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
