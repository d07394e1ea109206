// headrace._core.LoDTensorBlockingQueue.
#include "reader/lod_tensor_blocking_queue.h"

#include <pybind11/stl.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/wait_hook.h"
#include "python/bindings/bindings.h"
#include "python/bindings/framework/ddim_caster.h"
#include "python/bindings/framework/scope.h"
#include "python/bindings/gil.h"
#include "python/bindings/numpy_interop.h"
#include "python/bindings/python_error.h"

// Every call gives the GIL up, however short it is: see rule 1 of gil.h.
namespace headrace::python {
namespace {

namespace py = pybind11;

using Queue = LoDTensorBlockingQueue;
using QueuedSpec = std::tuple<DDim, int32_t, int32_t>;  // dims, dtype, lod_level

std::chrono::nanoseconds Seconds(double seconds) {
  HR_ENFORCE(seconds >= 0 && seconds < 1e9, InvalidArgument, "a timeout is a number of seconds from 0 to 1e9, got ",
             seconds);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

LoDTensorArray ToBatch(const py::object& batch) {
  HR_ENFORCE(py::isinstance<py::list>(batch) || py::isinstance<py::tuple>(batch), TypeMismatch,
             "a batch is a list with a tensor or array for each variable, got ", Py_TYPE(batch.ptr())->tp_name);
  LoDTensorArray tensors;
  for (const auto& item : batch) {
    tensors.push_back(TensorFromPython(item, /*copy=*/true));
  }
  return tensors;
}

bool Push(Queue& self, const py::object& batch, uint64_t epoch, std::optional<double> timeout) {
  LoDTensorArray tensors = ToBatch(batch);
  SendResult result;
  {
    GilReleased nogil;
    const ScopedWaitHook hook(&CheckSignals);
    result =
        timeout ? self.PushFor(std::move(tensors), Seconds(*timeout), epoch) : self.Send(std::move(tensors), epoch);
  }
  HR_ENFORCE(result != SendResult::kAfterEnd, QueueClosed, "push into the queue '", self.name(),
             "' after its close() or fail(): the batch would not be read; reopen(), or reset() of its reader, begins "
             "the next pass");
  HR_ENFORCE(result != SendResult::kTimedOut, Timeout, "the queue '", self.name(), "' was full for ", *timeout, " s");
  return result == SendResult::kTaken;
}

LoDTensorArray Pop(Queue& self, std::optional<double> timeout) {
  LoDTensorArray batch;
  bool taken = false;
  {
    GilReleased nogil;
    const ScopedWaitHook hook(&CheckSignals);
    if (timeout) {
      const ReceiveResult result = self.PopFor(&batch, Seconds(*timeout));
      HR_ENFORCE(result != ReceiveResult::kTimedOut, Timeout, "the queue '", self.name(), "' was empty for ", *timeout,
                 " s");
      taken = result == ReceiveResult::kItem;
    } else {
      batch = self.Pop(&taken);
    }
  }
  HR_ENFORCE(taken, EndOfData, "There is no next data.");
  return batch;
}

bool Fail(Queue& self, const py::object& exception, uint64_t epoch) {
  HR_ENFORCE(PyExceptionInstance_Check(exception.ptr()), TypeMismatch, "a queue fails with an exception, got ",
             Py_TYPE(exception.ptr())->tp_name);
  const auto error = std::make_exception_ptr(PythonError(exception));
  GilReleased nogil;
  return self.Fail(error, epoch);
}

py::dict Stats(const Queue& self) {
  QueueStats stats;
  {
    GilReleased nogil;
    stats = self.stats();
  }
  py::dict out;
  out["sent"] = stats.sent;
  out["received"] = stats.received;
  out["producer_wait_s"] = static_cast<double>(stats.producer_wait_ns) * 1e-9;
  out["consumer_wait_s"] = static_cast<double>(stats.consumer_wait_ns) * 1e-9;
  out["depth"] = stats.depth;
  out["capacity"] = stats.capacity;
  out["epoch"] = stats.epoch;
  return out;
}

std::shared_ptr<Queue> InitQueue(const VariableRef& variable, int64_t capacity,
                                 const std::optional<std::vector<DDim>>& given_shapes,
                                 const std::optional<std::vector<int32_t>>& dtypes,
                                 const std::optional<std::vector<int32_t>>& lod_levels, std::vector<std::string> names,
                                 bool speed_test_mode, std::vector<bool> need_check_feed) {
  HR_ENFORCE(capacity > 0, InvalidArgument, "the queue '", variable.variable->name(),
             "': expected a capacity of at least 1, got ", capacity);
  QueueOptions options{
      .name = variable.variable->name(), .tensor_names = std::move(names), .speed_test_mode = speed_test_mode};
  auto* holder = variable.variable->GetMutable<LoDTensorBlockingQueueHolder>();
  if (!given_shapes) {
    HR_ENFORCE(!dtypes && !lod_levels && need_check_feed.empty(), InvalidArgument, "the queue '", options.name,
               "': dtypes, lod_levels and need_check_feed need shapes");
    holder->InitOnce(static_cast<size_t>(capacity), std::move(options));
    return holder->GetQueue();
  }
  const std::vector<DDim>& shapes = *given_shapes;
  if (!dtypes) {
    holder->InitOnce(static_cast<size_t>(capacity), shapes, std::move(options));
    return holder->GetQueue();
  }
  HR_ENFORCE(dtypes->size() == shapes.size() && (!lod_levels || lod_levels->size() == shapes.size()), InvalidArgument,
             "a queue of ", shapes.size(), " shapes needs as many dtypes and LoD depths, got ", dtypes->size(),
             " dtypes and ", lod_levels ? lod_levels->size() : 0, " LoD depths");
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < shapes.size(); ++i) {
    HR_ENFORCE(IsDataType((*dtypes)[i]), InvalidArgument, (*dtypes)[i], " is not the number of a dtype");
    specs.push_back({shapes[i], static_cast<DataType>((*dtypes)[i]), lod_levels ? (*lod_levels)[i] : 0});
  }
  HR_ENFORCE(need_check_feed.empty() || need_check_feed.size() == shapes.size(), InvalidArgument, "a queue of ",
             shapes.size(), " shapes needs as many values of need_check_feed, got ", need_check_feed.size());
  holder->Init(static_cast<size_t>(capacity),
               BatchContract{.specs = std::move(specs), .checked = std::move(need_check_feed)}, std::move(options));
  return holder->GetQueue();
}

}  // namespace

void BindLoDTensorBlockingQueue(py::module_& m) {
  const auto no_gil = py::call_guard<GilReleased>();
  py::class_<Queue, std::shared_ptr<Queue>>(m, "LoDTensorBlockingQueue",
                                            "A bounded queue of batches. Any thread may call any method; those that "
                                            "wait do so without the GIL and can be interrupted by a\n"
                                            "signal. The time between two calls of reopen is an epoch; a method that "
                                            "is given an epoch does nothing once that is over.")
      .def("push", &Push, py::arg("batch"), py::arg("epoch") = Queue::kCurrentEpoch, py::arg("timeout") = py::none(),
           "Waits while the queue is full; True if the batch (a list of LoDTensors, which are shared, or arrays, which "
           "are copied) was\n"
           "taken, False if the reader was reset, the queue killed or the epoch is over: a request to stop. "
           "QueueClosedError if the\n"
           "queue had been closed by close() or fail(). ValueError or TypeError if the batch does not "
           "fit the\n"
           "declaration. TimeoutError after ``timeout`` seconds.")
      .def("pop", &Pop, py::arg("timeout") = py::none(),
           "Waits while the queue is empty; the oldest batch, a list of LoDTensors. EOFException once the queue is "
           "closed and empty;\n"
           "the error of a failed queue; QueueClosedError if it was killed. TimeoutError after ``timeout`` seconds.")
      .def("close", &Queue::Close, py::arg("epoch") = Queue::kCurrentEpoch, no_gil,
           "Ends the epoch: pushes are refused, queued batches can still be popped. False if the epoch is over.")
      .def("fail", &Fail, py::arg("exception"), py::arg("epoch") = Queue::kCurrentEpoch,
           "As close, but once the queue is empty, pop raises this very exception, and copies of it after that. False "
           "if "
           "the epoch is over or has an error.")
      .def("kill", &Queue::Kill, no_gil, "Ends the queue permanently and drops queued batches.")
      .def("reopen", &Queue::ReOpen, no_gil, "Drops queued batches and begins an epoch, whose number it returns.")
      .def("size", &Queue::Size, no_gil, "Batches queued now.")
      .def("capacity", &Queue::Cap, no_gil, "The most batches that can be queued.")
      .def("is_closed", &Queue::IsClosed, no_gil, "Whether pushes are refused.")
      .def("is_killed", &Queue::IsKilled, no_gil, "Whether it was killed.")
      .def_property_readonly("epoch", py::cpp_function([](const Queue& self) { return self.epoch(); }, no_gil),
                             "The number of the epoch, from 1.")
      .def_property_readonly("name", [](const Queue& self) { return self.name(); })
      .def("stats", &Stats,
           "A dict: sent, received, producer_wait_s, consumer_wait_s (totals of finished waits), depth, capacity, "
           "epoch.");

  m.def("init_lod_tensor_blocking_queue", &InitQueue, py::arg("variable"), py::arg("capacity"),
        py::arg("shapes") = py::none(), py::arg("dtypes") = py::none(), py::arg("lod_levels") = py::none(),
        py::arg("names") = std::vector<std::string>{}, py::arg("speed_test_mode") = false,
        py::arg("need_check_feed") = std::vector<bool>{},
        "Makes the queue that the variable holds, once. Without ``shapes``, push takes any tensors, and the program "
        "that reads them checks them. With ``dtypes`` (numbers) and ``lod_levels``, push checks "
        "these too; not the shape and the LoD where ``need_check_feed`` is False.");
}

}  // namespace headrace::python
