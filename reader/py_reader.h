// The source that reads from a LoDTensorBlockingQueue.
#pragma once

#include <memory>

#include "framework/export.h"
#include "reader/lod_tensor_blocking_queue.h"
#include "reader/reader.h"

namespace headrace {

// Shutdown closes the queue, Start reopens it: feeders then get the queue's new epoch. The end of the
// data is the queue closed and drained. ReadNext throws the error of a failed queue, and QueueClosed for a killed one.
// Thread-safety: that of ReaderBase. Lifetime: shares the queue.
class HEADRACE_API PyReader : public ReaderBase {
 public:
  // A queue that was declared by its dims alone has no dtypes, so `contract` gives the form of batches.
  // Throws InvalidArgument if there is no queue.
  PyReader(std::shared_ptr<LoDTensorBlockingQueue> queue, BatchContract contract);
  // Batches have the form that the queue declares.
  explicit PyReader(const std::shared_ptr<LoDTensorBlockingQueue>& queue);

  const std::shared_ptr<LoDTensorBlockingQueue>& queue() const { return queue_; }

 private:
  void ReadNextImpl(LoDTensorArray* out) override;
  void Interrupt() override;
  void Restart() override;

  const std::shared_ptr<LoDTensorBlockingQueue> queue_;
};

}  // namespace headrace
