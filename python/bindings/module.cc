// headrace._core: registers the parts; the documentation of the names is in python/headrace.
#include <pybind11/pybind11.h>

#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"

PYBIND11_MODULE(_core, m) {
  using namespace headrace::python;  // NOLINT(google-build-using-namespace): the list below stays readable
  m.doc() = "The C++ half of headrace.";
  BindErrors(m);
  BindTensor(m);
  BindSelectedRows(m);
  BindScopeVariable(m);
  BindScope(m);
  BindPyFunction(m);
  BindFiles(m);
  BindRecordIO(m);
  BindRegistry(m);
  BindVarDesc(m);
  BindOpDesc(m);
  BindBlockDesc(m);
  BindProgramDesc(m);
  BindBackward(m);
  BindExecutor(m);
  BindPreparedProgram(m);
  BindProfiler(m);
  BindLoDTensorBlockingQueue(m);
  BindWaitOutcome(m);
  BindHeldClaim(m);
  BindProducerDeath(m);
  BindReadyBatch(m);
  BindQueueFeeder(m);
  BindBatchScheduler(m);
  BindClaim(m);
  BindPlainTree(m);
  BindBatchProducer(m);
  BindArrayVisit(m);
  BindIndexPermutation(m);
  BindExitWith(m);
  BindMarkSignal(m);
  BindGlobalGenerators(m);
  BindSerialIterator(m);

  // atexit calls its functions last in, first out: registered on import, this one runs after those that stop our
  // threads.
  pybind11::module_::import("atexit").attr("register")(pybind11::cpp_function(&CloseGilGate));
}
