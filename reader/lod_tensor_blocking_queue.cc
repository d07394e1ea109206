#include "reader/lod_tensor_blocking_queue.h"

#include <utility>

#include "framework/errors.h"

namespace headrace {
namespace {

std::string Describe(const std::string& name) { return name.empty() ? "the queue" : "the queue '" + name + "'"; }

}  // namespace

LoDTensorBlockingQueue::LoDTensorBlockingQueue(size_t capacity, BatchContract contract, QueueOptions options)
    : contract_(std::move(contract)), options_(std::move(options)), queue_(capacity, options_.speed_test_mode) {}

void LoDTensorBlockingQueue::Check(const LoDTensorArray& batch) const {
  CheckBatch(contract_, options_.tensor_names, batch, queue_->SentInEpoch());
}

bool LoDTensorBlockingQueue::Push(const LoDTensorArray& batch, uint64_t epoch) {
  return Push(LoDTensorArray(batch), epoch);
}

bool LoDTensorBlockingQueue::Push(LoDTensorArray&& batch, uint64_t epoch) {
  return Send(std::move(batch), epoch) == SendResult::kTaken;
}

SendResult LoDTensorBlockingQueue::Send(LoDTensorArray&& batch, uint64_t epoch) {
  Check(batch);
  return queue_->Send(std::move(batch), epoch);
}

SendResult LoDTensorBlockingQueue::PushFor(LoDTensorArray&& batch, std::chrono::nanoseconds timeout, uint64_t epoch) {
  Check(batch);
  return queue_->SendFor(std::move(batch), timeout, epoch);
}

bool LoDTensorBlockingQueue::IsItem(ReceiveResult result) const {
  HR_ENFORCE(result != ReceiveResult::kKilled, QueueClosed, Describe(options_.name), " was killed");
  return result == ReceiveResult::kItem;
}

LoDTensorArray LoDTensorBlockingQueue::Pop(bool* success) {
  LoDTensorArray batch;
  const bool taken = IsItem(queue_->Receive(&batch));
  if (success != nullptr) *success = taken;
  return batch;
}

ReceiveResult LoDTensorBlockingQueue::PopFor(LoDTensorArray* out, std::chrono::nanoseconds timeout) {
  const ReceiveResult result = queue_->ReceiveFor(out, timeout);
  IsItem(result);
  return result;
}

void LoDTensorBlockingQueueHolder::InitOnce(size_t capacity, QueueOptions options) {
  Init(capacity, {.specs = {}, .undeclared = true}, std::move(options));
}

void LoDTensorBlockingQueueHolder::InitOnce(size_t capacity, const std::vector<DDim>& dims, QueueOptions options) {
  BatchContract contract{.specs = {}, .dims_only = true};
  for (const DDim& dim : dims) contract.specs.push_back({.dims = dim});
  Init(capacity, std::move(contract), std::move(options));
}

void LoDTensorBlockingQueueHolder::InitOnce(size_t capacity, const std::vector<TensorSpec>& specs,
                                            QueueOptions options) {
  Init(capacity, {.specs = specs}, std::move(options));
}

void LoDTensorBlockingQueueHolder::Init(size_t capacity, BatchContract contract, QueueOptions options) {
  const std::string what = Describe(options.name);
  if (!contract.undeclared) CheckContract(contract, what);
  HR_ENFORCE(capacity > 0, InvalidArgument, what, ": expected a capacity of at least 1, got 0");
  HR_ENFORCE(
      contract.undeclared || options.tensor_names.empty() || options.tensor_names.size() == contract.specs.size(),
      InvalidArgument, what, ": expected a name for each of its ", contract.specs.size(), " tensors, got ",
      options.tensor_names.size());
  const MutexLock lock(mutex_);
  HR_ENFORCE(queue_ == nullptr, AlreadyExists, Describe(queue_->name()),
             " has been initialised already; use another name for another queue");
  queue_.reset(new LoDTensorBlockingQueue(capacity, std::move(contract), std::move(options)));
}

bool LoDTensorBlockingQueueHolder::initialized() const {
  const MutexLock lock(mutex_);
  return queue_ != nullptr;
}

std::shared_ptr<LoDTensorBlockingQueue> LoDTensorBlockingQueueHolder::GetQueue() const {
  const MutexLock lock(mutex_);
  HR_ENFORCE(queue_ != nullptr, FailedPrecondition, "the blocking queue has not been initialised: call InitOnce first");
  return queue_;
}

}  // namespace headrace
