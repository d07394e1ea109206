// The joint between the producers of batches and the program that reads them: a bounded queue of batches. A batch is
// one LoDTensor per declared variable. The queue lives in a scope variable, inside a Holder:
//
//   auto* holder = scope.Var("queue")->GetMutable<LoDTensorBlockingQueueHolder>();
//   const std::vector<TensorSpec> specs = {{{-1, 784}, DataType::kFloat32}, {{-1, 1}, DataType::kInt64}};
//   holder->InitOnce(/*capacity=*/8, specs, {.name = "queue"});
//   std::jthread feeder([queue = holder->GetQueue(), epoch = holder->GetQueue()->epoch()] {
//     while (queue->Push(MakeBatch(), epoch)) {
//     }
//   });
//
// For how it ends (closed, failed, killed) and epochs, see blocking_queue.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "framework/ddim.h"
#include "framework/export.h"
#include "framework/lod_tensor.h"
#include "framework/process_owned.h"
#include "framework/program_desc.h"
#include "framework/thread_annotations.h"
#include "reader/batch_check.h"
#include "reader/blocking_queue.h"

namespace headrace {

struct QueueOptions {
  std::string name = {};                       // the scope variable's, for messages
  std::vector<std::string> tensor_names = {};  // the variables', for messages; may be empty
  bool speed_test_mode = false;                // Pop leaves the batch in the queue
};

// Thread-safety: any method from any thread.
// Lifetime: shared by the Holder, the readers and the feeders. A batch belongs to the queue from Push to Pop, then to
// the caller of Pop; the tensors' memory is shared, never copied. A forked child must not use the queue; it may drop
// it.
class HEADRACE_API LoDTensorBlockingQueue {
 public:
  static constexpr uint64_t kCurrentEpoch = BlockingQueue<LoDTensorArray>::kCurrentEpoch;

  // Blocks while the queue is full. True if the batch was taken; false only if the queue is closed, failed or killed,
  // or `epoch` is over. A batch that does not fit the declaration is an InvalidArgument or TypeMismatch (see
  // CheckBatch); the queue is as before then.
  bool Push(const LoDTensorArray& batch, uint64_t epoch = kCurrentEpoch);
  // As above; `batch` is untouched unless it was taken. Send and PushFor also say why not (see BlockingQueue::Send).
  bool Push(LoDTensorArray&& batch, uint64_t epoch = kCurrentEpoch);
  SendResult Send(LoDTensorArray&& batch, uint64_t epoch = kCurrentEpoch);
  SendResult PushFor(LoDTensorArray&& batch, std::chrono::nanoseconds timeout, uint64_t epoch = kCurrentEpoch);

  // Blocks while the queue is empty and open. `*success` is false, and the result empty, when a closed queue has been
  // drained. Throws the error of a failed queue once it has been drained, QueueClosed if the queue was killed.
  LoDTensorArray Pop(bool* success = nullptr);
  // kItem, kClosed or kTimedOut.
  ReceiveResult PopFor(LoDTensorArray* out, std::chrono::nanoseconds timeout);

  // False if `epoch` is over; then nothing happens.
  bool Close(uint64_t epoch = kCurrentEpoch) { return queue_->Close(epoch); }
  bool Fail(std::exception_ptr error, uint64_t epoch = kCurrentEpoch) { return queue_->Fail(std::move(error), epoch); }
  // The consumer ends the pass; later pushes make feeders stop, without an error.
  void Interrupt() { queue_->Interrupt(); }
  void Kill() { queue_->Kill(); }
  // Drops queued batches and begins an epoch, which it returns. Throws FailedPrecondition if killed.
  uint64_t ReOpen() { return queue_->ReOpen(); }

  size_t Size() const { return queue_->Size(); }
  size_t Cap() const { return queue_->Cap(); }
  bool IsClosed() const { return queue_->IsClosed(); }
  bool IsKilled() const { return queue_->IsKilled(); }
  uint64_t epoch() const { return queue_->epoch(); }
  QueueStats stats() const { return queue_->stats(); }

  const std::string& name() const { return options_.name; }
  // The required form of every batch; dtypes and LoD depths are ignored if dims_only, all if undeclared.
  const BatchContract& contract() const { return contract_; }

 private:
  friend class LoDTensorBlockingQueueHolder;
  LoDTensorBlockingQueue(size_t capacity, BatchContract contract, QueueOptions options);
  void Check(const LoDTensorArray& batch) const;
  bool IsItem(ReceiveResult result) const;

  const BatchContract contract_;
  const QueueOptions options_;
  ProcessOwned<BlockingQueue<LoDTensorArray>> queue_;
};

// A holder for a future queue, in a scope variable, since a queue cannot be created without its capacity and dims.
// Thread-safety: any method from any thread. Lifetime: its end, or that of the scope, does not end the queue. Feeders
// that wait for room go on waiting, so end the pass (Interrupt) or the queue (Kill) before they are joined.
class HEADRACE_API LoDTensorBlockingQueueHolder {
 public:
  // Makes the queue. Throws AlreadyExists, naming it, if there is one; InvalidArgument if the capacity is 0 or the
  // declaration is wrong. With `dims` only the number of tensors and their shapes are checked by Push; with `specs`
  // also dtypes and LoD depths. With neither, Push takes any tensors with a sound LoD: the program that reads them
  // declares them, and `read` checks them.
  void InitOnce(size_t capacity, QueueOptions options = {});
  void InitOnce(size_t capacity, const std::vector<DDim>& dims, QueueOptions options = {});
  void InitOnce(size_t capacity, const std::vector<TensorSpec>& specs, QueueOptions options = {});
  // As InitOnce, with the checks for each tensor.
  void Init(size_t capacity, BatchContract contract, QueueOptions options = {});

  bool initialized() const;
  // Throws FailedPrecondition before InitOnce.
  std::shared_ptr<LoDTensorBlockingQueue> GetQueue() const;

 private:
  mutable Mutex mutex_;
  std::shared_ptr<LoDTensorBlockingQueue> queue_ HR_GUARDED_BY(mutex_);
};

}  // namespace headrace
