// PyReader: the reader that pops a queue, which feeders in Python or C++ fill.
#include "reader/py_reader.h"

#include <utility>

#include "framework/errors.h"

namespace headrace {
namespace {

const LoDTensorBlockingQueue& CheckNotNull(const std::shared_ptr<LoDTensorBlockingQueue>& queue) {
  HR_ENFORCE(queue != nullptr, InvalidArgument, "a PyReader needs a queue, got none");
  return *queue;
}

}  // namespace

PyReader::PyReader(std::shared_ptr<LoDTensorBlockingQueue> queue, BatchContract contract)
    : ReaderBase(std::move(contract)), queue_(std::move(queue)) {
  CheckNotNull(queue_);
}

PyReader::PyReader(const std::shared_ptr<LoDTensorBlockingQueue>& queue)
    : PyReader(queue, CheckNotNull(queue).contract()) {}

void PyReader::ReadNextImpl(LoDTensorArray* out) { *out = queue_->Pop(); }

void PyReader::Interrupt() { queue_->Interrupt(); }

void PyReader::Restart() { queue_->ReOpen(); }

}  // namespace headrace
