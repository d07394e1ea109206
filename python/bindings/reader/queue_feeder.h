// Feeds a program's queue from a loader, with hooks that run Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

#include "reader/lod_tensor_blocking_queue.h"
#include "reader/queue_feeder.h"
#include "reader/shared_memory/batch_scheduler.h"

namespace headrace::python {

// Starts a feeder from `scheduler` to `queue`. `on_death`, `on_timeout` and `on_supply` (None if indices are never
// requested) return None, or the exception that the queue then fails with; `order` (or None) is given a tree and
// returns what FeederHooks::order does; `decode_problem` makes the exception for a batch that could not be made. The
// caller holds the GIL; hooks are called, and the feeder is joined, by gil.h's rules.
std::shared_ptr<QueueFeeder> StartFeeder(std::shared_ptr<shared_memory::BatchScheduler> scheduler,
                                         const std::shared_ptr<LoDTensorBlockingQueue>& queue,
                                         pybind11::object on_death, pybind11::object on_supply,
                                         pybind11::object on_timeout, pybind11::object order,
                                         pybind11::object decode_problem, int64_t timeout_ns);

}  // namespace headrace::python
