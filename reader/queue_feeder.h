// Moves the batches of an epoch from the arena into a LoDTensorBlockingQueue, as tensors over the slots: nothing is
// copied, and no lock of a language runtime is taken while everything goes well.
//
// Thread-safety: Stop may be called from any thread, also twice. The thread of the feeder is the scheduler's one
// consumer while it runs. Stop and the destructor may also run on that very thread: a hook may drop the last reference
// to the feeder, if only because a garbage collector happens to run inside it. They cannot join then; the thread ends
// by itself when the hook returns, without touching the scheduler again. So that it can, what it works with is shared
// between the object and the thread.
// Lifetime: keeps scheduler and queue alive. Destruction stops, and joins unless it runs on the feeder's thread. In a
// forked child, where the thread does not exist, Stop and destruction do nothing.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "framework/export.h"
#include "framework/thread_annotations.h"
#include "reader/batch_check.h"
#include "reader/lod_tensor_blocking_queue.h"
#include "reader/shared_memory/batch_scheduler.h"

namespace headrace {

// What the feeder asks of whoever made the loader; called on the feeder's thread. What they throw fails the queue.
struct FeederHooks {
  // A producer died: start another.
  std::function<void()> producer_died;
  // kExplicit: supply further batches, or end the supply. Called once more at the end of the epoch, so that it can
  // throw what ended the supply, after the batches before it.
  std::function<void()> needs_indices;
  // No batch came within the timeout: returns to wait as long again. Without it the queue fails with Timeout.
  std::function<void()> timed_out;
  // For a tree (see BatchLayout) that batches begin to have: which of their tensors is the first, which the second, and
  // so on; empty: they are in order. None: they always are.
  std::function<std::vector<size_t>(std::string_view tree)> order;
  // The error to report for a batch that could not be made.
  std::function<std::exception_ptr(const shared_memory::ReadyBatch&)> batch_failed;
};

// The tensors of a batch, in the order of its leaves; offsets become the LoD of the tensor before them. Throws
// TypeMismatch for a leaf that is not an array of a tensor's dtype, InvalidArgument for offsets that are none.
HEADRACE_API LoDTensorArray TensorsOf(const shared_memory::ReadyBatch& batch);

// Gives the rows of each tensor the declared shape where they differ from it by dimensions of 1 alone: labels of shape
// [32] become [32, 1] where [-1, 1] is declared. The elements stay where they are. Other tensors are left as
// they are, for CheckBatch or an operator to refuse.
HEADRACE_API void ShapeRowsAsDeclared(const BatchContract& contract, LoDTensorArray* batch);

class HEADRACE_API QueueFeeder {
 public:
  // Starts feeding `queue`, in its current epoch, from the scheduler's current epoch. At the end of that the queue is
  // closed, or failed with the first error. `timeout_ns`: how long a batch may take (negative: any time); then
  // FeederHooks::timed_out decides.
  QueueFeeder(std::shared_ptr<shared_memory::BatchScheduler> scheduler, std::shared_ptr<LoDTensorBlockingQueue> queue,
              FeederHooks hooks, int64_t timeout_ns = -1);
  ~QueueFeeder();
  QueueFeeder(const QueueFeeder&) = delete;
  QueueFeeder& operator=(const QueueFeeder&) = delete;

  // Ends the thread and joins it; called by a hook, only tells it to end. If the pass has not come to its end, the
  // queue is left as it is, or, if there is a `reason`, fails with FailedPrecondition, so that nobody waits for what
  // will not come.
  void Stop(const std::string& reason = {});

  // Whether all batches of the epoch have gone into the queue, which was then closed.
  bool finished() const;

 private:
  class Pass;

  bool OnFeedersThread() const;

  const std::shared_ptr<Pass> pass_;
  const pid_t owner_;
  Mutex join_mutex_;  // one Stop joins, the others wait for it
  std::unique_ptr<std::thread> thread_ HR_GUARDED_BY(join_mutex_);
  const std::thread::id thread_id_;  // also once it was joined
};

}  // namespace headrace
