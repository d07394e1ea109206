#include "reader/queue_feeder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/start_thread.h"

namespace headrace {

using shared_memory::LeafKind;
using shared_memory::LeafRecord;
using shared_memory::ReadyBatch;
using shared_memory::WaitOutcome;

namespace {

// Gives the tensor the level of detail that stands in `leaf`.
void SetOffsets(const ReadyBatch& batch, const LeafRecord& leaf, LoDTensor* tensor) {
  std::vector<int64_t> offsets(leaf.ndim == 1 && leaf.item_bytes == sizeof(int64_t) ? leaf.dims[0] : 0);
  if (!offsets.empty()) {
    std::memcpy(offsets.data(), static_cast<const std::byte*>(batch.memory->data()) + leaf.offset,
                offsets.size() * sizeof(int64_t));
  }
  const LoD lod{{offsets.begin(), offsets.end()}};
  CheckLoD(lod, tensor->dims().empty() ? 0 : tensor->dims()[0]);
  tensor->set_lod(lod);
}

// The shape of a row, without its dimensions of 1.
DDim SqueezedRow(const DDim& dims) {
  DDim row;
  std::copy_if(dims.begin() + 1, dims.end(), std::back_inserter(row), [](int64_t dim) { return dim != 1; });
  return row;
}

}  // namespace

LoDTensorArray TensorsOf(const ReadyBatch& batch) {
  LoDTensorArray tensors;
  const shared_memory::BatchLayout& layout = batch.layout();
  for (size_t i = 0; i < layout.leaf_count(); ++i) {
    const LeafRecord& leaf = layout.leaf(i);
    if (leaf.kind == LeafKind::kOffsets && !tensors.empty()) {
      SetOffsets(batch, leaf, &tensors.back());
      continue;
    }
    HR_ENFORCE(leaf.kind == LeafKind::kArray && IsDataType(leaf.dtype), TypeMismatch, "element ", i,
               " of the loader's batches is not an array of a type that a tensor can hold");
    LoDTensor tensor(
        Tensor(batch.memory, static_cast<DataType>(leaf.dtype), DDim(leaf.dims, leaf.dims + leaf.ndim), leaf.offset));
    if (batch.last_slots) {
      LoDTensor copy;
      copy.CopyFrom(tensor);
      tensor = std::move(copy);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void ShapeRowsAsDeclared(const BatchContract& contract, LoDTensorArray* batch) {
  for (size_t i = 0; i < std::min(batch->size(), contract.specs.size()); ++i) {
    LoDTensor& tensor = (*batch)[i];
    const DDim& declared = contract.specs[i].dims;
    if (declared.empty() || tensor.dims().empty() || Matches(declared, tensor.dims())) {
      continue;
    }
    if (SqueezedRow(declared) == SqueezedRow(tensor.dims())) {
      DDim dims = declared;
      dims[0] = tensor.dims()[0];
      tensor.Resize(std::move(dims));
    }
  }
}

// What the thread works with, and the thread's work. Thread-safety: Run on one thread, the rest on any.
class QueueFeeder::Pass {
 public:
  Pass(std::shared_ptr<shared_memory::BatchScheduler> scheduler, std::shared_ptr<LoDTensorBlockingQueue> queue,
       FeederHooks hooks, int64_t timeout_ns)
      : scheduler_(std::move(scheduler)),
        queue_(std::move(queue)),
        hooks_(std::move(hooks)),
        timeout_ns_(timeout_ns),
        epoch_(queue_->epoch()) {}

  void Run() {
    try {
      while (!stop_.load() && FeedOne()) {
      }
    } catch (...) {
      ended_.store(true);
      queue_->Fail(std::current_exception(), epoch_);
    }
  }

  void AskToStop() {
    stop_.store(true);
    scheduler_->Interrupt();
  }

  bool finished() const { return finished_.load(); }

  // Unless it is over already.
  void Fail(const std::string& reason) {
    if (!ended_.exchange(true)) {
      queue_->Fail(std::make_exception_ptr(FailedPrecondition(reason)), epoch_);
    }
  }

 private:
  // False at the end of the pass or when asked to stop.
  bool FeedOne();
  // As FeedOne.
  bool Push(LoDTensorArray tensors);
  // The tensors of a batch, in the order that hooks_.order gives.
  LoDTensorArray TensorsInOrder(const ReadyBatch& batch);

  const std::shared_ptr<shared_memory::BatchScheduler> scheduler_;
  const std::shared_ptr<LoDTensorBlockingQueue> queue_;
  const FeederHooks hooks_;
  const int64_t timeout_ns_;
  const uint64_t epoch_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> ended_{false};     // the pass: the queue is closed, has failed or refuses
  std::atomic<bool> finished_{false};  // because the epoch has
  // The latest tree, and the order of its tensors; the thread's own.
  std::string tree_;
  std::vector<size_t> order_;
};

bool QueueFeeder::Pass::FeedOne() {
  const WaitOutcome outcome = scheduler_->Wait(timeout_ns_);
  if (stop_.load()) {
    return false;
  }
  switch (outcome) {
    case WaitOutcome::kBatch:
      break;
    case WaitOutcome::kEndOfEpoch:
      if (hooks_.needs_indices) {
        hooks_.needs_indices();  // whose error, if one ended the epoch, comes after the batches before it
        if (stop_.load()) {
          return false;
        }
      }
      ended_.store(true);
      finished_.store(true);
      queue_->Close(epoch_);
      return false;
    case WaitOutcome::kNeedsIndices:
      hooks_.needs_indices();
      return true;
    case WaitOutcome::kProducerDied:
      hooks_.producer_died();
      return true;
    case WaitOutcome::kTimedOut:
      if (hooks_.timed_out) {
        hooks_.timed_out();
        return true;
      }
      Throw<Timeout>("the loader's workers gave no batch for ", static_cast<double>(timeout_ns_) * 1e-9, " s");
    case WaitOutcome::kInterrupted:
      return true;
    case WaitOutcome::kStopped:
      Throw<FailedPrecondition>("the loader was shut down while it was feeding the queue '", queue_->name(), "'");
  }
  LoDTensorArray tensors;
  {
    const ReadyBatch batch = scheduler_->Take();
    if (batch.problem != shared_memory::ProblemKind::kNone) {
      std::rethrow_exception(hooks_.batch_failed(batch));
    }
    tensors = TensorsInOrder(batch);
    ShapeRowsAsDeclared(queue_->contract(), &tensors);
  }
  // With an explicit order the next indices are wanted before the queue has room again.
  if (scheduler_->WantedSupply() != 0 && hooks_.needs_indices) {
    hooks_.needs_indices();
  }
  return Push(std::move(tensors));
}

LoDTensorArray QueueFeeder::Pass::TensorsInOrder(const ReadyBatch& batch) {
  if (const std::string_view tree = batch.layout().tree(); hooks_.order && tree != tree_) {
    order_ = hooks_.order(tree);  // before TensorsOf, as its errors name variables
    tree_ = tree;
  }
  LoDTensorArray tensors = TensorsOf(batch);
  if (order_.empty()) {
    return tensors;
  }
  LoDTensorArray ordered;
  for (const size_t place : order_) {
    ordered.push_back(tensors.at(place));
  }
  return ordered;
}

bool QueueFeeder::Pass::Push(LoDTensorArray tensors) {
  for (;;) {
    // NOLINTNEXTLINE(bugprone-use-after-move): untouched unless taken
    switch (queue_->PushFor(std::move(tensors), std::chrono::milliseconds(50), epoch_)) {
      case SendResult::kTaken:
        return true;
      case SendResult::kRefused:
      case SendResult::kAfterEnd:  // somebody else has closed it: this pass is over
        ended_.store(true);
        return false;
      case SendResult::kTimedOut:
        if (stop_.load()) {
          return false;
        }
    }
  }
}

QueueFeeder::QueueFeeder(std::shared_ptr<shared_memory::BatchScheduler> scheduler,
                         std::shared_ptr<LoDTensorBlockingQueue> queue, FeederHooks hooks, int64_t timeout_ns)
    : pass_(std::make_shared<Pass>(std::move(scheduler), std::move(queue), std::move(hooks), timeout_ns)),
      owner_(getpid()),
      thread_(std::make_unique<std::thread>(
          StartThread("the thread that feeds a reader", [pass = pass_] { pass->Run(); }))),
      thread_id_(thread_->get_id()) {}

QueueFeeder::~QueueFeeder() {
  Stop();
  if (getpid() != owner_) {
    thread_.release();  // nothing can join it, and a joinable std::thread must not be destroyed
  } else if (thread_->joinable()) {
    thread_->detach();  // this is it
  }
}

bool QueueFeeder::finished() const { return pass_->finished(); }

bool QueueFeeder::OnFeedersThread() const { return std::this_thread::get_id() == thread_id_; }

void QueueFeeder::Stop(const std::string& reason) {
  if (getpid() != owner_) {
    return;
  }
  pass_->AskToStop();
  // The thread itself must not wait for a Stop elsewhere that is joining it.
  if (!OnFeedersThread()) {
    const MutexLock lock(join_mutex_);
    if (thread_->joinable()) {
      thread_->join();
    }
  }
  if (!reason.empty()) {
    pass_->Fail(reason);
  }
}

}  // namespace headrace
