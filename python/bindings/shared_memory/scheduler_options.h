// The one place where Python's keyword arguments become a scheduler's options.
#pragma once

#include <pybind11/pybind11.h>

#include "reader/shared_memory/batches/batch_plan.h"

namespace headrace::python {

// The options given by name; the others keep their defaults. Throws InvalidArgument for an unknown name or an unknown
// word as a value, TypeMismatch for a value of the wrong type. Needs the GIL.
shared_memory::SchedulerOptions SchedulerOptionsOf(const pybind11::kwargs& arguments);

}  // namespace headrace::python
