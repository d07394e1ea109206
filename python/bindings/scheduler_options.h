// The one place where Python's keyword arguments become a scheduler's options.
#pragma once

#include <pybind11/pybind11.h>

#include "reader/shared_memory/batch_plan.h"

namespace headrace::python {

// The options of those names; what is not named keeps its default. Throws InvalidArgument for a name that is no
// option's and for a word that an option does not know, TypeMismatch for a value of the wrong type. Needs the GIL.
shared_memory::SchedulerOptions SchedulerOptionsOf(const pybind11::kwargs& arguments);

}  // namespace headrace::python
