// What the scheduler does about producers that end, rows that kill them, and words that were overwritten.
#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "framework/errors.h"
#include "reader/shared_memory/batch_scheduler.h"
#include "reader/shared_memory/futex.h"

namespace headrace::shared_memory {
namespace {

void CheckProducer(uint32_t id) {
  HR_ENFORCE(id < kMaxProducers, OutOfRange, "producer ", id, " is beyond the limit of ", kMaxProducers);
}

}  // namespace

void BatchScheduler::WatchProducer(uint32_t id, int pidfd, uint32_t threads) {
  HR_ENFORCE(threads >= 1 && threads <= kMaxProducers, InvalidArgument, "a process has 1 to ", kMaxProducers,
             " producers, got ", threads);
  CheckProducer(id);
  CheckProducer(id + threads - 1);
  const OwnerLock lock(*this);
  for (uint32_t each = id; each < id + threads; ++each) {
    if (!watch_.Watches(each)) {
      continue;
    }
    HR_ENFORCE(retired_[each], AlreadyExists, "producer ", each, " is watched already");
    // Its successor may have claims by now, so it is too late to look for those of the old one.
    HR_ENFORCE(watch_.HasEnded(each) &&
                   control_.producers[each].retirement.load(std::memory_order_acquire) == Retirement::kRetired,
               FailedPrecondition, "producer ", each,
               " was retired and has not ended, or was killed then: its id is free after Reclaim");
    watch_.Remove(each);
  }
  watch_.Add(id, threads, pidfd);
  for (uint32_t each = id; each < id + threads; ++each) {
    if (retired_[each]) {
      lost_.Begin(each, control_.producers[each]);
    }
    retired_[each] = false;
    corrupt_[each] = false;
    control_.producers[each].retirement.store(Retirement::kServes, std::memory_order_relaxed);
  }
  producers_end_ = std::max(producers_end_, id + threads);
}

HeldClaim BatchScheduler::Describe(const BatchFacts& facts, uint32_t chunk, uint32_t id) const {
  const ProducerRecord& record = control_.producers[id];
  HeldClaim claim;
  claim.producer = id;
  claim.sequence = facts.sequence;
  claim.epoch = facts.epoch;
  claim.batch = facts.batch;
  claim.kind = facts.KindOf(chunk);
  claim.row = facts.RowsBegin(chunk);
  const uint32_t noted = record.row.load(std::memory_order_relaxed);
  if (record.sequence.load(std::memory_order_acquire) == facts.sequence && noted != kNoRow) {
    claim.at_row = true;
    claim.row = std::clamp(noted, claim.row, facts.RowsEnd(chunk) - 1);
  }
  return claim;
}

void BatchScheduler::AddClaims(uint32_t slot, const BatchFacts& facts, std::vector<HeldClaim>* claims) const {
  const SlotHeader& header = arena_->slot(slot);
  for (uint32_t chunk = 0; chunk < facts.chunks; ++chunk) {
    const uint64_t word = header.claims[chunk].load(std::memory_order_acquire);
    if (IsClaimed(word, facts.sequence) && IsValid(word, facts.sequence)) {
      claims->push_back(Describe(facts, chunk, static_cast<uint32_t>(Claimant(word) - 1)));
    }
  }
}

void BatchScheduler::AddAllClaims(std::vector<HeldClaim>* claims) const {
  for (const OpenBatch& batch : open_) {
    if (batch.has_slot) {
      AddClaims(batch.slot, batch.facts, claims);
    }
  }
  for (const SlotPool::Draining& draining : slots_.draining()) {
    AddClaims(draining.slot, draining.facts, claims);
  }
}

std::vector<HeldClaim> BatchScheduler::Claims() const {
  std::vector<HeldClaim> claims;
  {
    const OwnerLock lock(*this);
    AddAllClaims(&claims);
  }
  std::sort(claims.begin(), claims.end(), [](const HeldClaim& a, const HeldClaim& b) {
    return std::tie(a.sequence, a.producer) < std::tie(b.sequence, b.producer);
  });
  return claims;
}

void BatchScheduler::RetireProducer(uint32_t id) {
  CheckProducer(id);
  const OwnerLock lock(*this);
  retired_[id] = true;
  std::erase_if(deaths_, [id](const ProducerDeath& death) { return death.producer == id; });
  unreported_deaths_ = unreported_deaths_ && !deaths_.empty();
  control_.producers[id].retirement.store(Retirement::kToRetire);
  SignalWork(kMaxProducers, SleeperBit(id));
}

void BatchScheduler::NoteDeaths() {
  for (const uint32_t id : watch_.TakeEnded()) {
    const bool retired = retired_[id];
    if (retired && control_.producers[id].retirement.load(std::memory_order_acquire) == Retirement::kRetired) {
      continue;  // it left no claim, and a successor may have some already
    }
    RestoreControlBlock();  // a stray write there may have ended it, and would end its successor
    const ProducerDeath death = ReclaimLocked(id);
    if (!retired) {
      deaths_.push_back(death);
      unreported_deaths_ = true;
    }
  }
}

std::vector<ProducerDeath> BatchScheduler::TakeDeaths() {
  const OwnerLock lock(*this);
  unreported_deaths_ = false;
  return std::exchange(deaths_, {});
}

ProducerDeath BatchScheduler::Reclaim(uint32_t id) {
  CheckProducer(id);
  const OwnerLock lock(*this);
  const ProducerDeath death = ReclaimLocked(id);
  sleep_.Wake();  // it may have been the last at work on a batch that is to be made again
  return death;
}

void BatchScheduler::Accuse(uint32_t author) {
  const OwnerLock lock(*this);
  EndProducer(author);
}

ProducerDeath BatchScheduler::ReclaimLocked(uint32_t id) {
  watch_.Remove(id);
  ProducerDeath death;
  death.producer = id;
  death.corrupt = corrupt_[id];
  retired_[id] = false;
  corrupt_[id] = false;
  for (const OpenBatch& batch : open_) {
    if (batch.has_slot) {
      ReclaimChunks(batch.slot, batch.facts, batch.remake, &death);
    }
  }
  for (const SlotPool::Draining& draining : slots_.draining()) {
    ReclaimChunks(draining.slot, draining.facts, true, &death);
  }
  ProducerRecord& record = control_.producers[id];
  // Here, since no successor has started yet: one may claim before it is watched.
  lost_.Begin(id, record);
  record.busy.store(0, std::memory_order_relaxed);
  record.retirement.store(Retirement::kServes, std::memory_order_relaxed);
  control_.sleepers[id / 64].fetch_and(~(uint64_t{1} << id % 64));
  // Even if it held nothing: it may have been woken for work that the others are sleeping through.
  SignalRescan();
  return death;
}

void BatchScheduler::ReclaimChunks(uint32_t slot, const BatchFacts& facts, bool closed, ProducerDeath* death) {
  SlotHeader& header = arena_->slot(slot);
  const uint64_t sequence = facts.sequence;
  uint32_t writing = LayoutWriting(death->producer);
  header.layout_state.compare_exchange_strong(writing, kLayoutEmpty);
  for (uint32_t chunk = 0; chunk < facts.chunks; ++chunk) {
    uint64_t claimed = ClaimWord(sequence, kChunkClaimed, death->producer);
    if (header.claims[chunk].load(std::memory_order_acquire) != claimed) {
      continue;
    }
    static_cast<HeldClaim&>(*death) = Describe(facts, chunk, death->producer);
    death->busy = true;
    if (death->at_row && header.deaths[chunk].load(std::memory_order_relaxed) < 255) {
      header.deaths[chunk].fetch_add(1, std::memory_order_relaxed);
    }
    GiveBackRows(slot, facts, chunk);
    if (MakesBatch(death->kind)) {
      // The only author of this layout is dead; the next claimant writes its own.
      header.layout_state.store(kLayoutEmpty, std::memory_order_relaxed);
    }
    header.cursor.store(0, std::memory_order_relaxed);
    header.claims[chunk].compare_exchange_strong(claimed,
                                                 ClaimWord(sequence, closed ? kChunkWithdrawn : kChunkUnclaimed));
  }
}

// It may have been killed because memory ran out, and without some of it the main process could not start a successor.
// This takes longer than most of what happens under the mutex, but happens only once for each death, and has to come
// before anybody can claim the chunk.
void BatchScheduler::GiveBackRows(uint32_t slot, const BatchFacts& facts, uint32_t chunk) {
  const ClaimKind kind = facts.KindOf(chunk);
  if (pinned_ != nullptr || kind == ClaimKind::kItems) {
    return;  // a locked range keeps its old pages; samples that are kept have no fixed place
  }
  const std::shared_ptr<const BatchLayout> layout = reader_.TryCopyLayout(slot, facts);
  for (size_t i = 0; layout != nullptr && i < layout->leaf_count(); ++i) {
    const LeafRecord& leaf = layout->leaf(i);
    const size_t end = i + 1 < layout->leaf_count() ? layout->leaf(i + 1).offset : layout->end();
    if (MakesBatch(kind)) {
      arena_->Release(slot, leaf.offset, end);
    } else if (leaf.kind == LeafKind::kArray && leaf.ndim >= 1 && leaf.dims[0] == facts.rows) {
      uint64_t row_bytes = leaf.item_bytes;
      for (uint32_t dim = 1; dim < leaf.ndim; ++dim) {
        row_bytes *= leaf.dims[dim];
      }
      arena_->Release(slot, leaf.offset + facts.RowsBegin(chunk) * row_bytes,
                      leaf.offset + facts.RowsEnd(chunk) * row_bytes);
    }
  }
}

BatchScheduler::Batches::iterator BatchScheduler::FindUndone(uint64_t sequence, uint32_t row) {
  const auto batch =
      std::find_if(open_.begin(), open_.end(), [&](const OpenBatch& each) { return each.facts.sequence == sequence; });
  if (batch == open_.end() || !batch->has_slot || batch->concluded || row >= batch->facts.rows) {
    return open_.end();
  }
  if (batch->remake) {
    return batch;
  }
  // While a batch is being collated, none of its rows counts as done.
  const SlotHeader& header = arena_->slot(batch->slot);
  const bool done = batch->facts.split() ? OpenBatch(*batch).Look(header) == OpenBatch::State::kDone
                                         : IsDone(header.claims[row / batch->facts.chunk_rows].load(), sequence);
  return done ? open_.end() : batch;
}

bool BatchScheduler::Abandon(uint64_t sequence, uint32_t row) {
  const OwnerLock lock(*this);
  const auto batch = FindUndone(sequence, row);
  if (batch == open_.end()) {
    return false;
  }
  Withdraw(*batch);
  batch->problem = {ProblemKind::kKilled, row, {}};
  sleep_.Wake();
  return true;
}

bool BatchScheduler::Skip(uint64_t sequence, uint32_t row) {
  const OwnerLock lock(*this);
  const auto batch = FindUndone(sequence, row);
  if (batch == open_.end() || options_.arena.order == IndexOrder::kStream) {
    return false;
  }
  const auto place = std::lower_bound(batch->excluded.begin(), batch->excluded.end(), row);
  if (place != batch->excluded.end() && *place == row) {
    return true;
  }
  if (batch->excluded.size() == kMaxExcluded) {
    return false;
  }
  batch->excluded.insert(place, row);
  if (batch->excluded.size() == batch->facts.rows) {
    Withdraw(*batch);
    open_.erase(batch);
    slots_.FreeDrained();
    PublishOldest();
    OpenBatches();
    sleep_.Wake();
    return true;
  }
  CloseClaims(*batch);
  batch->remake = true;
  IsReady(*batch);  // reopens it now if nobody else is at work on it
  return true;
}

void BatchScheduler::EndProducer(uint32_t id) {
  if (id < kMaxProducers && watch_.Watches(id)) {
    corrupt_[id] = true;
    watch_.Kill(id);
  }
}

void BatchScheduler::MarkCorrupt(OpenBatch& batch, std::string_view what, std::optional<uint32_t> author) {
  const SlotHeader& header = arena_->slot(batch.slot);
  const uint64_t sequence = batch.facts.sequence;
  for (uint32_t chunk = 0; chunk < batch.facts.chunks; ++chunk) {
    const uint64_t word = header.claims[chunk].load();
    if (IsClaimed(word, sequence) && IsValid(word, sequence)) {
      EndProducer(static_cast<uint32_t>(Claimant(word) - 1));
    }
  }
  if (author) {
    EndProducer(*author);
  }
  batch.problem = {
      ProblemKind::kCorrupt, 0,
      StrCat("the shared memory of batch ", batch.facts.batch, " of epoch ", batch.facts.epoch, " is corrupt: ", what)};
  Withdraw(batch, /*written_over=*/true);
}

void BatchScheduler::CheckOpen(OpenBatch& batch) {
  if (!batch.has_slot || batch.concluded) {
    return;
  }
  const SlotHeader& header = arena_->slot(batch.slot);
  bool stuck = false;
  for (uint32_t chunk = 0; chunk < batch.facts.chunks; ++chunk) {
    const uint64_t word = header.claims[chunk].load();
    const bool closed = batch.remake && word == ClaimWord(batch.facts.sequence, kChunkWithdrawn);
    if (!closed && !IsValid(word, batch.facts.sequence)) {
      MarkCorrupt(batch, "the word of a chunk is none that a producer writes", std::nullopt);
      return;
    }
    if (IsClaimed(word, batch.facts.sequence)) {
      stuck = stuck || !IsAtWork(static_cast<uint32_t>(Claimant(word) - 1), batch.facts.sequence);
    }
  }
  try {
    reader_.CheckFacts(batch);
  } catch (const DataLoss& error) {
    MarkCorrupt(batch, error.message(), std::nullopt);
    return;
  }
  const uint32_t state = header.layout_state.load(std::memory_order_relaxed);
  const bool known = state == kLayoutEmpty || IsLayoutWriting(state) ||
                     (IsLayoutReady(state) && LayoutProducer(state) < kMaxProducers);
  stuck = stuck || (!IsLayoutReady(state) && state != kLayoutEmpty);
  batch.stuck_checks = stuck ? batch.stuck_checks + 1 : 0;
  if (!known || batch.stuck_checks > kStuckChecks) {
    MarkCorrupt(batch, "nobody is making what somebody is said to make", std::nullopt);
  }
}

// Between its claim and its note of it, and between the end of its work and that of its claim, a producer spends
// microseconds, unless it is stopped (SIGSTOP) at that very moment.
bool BatchScheduler::IsAtWork(uint32_t id, uint64_t sequence) const {
  const ProducerRecord& record = control_.producers[id];
  return record.busy.load(std::memory_order_acquire) != 0 &&
         record.sequence.load(std::memory_order_relaxed) == sequence && !IsAsleep(control_, id);
}

void BatchScheduler::AddWork(const OpenBatch& batch, WorkSeen* seen) const {
  const BatchFacts& facts = batch.facts;
  const SlotHeader& header = arena_->slot(batch.slot);
  for (uint32_t chunk = batch.done_chunks; chunk < facts.chunks; ++chunk) {
    if (header.claims[chunk].load(std::memory_order_acquire) != ClaimWord(facts.sequence, kChunkUnclaimed)) {
      continue;
    }
    if (facts.KindOf(chunk) == ClaimKind::kCollate) {
      const ChunksState items = LookAtChunks(header, facts.sequence, facts.RowChunks());
      if (items.done && !items.failed) {
        seen->collators_may_claim = constants_.collators;
      }
    } else if (facts.producer == kAnybody) {
      seen->anybody_may_claim = true;
    } else {
      seen->may_claim[facts.producer] = true;
    }
  }
}

void BatchScheduler::EndLost() {
  WorkSeen seen;
  for (const OpenBatch& batch : open_) {
    if (batch.has_slot && !batch.concluded) {
      AddWork(batch, &seen);
    }
  }
  std::vector<HeldClaim> claims;
  AddAllClaims(&claims);
  for (const HeldClaim& claim : claims) {
    seen.at_claim[claim.producer] = true;
  }
  for (const std::vector<uint32_t>& process : watch_.Processes()) {
    if (lost_.Note(process, control_.producers, seen) && !retired_[process.front()]) {
      EndProducer(process.front());
    }
  }
}

void BatchScheduler::RestoreControlBlock() {
  for (const OpenBatch& batch : open_) {
    control_.ring[batch.facts.sequence % kMaxSlots].store(batch.slot, std::memory_order_relaxed);
  }
  if (std::memcmp(&control_.constants, &constants_, sizeof(constants_)) != 0) {
    std::memcpy(&control_.constants, &constants_, sizeof(constants_));
  }
  control_.spin_ns.store(spin_ns_, std::memory_order_relaxed);
  control_.stop.store(stopped_ ? 1 : 0);
  control_.next.store(next_sequence_);
  PublishOldest();
}

void BatchScheduler::CheckSharedState() {
  for (OpenBatch& batch : open_) {
    CheckOpen(batch);
  }
  EndLost();
  RestoreControlBlock();
  // Even if all of that was right: producers may have gone by what stood there before.
  SignalRescan();
}

}  // namespace headrace::shared_memory
