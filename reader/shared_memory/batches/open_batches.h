// The batches that are open: planned, in a slot, and not yet taken. Opens them, shows producers what there is to claim,
// sees which are done, and closes them.
//
// All that leads producers to work is written here and nowhere else: a slot's facts and the words of its chunks, the
// control block's ring, `oldest`, `next` and the two signals. It is written anew whenever a check finds that somebody
// else has written there (RestoreControlBlock).
//
// A batch is closed (CloseClaims) before its slot is anybody else's or it is made again: from then on nobody can claim
// a part of it, and once those who have claimed one are done, nobody writes to the slot.
//
// Thread-safety: none; BatchScheduler guards it with its mutex, held for microseconds. The shared memory is written
// under the rules of slot.h.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/export.h"
#include "reader/shared_memory/arena/arena.h"
#include "reader/shared_memory/arena/trace.h"
#include "reader/shared_memory/batches/batch_plan.h"
#include "reader/shared_memory/batches/open_batch.h"
#include "reader/shared_memory/batches/prefetch_depth.h"
#include "reader/shared_memory/batches/sample_cost.h"
#include "reader/shared_memory/batches/slot_pool.h"
#include "reader/shared_memory/batches/slot_reader.h"
#include "reader/shared_memory/producers/producer_table.h"

namespace headrace::shared_memory {

class HEADRACE_API OpenBatches {
 public:
  // Why the next batch cannot be taken now.
  enum class Next {
    kReady,         // it can
    kBeingMade,     // or not yet open
    kEndOfEpoch,    // there is none
    kNeedsIndices,  // kExplicit: it has not been supplied
  };

  // All that is passed must outlive it.
  OpenBatches(const SchedulerOptions& options, BatchPlan plan, Arena& arena, ProducerTable& producers,
              TraceRing& trace);

  // --- The consumer's calls; see the methods of BatchScheduler of these names ---
  void StartEpoch(const EpochStart& start);
  bool started() const { return started_; }
  uint64_t epoch() const { return epoch_; }  // which was started last
  void Supply(uint64_t rows, std::string_view indices, bool pickled);
  void EndSupply() { plan_.EndSupply(); }
  uint32_t WantedSupply() const;
  uint64_t batches_per_epoch() const { return plan_.batches_per_epoch(); }
  const std::string& StreamEndAttachment(uint32_t stream) const;
  bool Abandon(uint64_t sequence, uint32_t row);
  bool Skip(uint64_t sequence, uint32_t row);
  // Closes all batches and tells producers to end. Nothing opens any more.
  void Stop();
  bool stopped() const { return stopped_; }

  // What the consumer can expect next.
  Next LookAtNext();
  // Takes the next batch out; nothing if none is ready. The caller closes its claims if it has a slot, and then has the
  // producers advance.
  std::optional<OpenBatch> TakeReady();
  // Another batch is the oldest now, and others can open.
  void Advance();
  // What was taken took so many bytes of memory. Returns whether slots that were not used lately will not be soon.
  bool NoteTaken(uint64_t bytes) { return depth_.Taken(bytes, depth_.adapts() ? CountReady() : 0); }

  // --- Opening ---
  // As many as are to be open, and as there are slots for.
  void Open();
  // The consumer waits for a batch, or had to wait: opens more of them if producers have nothing to do.
  void OpenMore();
  // Whether OpenMore may do so at all.
  bool may_open_more() const { return depth_.adapts(); }
  // The number of producers to cut batches for from now on, and how long they spin before they sleep.
  void SetProducers(uint32_t producers, int64_t spin_ns);
  // Wakes up to `producers` of those whose bits are in `sleepers`.
  void WakeProducers(uint32_t producers, uint32_t sleepers);
  // Has all producers look for work again, from the oldest batch on.
  void HaveAllLookAgain();

  // --- Closing ---
  // Withdraws the unclaimed chunks of a batch: nothing of it can be claimed any more.
  void CloseClaims(const OpenBatch& batch);
  // The batch fails because of its slot's content; kills the producers at work on it, and the `author`, if known.
  void FailCorrupt(OpenBatch& batch, std::string_view what, std::optional<uint32_t> author);

  // --- For repair ---
  std::deque<OpenBatch>& batches() { return batches_; }  // in the order in which they were opened
  const std::deque<OpenBatch>& batches() const { return batches_; }
  SlotPool& slots() { return slots_; }
  const SlotPool& slots() const { return slots_; }
  SlotReader& reader() { return reader_; }
  const ArenaConstants& constants() const { return constants_; }
  // Writes the control block anew, as it should be.
  void RestoreControlBlock();

  // How many open batches can be taken.
  uint32_t CountReady() const;
  // Whether a producer sleeps because no more batches may be open.
  bool AnyHeldUp() const { return batches_.size() >= depth_.value() && AnySleeper(control_, producers_.end()); }
  // How many batches are kept open now.
  uint32_t depth() const { return depth_.value(); }

 private:
  void OpenIn(uint32_t slot, PlannedBatch plan);
  // Writes the facts, and the words of the chunks, into the batch's slot.
  void Publish(const OpenBatch& batch);
  void PublishOldest();
  // Opens it once more, as a whole.
  void Reopen(OpenBatch& batch);
  // The batch will not be delivered from its slot. `written_over`: see SlotPool::Draining.
  void Withdraw(OpenBatch& batch, bool written_over = false);
  void WithdrawAll();

  // Whether the batch can be taken. Reopens it if it has to be made again.
  bool IsReady(OpenBatch& batch);
  // kStream: notes which streams have ended, and drops open batches beyond their ends.
  void SettleStreams();
  // The batch to be taken next, if it is ready; else the end.
  std::deque<OpenBatch>::iterator FindReady();
  // The open batch with that number, unless the row is done; else the end.
  std::deque<OpenBatch>::iterator FindUndone(uint64_t sequence, uint32_t row);

  const SchedulerOptions& options_;
  Arena& arena_;
  ControlBlock& control_;
  ArenaConstants constants_;  // those in the control block
  ProducerTable& producers_;
  TraceRing& trace_;
  BatchPlan plan_;
  SlotPool slots_;
  SlotReader reader_;
  SampleCost cost_;
  PrefetchDepth depth_;
  std::deque<OpenBatch> batches_;
  uint64_t next_sequence_ = 1;
  uint64_t epoch_ = 0;  // the consumer's
  uint64_t revision_ = 0;
  std::vector<std::string> stream_ends_;  // kStream: StreamEndAttachment, by stream
  int64_t spin_ns_ = 0;                   // the producers'
  bool started_ = false;
  bool stopped_ = false;
};

}  // namespace headrace::shared_memory
