// _core.QueueFeeder.
#include "python/bindings/reader/queue_feeder.h"

#include <pybind11/stl.h>

#include <exception>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/python_error.h"
#include "python/bindings/shared_memory/ready_batch.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

using shared_memory::ReadyBatch;

// What stands for an argument in Python.
template <typename T>
T InPython(T argument) {
  return argument;
}
py::bytes InPython(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

// Calls `function` under the GIL, from a thread that does not hold it, and passes the result to `use`.
template <typename Use, typename... Arguments>
void CallInPython(const SharedObject& function, const Use& use, const Arguments&... arguments) {
  const GilHeld held;
  if (!held) {
    Throw<FailedPrecondition>("the interpreter is ending");
  }
  try {
    use(py::reinterpret_borrow<py::object>(function.get())(InPython(arguments)...));
  } catch (py::error_already_set& error) {
    error.restore();
    throw PythonError::Fetch();
  }
}

// A hook around a function that returns None or the exception to throw.
std::function<void()> Hook(py::object function) {
  return [shared = ShareObject(std::move(function))] {
    CallInPython(shared, [](const py::object& problem) {
      if (!problem.is_none()) {
        throw PythonError(problem);
      }
    });
  };
}

}  // namespace

std::shared_ptr<QueueFeeder> StartFeeder(std::shared_ptr<shared_memory::BatchScheduler> scheduler,
                                         const std::shared_ptr<LoDTensorBlockingQueue>& queue, py::object on_death,
                                         py::object on_supply, py::object on_timeout, py::object order,
                                         py::object decode_problem, int64_t timeout_ns) {
  FeederHooks hooks;
  hooks.producer_died = Hook(std::move(on_death));
  if (!on_supply.is_none()) {
    hooks.needs_indices = Hook(std::move(on_supply));
  }
  hooks.timed_out = Hook(std::move(on_timeout));
  if (!order.is_none()) {
    hooks.order = [shared = ShareObject(std::move(order))](std::string_view tree) {
      std::vector<size_t> places;
      CallInPython(shared, [&](const py::object& result) { places = result.cast<std::vector<size_t>>(); }, tree);
      return places;
    };
  }
  hooks.batch_failed = [decode = ShareObject(std::move(decode_problem))](const ReadyBatch& batch) {
    std::exception_ptr error;
    try {
      CallInPython(
          decode, [&](const py::object& problem) { error = std::make_exception_ptr(PythonError(problem)); },
          WithoutMemory(batch));
    } catch (const Error&) {
      error = std::current_exception();
    }
    return error;
  };
  const GilReleased released;  // the queue has a lock
  return {new QueueFeeder(std::move(scheduler), queue, std::move(hooks), timeout_ns), [](QueueFeeder* feeder) {
            const GilReleased while_joining;  // its thread may be waiting for the GIL
            delete feeder;
          }};
}

void BindQueueFeeder(py::module_& m) {
  py::class_<QueueFeeder, std::shared_ptr<QueueFeeder>>(m, "QueueFeeder",
                                                        "A C++ thread that feeds a queue from a loader.")
      .def("stop", &QueueFeeder::Stop, py::arg("reason") = "", py::call_guard<GilReleased>(),
           "Ends the thread and joins it. If the pass is not over and there is a reason, the queue fails with it. May "
           "be called twice.")
      .def_property_readonly("finished", &QueueFeeder::finished,
                             "Whether all batches of the epoch have gone into the queue.");
}

}  // namespace headrace::python
