// The main process's end of the arena: opens batches for producers to fill (open_batches.h), hands them to the
// consumer, takes their slots back, and repairs what killed producers leave behind (arena_repair.h). What is here is
// what ties these together: the mutex that guards them, the consumer's wait, and the hand-over of batches and slots.
// The worker's end, which claims rows, is batch_producer.h.
//
// Which batches there are, and in which order they open, depends only on the options and on StartEpoch and Supply,
// never on the number of producers or their speed (batch_plan.h). At most `prefetch` batches are open and not yet
// taken, fewer if they are large and these suffice (prefetch_depth.h); the slots of batches that the consumer keeps
// come on top.
//
// The scheduler does not trust what producers write: it keeps the facts of each batch in private memory (OpenBatch),
// and copies and checks whatever it reads from a slot (SlotReader). A batch that fails a check is reported as kCorrupt,
// and the producers known to have written it are killed; their deaths are reported like any other.
//
// No wait is in vain: while the consumer waits, it looks again and again for what cannot come
// (ArenaRepair::CheckSharedState).
//
// Thread-safety: Wait and Take belong to one consumer thread at a time; everything else may be called from any thread.
// `mutex_` guards all members that change; it is held for microseconds, never while waiting or calling out. The shared
// memory is written under the rules of slot.h. After a fork the object is the parent's: in the child every method
// throws FailedPrecondition before it touches anything (OwnerLock); dropping it there, or a batch of it, does nothing.
// The batches that the consumer held at the fork keep their contents for the child: their slots are not used again
// while it lives (forked_children.h). Lifetime: batches keep the scheduler and its mapping alive; Shutdown ends the
// producers before that.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/export.h"
#include "framework/thread_annotations.h"
#include "reader/shared_memory/arena/arena.h"
#include "reader/shared_memory/arena/trace.h"
#include "reader/shared_memory/arena_repair.h"
#include "reader/shared_memory/batches/batch_plan.h"
#include "reader/shared_memory/batches/open_batches.h"
#include "reader/shared_memory/batches/ready_batch.h"
#include "reader/shared_memory/cuda/slot_memory.h"
#include "reader/shared_memory/producers/producer_death.h"
#include "reader/shared_memory/producers/producer_table.h"
#include "reader/shared_memory/waiting/consumer_sleep.h"
#include "reader/shared_memory/waiting/nap.h"
#include "reader/shared_memory/waiting/spin.h"

namespace headrace::shared_memory {

// Of the FailedPrecondition that a process gets which is a fork of the one that the batches belong to.
inline constexpr const char* kNotTheOwner =
    "this iteration belongs to the process in which it was started; start a new iteration in this one";

// What the consumer's wait for its next batch came to.
enum class WaitOutcome {
  kBatch,         // it is ready: Take it
  kEndOfEpoch,    // there is none: the last one was taken
  kNeedsIndices,  // kExplicit: Supply or EndSupply first
  kProducerDied,  // see TakeDeaths
  kTimedOut,
  kInterrupted,  // a signal handler ran, or Interrupt was called
  kStopped,      // Shutdown was called
};

struct ProducerStats {
  uint64_t samples = 0;
  uint64_t claims = 0;
  uint64_t work_ns = 0;  // spent on claims; of it:
  uint64_t dataset_ns = 0;
  uint64_t collate_ns = 0;
  uint64_t copy_ns = 0;
  uint64_t wait_ns = 0;  // spent waiting for work
};

struct SchedulerStats {
  uint64_t elapsed_ns = 0;  // since the scheduler was made
  uint64_t batches = 0;     // taken
  uint64_t bytes = 0;       // in them: leaves and side data
  uint64_t wait_ns = 0;     // spent in Wait
  uint64_t waits = 0;       // calls of Wait that found no batch ready
  uint32_t prefetch = 0;    // batches kept open now: the option, or fewer large ones
  uint32_t open_batches = 0;
  uint32_t ready_batches = 0;  // of those, complete
  uint32_t held_slots = 0;
  uint32_t slots_used = 0;  // slots that occupy memory
  uint64_t resident_bytes = 0;
  uint64_t pinned_bytes = 0;
  ProducerStats all;                     // the sum of `producers`
  std::vector<ProducerStats> producers;  // every producer so far, by its id
};

class HEADRACE_API BatchScheduler : public std::enable_shared_from_this<BatchScheduler> {
 public:
  // Throws InvalidArgument for options out of range, and whatever Arena::Create throws.
  static std::shared_ptr<BatchScheduler> Create(const SchedulerOptions& options);
  ~BatchScheduler();
  BatchScheduler(const BatchScheduler&) = delete;
  BatchScheduler& operator=(const BatchScheduler&) = delete;

  // Throws FailedPrecondition in a fork of the process that created it, to which it belongs.
  void RequireOwner() const;

  const std::shared_ptr<Arena>& arena() const { return arena_; }
  int completion_fd() const { return sleep_.fd(); }
  const SchedulerOptions& options() const { return options_; }
  // Batches in an epoch; not for kExplicit.
  uint64_t batches_per_epoch() const { return batches_per_epoch_; }

  // The consumer wants batch `first_batch` of `epoch` next. Open batches are kept if they are exactly those that
  // follow, of the same revision, and withdrawn otherwise. Memory that the last epoch no longer needed is returned to
  // the system.
  void StartEpoch(uint64_t epoch, uint64_t first_batch = 0) { StartEpoch(EpochStart{epoch, first_batch}); }
  // The same, leaving out batches to skip, which have no rows, slots or claims. For kExplicit, Supply passes over their
  // numbers. With several streams, `first_batch` is the number of the next batch delivered. Throws InvalidArgument if a
  // batch to skip comes before the first, or for positions of streams that do not exist.
  void StartEpoch(const EpochStart& start);

  // kExplicit: appends a batch of `rows` rows to the current epoch. `indices` are rows × int64 or, if `pickled`, bytes
  // that the producer understands. Throws InvalidArgument for a number of rows out of range, ResourceExhausted if the
  // indices do not fit in a slot, FailedPrecondition before StartEpoch or after EndSupply.
  void Supply(uint64_t rows, std::string_view indices, bool pickled);
  // kExplicit: the current epoch has no further batch.
  void EndSupply();
  // kExplicit: how many more batches it takes to keep `prefetch` of them in flight; 0 after EndSupply.
  uint32_t WantedSupply() const;

  // Waits for the next batch, for at most `timeout_ns` (negative: without limit). Deaths are reported once, ahead of
  // batches that are ready. A signal that arrives just before the wait goes to sleep does not interrupt it: callers
  // that must react to signals set a limit.
  WaitOutcome Wait(int64_t timeout_ns);
  // The outcome if Wait would return at once; nothing if it would have to wait. Never blocks.
  std::optional<WaitOutcome> TryWait();
  // Makes the current Wait, or else the next one that would sleep, return kInterrupted.
  void Interrupt();
  // The next batch, after Wait returned kBatch; without in_order, the oldest one that is complete.
  ReadyBatch Take();
  // What the producer attached that reported the end of a stream of this epoch, with its last batch or after it; empty
  // if none did. Once Wait has returned kEndOfEpoch, no other follows. Throws OutOfRange for a stream that does not
  // exist.
  std::string StreamEndAttachment(uint32_t stream) const;

  // Watches the process behind `pidfd` (duplicated), in which producers id … id + threads - 1 live. Throws
  // AlreadyExists if one of them is watched already, FailedPrecondition if one was retired and has not ended, or was
  // killed before it could end by itself and has not been reclaimed, IoError if the descriptor cannot be watched.
  void WatchProducer(uint32_t id, int pidfd, uint32_t threads = 1);
  // Asks a producer to end: once it has completed the claim that it holds, its WaitForClaim returns nothing, one time.
  // Its death, then or earlier, is repaired like any other, but not reported (any more).
  void RetireProducer(uint32_t id);
  // The number of producers to cut batches for from now on.
  void SetProducers(uint32_t producers);
  // Deaths seen by Wait since the last call. Their claims are free again.
  std::vector<ProducerDeath> TakeDeaths();
  // What producers hold, the oldest batch first. A snapshot that may be outdated when it returns.
  std::vector<HeldClaim> Claims() const;
  // Frees the claims of a producer that is known to be dead, as Wait does when it sees a death.
  ProducerDeath Reclaim(uint32_t id);
  // The consumer cannot read what the author of a batch (ReadyBatch) has written: kills that producer, if it is
  // watched, like the author of anything else that is corrupt. If it has died since, that hits its successor, which is
  // replaced.
  void Accuse(uint32_t author);

  // What to do with a batch that has a row (ProducerDeath::row) that keeps killing its producers. Both return false and
  // do nothing if the batch is no longer open or the row is done. They take effect at once; a producer still at work on
  // the batch may go on, in vain.
  //
  // The batch fails with kKilled at that row. A stream ends with it, because nobody can get past the row.
  bool Abandon(uint64_t sequence, uint32_t row);
  // One producer makes the batch again as a whole, without that row and those skipped before; the remaining rows keep
  // their order. A batch with no rows left is not delivered. Also returns false for a batch of a stream, since nobody
  // can pass a sample of a stream without making it, and beyond kMaxExcluded rows: call Abandon then. Returns true if
  // the row is skipped already.
  bool Skip(uint64_t sequence, uint32_t row);

  // Tells the producers to end, and Wait to return. Batches already taken stay valid; all other memory is returned to
  // the system, except slots in which a producer is still at work: those follow when this is called again after that
  // producer's end. Idempotent.
  void Shutdown();

  // Why batches are not page-locked for CUDA although pin_memory is on; empty if nothing prevents it, as far as is
  // known before the first one is taken.
  std::string pinning_problem() const { return memory_.pinning_problem(); }

  SchedulerStats stats() const;
  // The events still recorded (ArenaOptions::trace_events), ordered by their start.
  std::vector<TraceEvent> Trace() const;

 private:
  // Holds mutex_, in the owner only: every method that needs it begins with one, so none of them touches in a fork what
  // it shares with its parent, or waits for a mutex that a thread of the parent held.
  class HR_THREAD_ATTRIBUTE(scoped_lockable) OwnerLock {
   public:
    explicit OwnerLock(const BatchScheduler& scheduler) HR_THREAD_ATTRIBUTE(acquire_capability(scheduler.mutex_))
        : lock_((scheduler.RequireOwner(), scheduler.mutex_)) {}
    ~OwnerLock() HR_THREAD_ATTRIBUTE(release_capability()) {}
    OwnerLock(const OwnerLock&) = delete;
    OwnerLock& operator=(const OwnerLock&) = delete;

   private:
    MutexLock lock_;
  };

  BatchScheduler(const SchedulerOptions& options, BatchPlan plan);
  bool InOwner() const;

  // The outcome of a Wait that need not wait, if so.
  std::optional<WaitOutcome> Decided() HR_REQUIRES(mutex_);
  // From time to time, looks whether producers or forked children have ended.
  void LookForEnds(uint64_t now_ns) HR_REQUIRES(mutex_);
  WaitOutcome WaitUntilDecided(int64_t timeout_ns, int64_t awake_ns, uint64_t begin_ns) HR_EXCLUDES(mutex_);
  // See NapLength. False if a signal handler ran.
  bool Nap(int64_t timeout_ns) HR_EXCLUDES(mutex_);

  // What the consumer gets of a batch that was taken; it holds the slot from here on.
  ReadyBatch HandOut(OpenBatch& batch) HR_REQUIRES(mutex_);
  // Counts and traces that. Returns how many bytes of memory the batch takes, 0 if it has no rows.
  uint64_t NoteHandOut(const OpenBatch& batch, const ReadyBatch& ready) HR_REQUIRES(mutex_);

  // What keeps a slot that the consumer got from being used again.
  struct TakenSlot {
    uint64_t forks = 0;             // of ForkedChildren, when the consumer got it
    bool in_use = false;            // by the consumer, or by a device after that
    bool read_by_children = false;  // that were forked while the consumer had it
  };

  void ReleaseSlot(uint32_t slot) HR_EXCLUDES(mutex_);
  // Neither the consumer nor a device uses these slots any more.
  void FreeHeld(std::span<const uint32_t> slots) HR_EXCLUDES(mutex_);
  void FreeIfUnused(uint32_t slot) HR_REQUIRES(mutex_);
  // Looks whether children have ended that kept slots from being used again; whether one has freed any.
  bool FreeUnread() HR_REQUIRES(mutex_);
  // Frees the slots that devices have finished with (DeviceFence::TakeEnded); returns whether others remain.
  bool FreeEnded(bool urgent) HR_EXCLUDES(mutex_);
  // Returns the memory of free slots, which the caller has taken out of the pool, to the system.
  void GiveBack(const std::vector<uint32_t>& slots) HR_EXCLUDES(mutex_);

  const SchedulerOptions options_;
  const std::shared_ptr<Arena> arena_;
  ControlBlock& control_;
  const pid_t owner_;
  const uint64_t batches_per_epoch_;
  const uint64_t recheck_ns_;  // ArenaOptions
  const uint64_t begin_ns_;
  SlotMemory memory_;
  ConsumerSleep sleep_;
  SpinBudget spin_;  // the consumer's
  NapLength nap_;    // the consumer's
  std::atomic<int64_t> spin_ns_{0};

  mutable Mutex mutex_;
  TraceRing trace_ HR_GUARDED_BY(mutex_);
  ProducerTable producers_;  // all but fd() under mutex_
  OpenBatches batches_ HR_GUARDED_BY(mutex_);
  ArenaRepair repair_ HR_GUARDED_BY(mutex_);
  uint64_t consumer_batch_ HR_GUARDED_BY(mutex_) = 0;  // several streams: the number of the next batch
  bool interrupted_ HR_GUARDED_BY(mutex_) = false;
  uint64_t next_look_ns_ HR_GUARDED_BY(mutex_) = 0;     // for ends, by the coarse clock
  uint64_t next_check_ns_ HR_GUARDED_BY(mutex_) = 0;    // of the shared state, by the coarse clock
  std::vector<BatchFacts> held_facts_;                  // by slot, if there is a trace; the elements under mutex_
  std::vector<TakenSlot> taken_ HR_GUARDED_BY(mutex_);  // by slot
  uint32_t with_consumer_ HR_GUARDED_BY(mutex_) = 0;    // slots; devices' and children's are not counted
  std::vector<uint32_t> read_by_children_ HR_GUARDED_BY(mutex_);
  SchedulerStats stats_ HR_GUARDED_BY(mutex_);
};

}  // namespace headrace::shared_memory
