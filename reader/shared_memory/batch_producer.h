// A worker's end of the arena: claims rows of open batches, writes them in place, and reports them done.
//
//   BatchProducer producer(arena, id, completion_fd);
//   while (std::optional<Claim> claim = producer.WaitForClaim()) {
//     for (uint32_t row = claim->begin; row < claim->end; ++row) {
//       producer.BeginRow(*claim, row);
//       … make the sample producer.IndexAt(*claim, row), write it to its row …
//     }
//     producer.Complete(*claim);
//   }
//
// Thread-safety: one thread per BatchProducer; any number of producers, in any process, per arena. `id` is unique among
// the living. Crash-safety: the process may be killed at any instruction; see SlotHeader. Stray writes to the control
// block cannot stop the scheduler; a producer that acts on them makes rows in vain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "framework/export.h"
#include "reader/index_permutation.h"
#include "reader/shared_memory/arena/arena.h"
#include "reader/shared_memory/arena/batch_layout.h"
#include "reader/shared_memory/waiting/spin.h"

namespace headrace::shared_memory {

// Rows [begin, end) of a batch, which the claimant makes. Rows excluded from the batch do not count: the others are
// numbered without gaps.
struct Claim {
  uint32_t slot;
  uint32_t chunk;
  uint32_t begin;
  uint32_t end;
  uint32_t rows;      // of the whole batch
  uint32_t excluded;  // number of planned rows that are not made
  uint32_t chunks;    // of the whole batch
  ClaimKind kind;
  uint32_t stream;
  uint32_t deaths;  // producers that have died at it: pausing before its rows tells their deaths from others
  uint64_t sequence;
  uint64_t epoch;
  uint64_t batch;  // kStream: in its stream
  uint64_t first_position;
  uint64_t revision;  // of the dataset that its rows are made from
  uint64_t start_ns;
};

// A sample that lies in the slot.
struct KeptSample {
  std::span<std::byte> message;
  std::vector<std::span<std::byte>> buffers;
};

class HEADRACE_API BatchProducer {
 public:
  // `completion_fd`: the eventfd that wakes the consumer; not owned. Throws OutOfRange if id >= kMaxProducers, DataLoss
  // if the arena's constants were overwritten.
  BatchProducer(std::shared_ptr<Arena> arena, uint32_t id, int completion_fd);

  Arena& arena() const { return *arena_; }
  uint32_t id() const { return id_; }

  // The next free rows of the oldest open batch that has some, or nothing.
  std::optional<Claim> TryClaim();

  // Like TryClaim, but sleeps until there are some. Returns nothing once the scheduler has stopped or has retired this
  // producer, or after `timeout_ns` (negative: no limit).
  std::optional<Claim> WaitForClaim(int64_t timeout_ns = -1);
  bool stopped() const;

  // Whether an open batch before the claim's, all of which is made in one go, has killed producers and is not made yet;
  // one that is given up stays so until its slot is used again. Any of them may be closed at the same time.
  bool HasTrialBefore(const Claim& claim) const;
  // Whether the claim's batch may still be delivered. If not, the claim has to be ended nevertheless.
  bool IsOpen(const Claim& claim) const;

  // The row's number among all planned rows, excluded ones included.
  uint32_t PlannedRow(const Claim& claim, uint32_t row) const;
  // The row's index in the dataset; for batches without pickled indices. Throws DataLoss if a stray write hit what
  // tells it, as far as that can be seen.
  uint64_t IndexAt(const Claim& claim, uint32_t row);
  // IndexAt of each of the claim's rows, in one go.
  std::vector<uint64_t> Indices(const Claim& claim);
  // The pickled indices of all planned rows of the batch; empty if it has none.
  std::string_view PickledIndices(const Claim& claim) const;
  // Where the leaves of the batch start.
  size_t DataOffset(const Claim& claim) const;

  // Records the current sample, for the report if this process dies.
  void BeginRow(const Claim& claim, uint32_t row) {
    record_->row.store(PlannedRow(claim, row), std::memory_order_relaxed);
  }

  // Gives the batch its layout, or compares: returns true if the batch's layout is now `layout`, false if another
  // producer gave it a different one. Waits while another producer is writing it. Throws FailedPrecondition if the
  // scheduler stops meanwhile.
  bool PublishLayout(const Claim& claim, std::string_view layout);
  // As PublishLayout, but returns nothing if it would have to sleep.
  std::optional<bool> TryPublishLayout(const Claim& claim, std::string_view layout);

  // Start of the slot, from which the layout's offsets count.
  std::byte* Data(const Claim& claim) const { return arena_->slot_data(claim.slot); }

  // Allocates `bytes` bytes of side data, aligned to 64. Throws ResourceExhausted if the slot is full. Other claimants
  // may call it at the same time; what a killed one allocated is lost until the slot is reused.
  SideRecord AllocateSide(const Claim& claim, size_t bytes, size_t leaves_end);

  // kItems: copies a sample, a message and its buffers, into the slot for the collation. Throws ResourceExhausted if
  // the slot is full.
  void Keep(const Claim& claim, uint32_t row, std::string_view message, const std::vector<std::string_view>& buffers);
  // kCollate: the samples that were kept, by row. They lie in the slot, their buffers aligned to 64, and the claimant
  // may change them. Throws DataLoss if a stray write hit the records that locate them.
  std::vector<KeptSample> Kept(const Claim& claim) const;
  // The offset that leaves must not cross, so that they do not overwrite the side data allocated so far.
  size_t LeavesLimit(const Claim& claim) const;

  // For a claimant that makes its batch alone (MakesBatch); a producer holds one such claim at a time. What it reports
  // takes effect when the claim ends, and is lost if this process dies before.
  //
  // Drops the layout that this claimant has published, so that it can publish another.
  void DropLayout(const Claim& claim);
  // The batch has fewer rows than planned; its layout has the same number.
  void SetRows(const Claim& claim, uint32_t rows);
  // kStream: whether the stream has more batches. With kBefore this one is not delivered.
  void SetStreamEnd(const Claim& claim, StreamEnd end);
  // Attaches bytes that travel with the batch or, with kBefore, with the end of its stream. Throws ResourceExhausted if
  // the slot is full. Publish the layout, if there is one, first.
  void Attach(const Claim& claim, std::string_view bytes);

  // Adds to the counters of what the claim's time was spent on. Call it before the claim ends.
  void AddTime(uint64_t dataset_ns, uint64_t collate_ns, uint64_t copy_ns);

  // Ends a claim. The claim must not be used afterwards.
  void Complete(const Claim& claim);
  // How many bytes a message to Fail may have now; others may use some of the room meanwhile.
  size_t MessageRoom(const Claim& claim) const;
  // Ends a claim whose rows, from `row` on, could not be made: kFailed or kMismatch. `message` is copied into the slot;
  // if there is no room for it, the batch fails without one.
  void Fail(const Claim& claim, uint32_t row, ProblemKind kind, std::string_view message);

 private:
  std::optional<Claim> TryClaimChunk(uint64_t sequence);
  // Where the row is in its epoch or, where the order is explicit, in the dataset.
  uint64_t PositionOf(const Claim& claim, uint32_t row) const;
  // The order of the claim's epoch, where that is shuffled.
  const IndexPermutation& PermutationOf(const Claim& claim);
  // The claim on a chunk whose word names this producer.
  Claim Begin(uint32_t slot, uint32_t chunk);
  void MarkDone(const Claim& claim, bool failed);
  // The offset below which side data must not grow.
  size_t LeavesEnd(const Claim& claim) const;
  // Whether this producer may claim the collation of a batch with `chunks` chunks now.
  bool MayCollate(const SlotHeader& slot, uint64_t sequence, uint32_t chunks) const;
  // The table of SideRecords at the slot's end that locates the kept samples.
  SideRecord* KeptTable(const Claim& claim) const;
  KeptSample KeptAt(const Claim& claim, const SideRecord& place) const;
  // Has all producers rescan from the oldest batch, and wakes those whose bits are in `sleepers`.
  void SignalRescan(uint32_t sleepers);
  // Whether the scheduler has asked this producer to end; returns true only once.
  bool Retired();
  // Sleeps until work_signal differs from `signal`, for at most `timeout_ns` and at most recheck_ms.
  void Sleep(uint32_t signal, int64_t timeout_ns);

  std::shared_ptr<Arena> arena_;
  ControlBlock* control_;
  const ArenaConstants constants_;
  ProducerRecord* record_;
  uint32_t id_;
  int completion_fd_;
  uint64_t scan_from_ = 0;  // earlier batches have no free chunk, as far as this producer knows
  uint32_t rescan_seen_ = 0;
  SpinBudget spin_;
  TraceRing trace_;
  BatchEnd end_{};  // of the claimed batch that this producer makes
  std::optional<IndexPermutation> permutation_;
  uint64_t permutation_epoch_ = 0;
};

inline uint32_t BatchProducer::PlannedRow(const Claim& claim, uint32_t row) const {
  const SlotHeader& slot = arena_->slot(claim.slot);
  for (uint32_t i = 0; i < claim.excluded && slot.excluded[i] <= row; ++i) {
    ++row;
  }
  return row;
}

}  // namespace headrace::shared_memory
