// The parts of the extension module; each is defined in the file of its name and called once by module.cc.
#pragma once

#include <pybind11/pybind11.h>

namespace headrace::python {

void BindErrors(pybind11::module_& m);
void BindTensor(pybind11::module_& m);
void BindSelectedRows(pybind11::module_& m);
void BindScopeVariable(pybind11::module_& m);
void BindScope(pybind11::module_& m);
void BindVarDesc(pybind11::module_& m);
void BindOpDesc(pybind11::module_& m);
void BindBlockDesc(pybind11::module_& m);
void BindProgramDesc(pybind11::module_& m);
void BindProfiler(pybind11::module_& m);
void BindPyFunction(pybind11::module_& m);
void BindFiles(pybind11::module_& m);
void BindRecordIO(pybind11::module_& m);
void BindRegistry(pybind11::module_& m);
void BindBackward(pybind11::module_& m);
void BindExecutor(pybind11::module_& m);
void BindPreparedProgram(pybind11::module_& m);
void BindLoDTensorBlockingQueue(pybind11::module_& m);
void BindWaitOutcome(pybind11::module_& m);
void BindHeldClaim(pybind11::module_& m);
void BindProducerDeath(pybind11::module_& m);
void BindReadyBatch(pybind11::module_& m);
void BindQueueFeeder(pybind11::module_& m);
void BindBatchScheduler(pybind11::module_& m);
void BindClaim(pybind11::module_& m);
void BindPlainTree(pybind11::module_& m);
void BindBatchProducer(pybind11::module_& m);
void BindArrayVisit(pybind11::module_& m);
void BindIndexPermutation(pybind11::module_& m);
void BindExitWith(pybind11::module_& m);
void BindMarkSignal(pybind11::module_& m);
void BindGlobalGenerators(pybind11::module_& m);
void BindSerialIterator(pybind11::module_& m);

}  // namespace headrace::python
