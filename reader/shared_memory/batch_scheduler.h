// The main process's end of the arena: opens batches for the producers to fill, hands them to the consumer, takes
// their slots back, and repairs what a killed producer leaves behind.
//
// Which batches there are, and in which order they are opened, depends only on the options and on StartEpoch/Supply:
// never on the number of producers or their speed (batch_plan.h). At most `prefetch` batches are open and not yet
// taken; the slots of batches that the consumer keeps come on top of them.
//
// What producers write is not believed: the scheduler keeps the facts of each batch in memory of its own (OpenBatch),
// and what it takes out of a slot it copies once and checks (SlotReader). A batch that fails a check is reported as
// kCorrupt, and the producers that wrote it, as far as they are known, are ended: their deaths are reported as others
// are.
//
// Thread-safety: Wait and Take belong to one consumer thread at a time; everything else may be called from any thread.
// `mutex_` guards all members that change; it is held for microseconds, never while waiting and never while calling
// out. The shared memory is written under the rules of slot.h. After a fork the child must not use the object; dropping
// it there, or a batch of it, is safe and does nothing. Lifetime: batches keep the scheduler and its mapping alive;
// Shutdown ends the producers before that.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/export.h"
#include "framework/thread_annotations.h"
#include "reader/shared_memory/arena.h"
#include "reader/shared_memory/batch_plan.h"
#include "reader/shared_memory/consumer_sleep.h"
#include "reader/shared_memory/device_fence.h"
#include "reader/shared_memory/open_batch.h"
#include "reader/shared_memory/pinned_memory.h"
#include "reader/shared_memory/producer_watch.h"
#include "reader/shared_memory/ready_batch.h"
#include "reader/shared_memory/sample_cost.h"
#include "reader/shared_memory/slot_pool.h"
#include "reader/shared_memory/slot_reader.h"
#include "reader/shared_memory/spin.h"

namespace headrace::shared_memory {

// What keeps the consumer from its next batch.
enum class WaitOutcome {
  kBatch,         // nothing: Take it
  kEndOfEpoch,    // it was the last
  kNeedsIndices,  // kExplicit: Supply or EndSupply first
  kProducerDied,  // see TakeDeaths
  kTimedOut,
  kInterrupted,  // a signal handler ran, or Interrupt was called
  kStopped,      // Shutdown was called
};

// What a producer does, or was doing when it died.
struct HeldClaim {
  uint32_t producer = 0;
  uint64_t sequence = 0;  // names the batch among all that this scheduler ever opens
  uint64_t epoch = 0;
  uint64_t batch = 0;
  uint32_t row = 0;  // the one at hand, counted among all that were planned; of a collation 0
  ClaimKind kind = ClaimKind::kRows;
  bool at_row = false;  // it has begun with the row, and does not only prepare for its claim
};

// What a dead producer was doing. Its claim is free again, whatever it was: how often a row may end its producers is
// the caller's to decide, who counts and calls Abandon or Skip.
struct ProducerDeath : HeldClaim {
  bool busy = false;     // it held a claim; only then does the rest, but `producer`, mean anything
  bool corrupt = false;  // it was ended by the scheduler, for what it had written
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
  uint64_t bytes = 0;       // in them: leaves and what stands beside them
  uint64_t wait_ns = 0;     // spent in Wait
  uint64_t waits = 0;       // calls of Wait that found no batch ready
  uint32_t prefetch = 0;
  uint32_t open_batches = 0;
  uint32_t ready_batches = 0;  // of those, complete
  uint32_t held_slots = 0;
  uint32_t slots_used = 0;  // slots that have memory
  uint64_t resident_bytes = 0;
  uint64_t pinned_bytes = 0;
  ProducerStats all;                     // the sum of
  std::vector<ProducerStats> producers;  // each that there ever was, by its id
};

class HEADRACE_API BatchScheduler : public std::enable_shared_from_this<BatchScheduler> {
 public:
  // Throws InvalidArgument for options out of range, and what Arena::Create throws.
  static std::shared_ptr<BatchScheduler> Create(const SchedulerOptions& options);
  ~BatchScheduler();
  BatchScheduler(const BatchScheduler&) = delete;
  BatchScheduler& operator=(const BatchScheduler&) = delete;

  const std::shared_ptr<Arena>& arena() const { return arena_; }
  int completion_fd() const { return sleep_.fd(); }
  const SchedulerOptions& options() const { return options_; }
  // Batches in an epoch; not for kExplicit.
  uint64_t batches_per_epoch() const { return batches_per_epoch_; }

  // The consumer wants batch `first_batch` of `epoch` next. Batches already open are kept if they are just those, else
  // withdrawn. Memory that the last epoch did not need any more is given back to the system.
  void StartEpoch(uint64_t epoch, uint64_t first_batch = 0) { StartEpoch(EpochStart{epoch, first_batch}); }
  // The same, without the batches to skip: those have no rows, slots or claims. For kExplicit their numbers are passed
  // over by Supply. Several streams: `first_batch` is the number of the next batch that is delivered. Throws
  // InvalidArgument if a batch to skip is before the first, or for positions of streams that do not exist.
  void StartEpoch(const EpochStart& start);

  // kExplicit: appends a batch of `rows` rows to the current epoch. `indices` are rows × int64, or, if `pickled`, bytes
  // that the producer understands. Throws InvalidArgument for a number of rows out of range, ResourceExhausted if the
  // indices do not fit into a slot, FailedPrecondition before StartEpoch and after EndSupply.
  void Supply(uint64_t rows, std::string_view indices, bool pickled);
  // kExplicit: the current epoch has no further batch.
  void EndSupply();
  // kExplicit: how many more batches are needed to keep `prefetch` of them in flight; 0 after EndSupply.
  uint32_t WantedSupply() const;

  // Waits for the next batch, at most `timeout_ns` (negative: without limit). Deaths are reported before batches that
  // are ready, once. A signal that arrives just before it goes to sleep does not interrupt it: who must react to
  // signals gives a limit.
  WaitOutcome Wait(int64_t timeout_ns);
  // What Wait says if it need not wait; nothing if it must. Never blocks.
  std::optional<WaitOutcome> TryWait();
  // Makes the Wait under way, or else the next one that would sleep, return kInterrupted.
  void Interrupt();
  // The next batch, after Wait has said kBatch; without in_order the oldest that is complete.
  ReadyBatch Take();

  // Watches the process behind `pidfd`, which is duplicated; producers id … id + threads - 1 live there. Throws
  // AlreadyExists if one of them is watched, FailedPrecondition if one was retired and has not ended yet, or was killed
  // before it could end of its own accord and not reclaimed, IoError if the descriptor cannot be watched.
  void WatchProducer(uint32_t id, int pidfd, uint32_t threads = 1);
  // Asks a producer to end: its WaitForClaim gives nothing, once, when it has completed the claim that it holds. Its
  // death, then or earlier, is repaired as any other, but not reported, or not any more.
  void RetireProducer(uint32_t id);
  // For how many producers batches are cut from now on.
  void SetProducers(uint32_t producers);
  // Deaths seen by Wait since the last call. Their claims are free again.
  std::vector<ProducerDeath> TakeDeaths();
  // What producers hold now, the oldest batch's first. A look at what changes: by now it may be different.
  std::vector<HeldClaim> Claims() const;
  // Frees the claims of a producer that is known to be gone, as Wait does when it sees a death.
  ProducerDeath Reclaim(uint32_t id);

  // What becomes of a batch with a row (ProducerDeath's) that keeps ending its producers. Both return false, and do
  // nothing, if the batch is not open any more or the row is done. They take effect at once; whoever is still at work
  // on the batch may go on, in vain.
  //
  // The batch fails with kKilled at that row. Its stream, if it is one's, is over with it: nobody gets past the row.
  bool Abandon(uint64_t sequence, uint32_t row);
  // The batch is made anew, as a whole by one producer, without that row and those that were skipped before; it has
  // fewer rows then, the others in their order. A batch that has none left is not delivered. False also for a batch of
  // a stream, since nobody can pass over a sample of a stream without making it, and for more than kMaxExcluded rows:
  // then there is Abandon. True again if the row is skipped already.
  bool Skip(uint64_t sequence, uint32_t row);

  // Tells the producers to end, and Wait to return. Batches already taken stay valid; all other memory goes back to the
  // system, that of slots in which a producer is at work when this is called again after its end. Idempotent.
  void Shutdown();

  // Why batches are not locked for CUDA though pin_memory is on; empty if nothing keeps them from it, as far as is
  // known before the first is taken.
  std::string pinning_problem() const { return pinned_ == nullptr ? std::string() : pinned_->problem(); }

  SchedulerStats stats() const;
  // What has happened, as far as it is remembered (ArenaOptions::trace_events), by the time of its begin.
  std::vector<TraceEvent> Trace() const;

 private:
  using Batches = std::deque<OpenBatch>;

  BatchScheduler(const SchedulerOptions& options, BatchPlan plan);
  bool InOwner() const;

  // Opening and closing.
  void OpenBatches() HR_REQUIRES(mutex_);
  void Open(uint32_t slot, const PlannedBatch& plan) HR_REQUIRES(mutex_);
  // Writes the facts, and the words of the chunks, into the batch's slot.
  void Publish(const OpenBatch& batch) HR_REQUIRES(mutex_);
  // Opens it once more, as a whole.
  void Reopen(OpenBatch& batch) HR_REQUIRES(mutex_);
  // Nobody can claim anything of it any more.
  void CloseClaims(const OpenBatch& batch) HR_REQUIRES(mutex_);
  // It will not be delivered out of its slot. `written_over`: see SlotPool::Draining.
  void Withdraw(OpenBatch& batch, bool written_over = false) HR_REQUIRES(mutex_);
  void WithdrawAll() HR_REQUIRES(mutex_);
  void PublishOldest() HR_REQUIRES(mutex_);
  // Wakes as many producers, of those of `sleepers`.
  void SignalWork(uint32_t producers, uint32_t sleepers) HR_REQUIRES(mutex_);
  void SignalRescan() HR_REQUIRES(mutex_);

  // What has become of open batches.
  // Whether the batch can be taken. Has it made anew if it must be.
  bool IsReady(OpenBatch& batch) HR_REQUIRES(mutex_);
  // kStream: takes note of streams that have ended and drops what is open beyond their ends.
  void SettleStreams() HR_REQUIRES(mutex_);
  // The batch to be taken next, if it is ready; else open_.end().
  Batches::iterator FindReady() HR_REQUIRES(mutex_);
  // Whether Wait need not wait, and what it is to say.
  std::optional<WaitOutcome> Decided() HR_REQUIRES(mutex_);
  WaitOutcome WaitUntilDecided(int64_t timeout_ns, int64_t awake_ns, uint64_t begin_ns) HR_EXCLUDES(mutex_);

  // Repair (batch_scheduler_repair.cc).
  // The open batch of that number, if the row is not done; else open_.end().
  Batches::iterator FindUndone(uint64_t sequence, uint32_t row) HR_REQUIRES(mutex_);
  // Frees what producers leave behind that have ended.
  void NoteDeaths() HR_REQUIRES(mutex_);
  ProducerDeath ReclaimLocked(uint32_t id) HR_REQUIRES(mutex_);
  // What producer `id` does with a chunk that it holds.
  HeldClaim Describe(const BatchFacts& facts, uint32_t chunk, uint32_t id) const;
  // Appends what is held of one batch.
  void AddClaims(uint32_t slot, const BatchFacts& facts, std::vector<HeldClaim>* claims) const;
  // Of one batch. `closed`: nothing of it is to be made any more.
  void ReclaimChunks(uint32_t slot, const BatchFacts& facts, bool closed, ProducerDeath* death) HR_REQUIRES(mutex_);
  // The batch fails, for what stands in its slot; whoever is at work on it is ended, and the `author` of it, if known.
  void MarkCorrupt(OpenBatch& batch, std::string_view what, std::optional<uint32_t> author) HR_REQUIRES(mutex_);
  void EndProducer(uint32_t id) HR_REQUIRES(mutex_);
  // Looks for what stray writes have done to words that nothing else would look at: a batch that cannot go on fails,
  // the rest is put right.
  void CheckSharedState() HR_REQUIRES(mutex_);
  void CheckOpen(OpenBatch& batch) HR_REQUIRES(mutex_);

  void ReleaseSlot(uint32_t slot) HR_EXCLUDES(mutex_);
  // Slots that the consumer had, and no device reads any more.
  void FreeHeld(std::span<const uint32_t> slots) HR_EXCLUDES(mutex_);
  // Frees the slots that devices have done with (DeviceFence::TakeEnded); whether there are others.
  bool FreeEnded(bool urgent) HR_EXCLUDES(mutex_);
  // Gives the memory of free slots, which were taken out of the pool, back to the system.
  void GiveBack(const std::vector<uint32_t>& slots) HR_EXCLUDES(mutex_);
  // Where what is locked of a slot begins: the leaves, and the indices before them.
  std::byte* PinnedBegin(uint32_t slot) const { return arena_->slot_data(slot) + kDataOffset; }
  void Note(TraceKind kind, uint32_t slot, const BatchFacts& facts, uint64_t ns) HR_REQUIRES(mutex_);

  const SchedulerOptions options_;
  const std::shared_ptr<Arena> arena_;
  ControlBlock& control_;
  ArenaConstants constants_;  // as they stand in the control block
  const pid_t owner_;
  const uint64_t batches_per_epoch_;
  const uint64_t recheck_ns_;  // ArenaOptions
  const uint64_t begin_ns_;
  const std::unique_ptr<PinnedMemory> pinned_;  // null without pin_memory
  // Null without pin_memory or fence_device. Its end, before that of pinned_, waits for the devices.
  const std::unique_ptr<DeviceFence> fence_;
  ConsumerSleep sleep_;
  SpinBudget spin_;  // the consumer's
  std::atomic<int64_t> spin_ns_{0};

  mutable Mutex mutex_;
  BatchPlan plan_ HR_GUARDED_BY(mutex_);
  SlotPool slots_ HR_GUARDED_BY(mutex_);
  SlotReader reader_ HR_GUARDED_BY(mutex_);
  SampleCost cost_ HR_GUARDED_BY(mutex_);
  Batches open_ HR_GUARDED_BY(mutex_);  // in the order in which they were opened
  uint64_t next_sequence_ HR_GUARDED_BY(mutex_) = 1;
  uint64_t consumer_epoch_ HR_GUARDED_BY(mutex_) = 0;
  uint64_t consumer_batch_ HR_GUARDED_BY(mutex_) = 0;  // several streams: the number of the next batch
  bool started_ HR_GUARDED_BY(mutex_) = false;
  bool stopped_ HR_GUARDED_BY(mutex_) = false;
  bool interrupted_ HR_GUARDED_BY(mutex_) = false;
  uint32_t producers_end_ HR_GUARDED_BY(mutex_) = 1;  // ids of all producers that there ever were are below
  ProducerWatch watch_;                               // all but fd() under mutex_
  std::vector<bool> retired_ HR_GUARDED_BY(mutex_);   // by producer
  std::vector<bool> corrupt_ HR_GUARDED_BY(mutex_);   // by producer: it was ended
  std::vector<ProducerDeath> deaths_ HR_GUARDED_BY(mutex_);
  bool unreported_deaths_ HR_GUARDED_BY(mutex_) = false;
  uint64_t next_look_ns_ HR_GUARDED_BY(mutex_) = 0;   // for deaths, by the coarse clock
  uint64_t next_check_ns_ HR_GUARDED_BY(mutex_) = 0;  // of the shared state, by the coarse clock
  TraceRing trace_ HR_GUARDED_BY(mutex_);
  std::vector<BatchFacts> held_facts_;  // by slot, if there is a trace; the elements under mutex_
  SchedulerStats stats_ HR_GUARDED_BY(mutex_);
};

}  // namespace headrace::shared_memory
