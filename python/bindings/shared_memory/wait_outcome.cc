// _core.WaitOutcome.
#include <pybind11/pybind11.h>

#include "python/bindings/bindings.h"
#include "reader/shared_memory/batch_scheduler.h"

namespace headrace::python {
namespace py = pybind11;

using shared_memory::WaitOutcome;

void BindWaitOutcome(py::module_& m) {
  py::enum_<WaitOutcome>(m, "WaitOutcome", "The next step of a consumer before its next batch.")
      .value("BATCH", WaitOutcome::kBatch)
      .value("END_OF_EPOCH", WaitOutcome::kEndOfEpoch)
      .value("NEEDS_INDICES", WaitOutcome::kNeedsIndices)
      .value("PRODUCER_DIED", WaitOutcome::kProducerDied)
      .value("TIMED_OUT", WaitOutcome::kTimedOut)
      .value("INTERRUPTED", WaitOutcome::kInterrupted)
      .value("STOPPED", WaitOutcome::kStopped);
}

}  // namespace headrace::python
