// create_py_reader: a reader of the batches that a LoDTensorBlockingQueue receives (py_reader.h, which pops them).
// Programs make it by layers.py_reader (python/headrace/fluid/layers/io.py).
#include <memory>
#include <string>
#include <utility>

#include "framework/ddim.h"
#include "framework/errors.h"
#include "framework/op_registry.h"
#include "reader/lod_tensor_blocking_queue.h"
#include "reader/py_reader.h"
#include "reader/reader_op_util.h"

namespace headrace {
namespace {

// Whether some batch could satisfy both declarations.
bool Compatible(const DDim& a, const DDim& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i] && a[i] != -1 && b[i] != -1) return false;
  }
  return true;
}

// A queue and a program that declare different things would only show it at the first batch, or never.
void CheckAgainstQueue(const BatchContract& program, const LoDTensorBlockingQueue& queue, const std::string& name) {
  const BatchContract& declared = queue.contract();
  if (declared.undeclared) return;
  HR_ENFORCE(program.specs.size() == declared.specs.size(), InvalidArgument, "the program reads ", program.specs.size(),
             " tensors from the queue '", name, "', which holds ", declared.specs.size());
  for (size_t i = 0; i < program.specs.size(); ++i) {
    const TensorSpec& wanted = program.specs[i];
    const TensorSpec& given = declared.specs[i];
    HR_ENFORCE(Compatible(wanted.dims, given.dims), InvalidArgument, "tensor ", i, " of the queue '", name,
               "': the program declares shape ", ToString(wanted.dims), ", the queue ", ToString(given.dims));
    if (declared.dims_only) continue;
    HR_ENFORCE(wanted.dtype == given.dtype, TypeMismatch, "tensor ", i, " of the queue '", name,
               "': the program declares dtype ", DataTypeName(wanted.dtype), ", the queue ", DataTypeName(given.dtype));
    HR_ENFORCE(wanted.lod_level == given.lod_level, InvalidArgument, "tensor ", i, " of the queue '", name,
               "': the program declares ", wanted.lod_level, " levels of LoD, the queue ", given.lod_level);
  }
}

std::shared_ptr<LoDTensorBlockingQueue> FindQueue(const Scope& scope, const std::string& name) {
  Variable& variable = scope.GetVar(name);
  if (variable.initialized() && variable.Get<LoDTensorBlockingQueueHolder>().initialized()) {
    return variable.Get<LoDTensorBlockingQueueHolder>().GetQueue();
  }
  FailedPrecondition error(StrCat("the blocking queue '", name, "' has not been initialised in this scope"));
  error.SetVariable(name);
  throw error;
}

class CreatePyReaderOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const std::string& queue_name = Input("blocking_queue");
    std::shared_ptr<LoDTensorBlockingQueue> queue = FindQueue(scope, queue_name);
    auto* holder = scope.GetVar(Output("Out")).GetMutable<ReaderHolder>();
    const auto existing = std::dynamic_pointer_cast<PyReader>(holder->Get());
    if (existing != nullptr && existing->queue() == queue) return;
    BatchContract contract = ContractFromAttrs(desc());
    CheckAgainstQueue(contract, *queue, queue_name);
    holder->Reset(std::make_shared<PyReader>(std::move(queue), std::move(contract)));
  }
};

HEADRACE_REGISTER_OP(create_py_reader)
    .Comment("Creates the reader that yields the batches pushed into a blocking queue. Does nothing if it exists.")
    .Input("blocking_queue", "variable that holds a LoDTensorBlockingQueueHolder, initialised")
    .Output("Out", "reader variable")
    .With(DeclareContractAttrs)
    .InferShape([](InferShapeContext& context) { DeclareReader(context, ContractFromAttrs(context.op()).specs); })
    .Operator<CreatePyReaderOp>();

}  // namespace
}  // namespace headrace
