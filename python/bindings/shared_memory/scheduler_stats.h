// What a scheduler has counted and traced, as Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "reader/shared_memory/arena/trace.h"
#include "reader/shared_memory/batch_scheduler.h"

namespace headrace::python {

// A dict of sums over all producers, with each producer's own under "producers"; keys that the consumer has as well get
// the prefix worker_. Times are in seconds. Needs the GIL.
pybind11::dict StatsDict(const shared_memory::SchedulerStats& stats);

// Tuples (kind, producer, begin_ns, end_ns, epoch, batch, slot, begin_row, end_row, stream); producer -1 is the
// scheduler. Needs the GIL.
pybind11::list TraceList(const std::vector<shared_memory::TraceEvent>& events);

}  // namespace headrace::python
