// _core.BatchScheduler, for those in C++ that need no Python between them and it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

namespace headrace::python {

// The next batch of a _core.BatchScheduler, or a WaitOutcome, as its method `next`. A batch is acknowledged at once,
// and `*number` says which one it is; else `*number` stays as it was. The caller holds the GIL. Throws what `next`
// raises; the batch, or its error, then comes again.
pybind11::object TakeBatch(const pybind11::handle& scheduler, double timeout, std::optional<uint64_t>* number);

}  // namespace headrace::python
