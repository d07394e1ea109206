#include "reader/shared_memory/arena_repair.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include "framework/errors.h"
#include "reader/shared_memory/producers/stuck_producers.h"

namespace headrace::shared_memory {

ArenaRepair::ArenaRepair(OpenBatches& batches, ProducerTable& producers, Arena& arena, bool keeps_pages)
    : batches_(batches), producers_(producers), arena_(arena), control_(arena.control()), keeps_pages_(keeps_pages) {}

HeldClaim ArenaRepair::Describe(const BatchFacts& facts, uint32_t chunk, uint32_t id) const {
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

void ArenaRepair::AddClaims(uint32_t slot, const BatchFacts& facts, std::vector<HeldClaim>* claims) const {
  const SlotHeader& header = arena_.slot(slot);
  for (uint32_t chunk = 0; chunk < facts.chunks; ++chunk) {
    const uint64_t word = header.chunk_words[chunk].load(std::memory_order_acquire);
    if (IsClaimed(word, facts.sequence) && IsValid(word, facts.sequence)) {
      claims->push_back(Describe(facts, chunk, static_cast<uint32_t>(Claimant(word) - 1)));
    }
  }
}

void ArenaRepair::AddAllClaims(std::vector<HeldClaim>* claims) const {
  for (const OpenBatch& batch : batches_.batches()) {
    if (batch.has_slot) {
      AddClaims(batch.slot, batch.facts, claims);
    }
  }
  for (const SlotPool::Draining& draining : batches_.slots().draining()) {
    AddClaims(draining.slot, draining.facts, claims);
  }
}

std::vector<HeldClaim> ArenaRepair::Claims() const {
  std::vector<HeldClaim> claims;
  AddAllClaims(&claims);
  std::sort(claims.begin(), claims.end(), [](const HeldClaim& a, const HeldClaim& b) {
    return std::tie(a.sequence, a.producer) < std::tie(b.sequence, b.producer);
  });
  return claims;
}

void ArenaRepair::NoteDeaths() {
  for (const uint32_t id : producers_.TakeEnded()) {
    const bool retired = producers_.IsRetired(id);
    if (retired && producers_.HasRetired(id)) {
      continue;  // it left no claim, and a successor may have some already
    }
    batches_.RestoreControlBlock();  // a stray write there may have ended it, and would end its successor
    const ProducerDeath death = Reclaim(id);
    if (!retired) {
      producers_.Report(death);
    }
  }
}

ProducerDeath ArenaRepair::Reclaim(uint32_t id) {
  ProducerDeath death;
  death.producer = id;
  for (const OpenBatch& batch : batches_.batches()) {
    if (batch.has_slot) {
      ReclaimChunks(batch.slot, batch.facts, batch.remake, &death);
    }
  }
  for (const SlotPool::Draining& draining : batches_.slots().draining()) {
    ReclaimChunks(draining.slot, draining.facts, true, &death);
  }
  death.corrupt = producers_.Clear(id);
  // Even if it held nothing: it may have been woken for work that the others are sleeping through.
  batches_.HaveAllLookAgain();
  return death;
}

void ArenaRepair::ReclaimChunks(uint32_t slot, const BatchFacts& facts, bool closed, ProducerDeath* death) {
  SlotHeader& header = arena_.slot(slot);
  const uint64_t sequence = facts.sequence;
  uint32_t writing = LayoutWriting(death->producer);
  header.layout_state.compare_exchange_strong(writing, kLayoutEmpty);
  for (uint32_t chunk = 0; chunk < facts.chunks; ++chunk) {
    uint64_t claimed = ChunkWord(sequence, kChunkClaimed, death->producer);
    if (header.chunk_words[chunk].load(std::memory_order_acquire) != claimed) {
      continue;
    }
    static_cast<HeldClaim&>(*death) = Describe(facts, chunk, death->producer);
    death->busy = true;
    if (death->at_row && header.deaths[chunk].load(std::memory_order_relaxed) < 255) {
      header.deaths[chunk].fetch_add(1, std::memory_order_relaxed);
    }
    ReleaseRowMemory(slot, facts, chunk);
    if (MakesBatch(death->kind)) {
      // The only author of this layout is dead; the next claimant writes its own.
      header.layout_state.store(kLayoutEmpty, std::memory_order_relaxed);
    }
    header.cursor.store(0, std::memory_order_relaxed);
    header.chunk_words[chunk].compare_exchange_strong(claimed,
                                                      ChunkWord(sequence, closed ? kChunkWithdrawn : kChunkUnclaimed));
  }
}

// It may have been killed because memory ran out, and without some of it the main process could not start a successor.
// This takes longer than most of what happens under the mutex, but happens only once for each death, and has to come
// before anybody can claim the chunk.
void ArenaRepair::ReleaseRowMemory(uint32_t slot, const BatchFacts& facts, uint32_t chunk) {
  const ClaimKind kind = facts.KindOf(chunk);
  if (keeps_pages_ || kind == ClaimKind::kItems) {
    return;  // a locked range keeps its old pages; samples that are kept have no fixed place
  }
  const std::shared_ptr<const BatchLayout> layout = batches_.reader().TryCopyLayout(slot, facts);
  for (size_t i = 0; layout != nullptr && i < layout->leaf_count(); ++i) {
    const LeafRecord& leaf = layout->leaf(i);
    const size_t end = i + 1 < layout->leaf_count() ? layout->leaf(i + 1).offset : layout->end();
    if (MakesBatch(kind)) {
      arena_.Release(slot, leaf.offset, end);
    } else if (leaf.kind == LeafKind::kArray && leaf.ndim >= 1 && leaf.dims[0] == facts.rows) {
      uint64_t row_bytes = leaf.item_bytes;
      for (uint32_t dim = 1; dim < leaf.ndim; ++dim) {
        row_bytes *= leaf.dims[dim];
      }
      arena_.Release(slot, leaf.offset + facts.RowsBegin(chunk) * row_bytes,
                     leaf.offset + facts.RowsEnd(chunk) * row_bytes);
    }
  }
}

void ArenaRepair::CheckOpen(OpenBatch& batch) {
  if (!batch.has_slot || batch.concluded) {
    return;
  }
  const SlotHeader& header = arena_.slot(batch.slot);
  bool stuck = false;
  for (uint32_t chunk = 0; chunk < batch.facts.chunks; ++chunk) {
    const uint64_t word = header.chunk_words[chunk].load();
    const bool closed = batch.remake && word == ChunkWord(batch.facts.sequence, kChunkWithdrawn);
    if (!closed && !IsValid(word, batch.facts.sequence)) {
      batches_.FailCorrupt(batch, "the word of a chunk is none that a producer writes", std::nullopt);
      return;
    }
    if (IsClaimed(word, batch.facts.sequence)) {
      stuck = stuck || !IsAtWork(static_cast<uint32_t>(Claimant(word) - 1), batch.facts.sequence);
    }
  }
  try {
    batches_.reader().CheckFacts(batch);
  } catch (const DataLoss& error) {
    batches_.FailCorrupt(batch, error.message(), std::nullopt);
    return;
  }
  const uint32_t state = header.layout_state.load(std::memory_order_relaxed);
  const bool known = state == kLayoutEmpty || IsLayoutWriting(state) ||
                     (IsLayoutReady(state) && LayoutProducer(state) < kMaxProducers);
  stuck = stuck || (!IsLayoutReady(state) && state != kLayoutEmpty);
  batch.stuck_checks = stuck ? batch.stuck_checks + 1 : 0;
  if (!known || batch.stuck_checks > kStuckChecks) {
    batches_.FailCorrupt(batch, "no producer is making the rows that it is said to make", std::nullopt);
  }
}

// Between its claim and its note of it, and between the end of its work and that of its claim, a producer spends
// microseconds, unless it is stopped (SIGSTOP) at that very moment.
bool ArenaRepair::IsAtWork(uint32_t id, uint64_t sequence) const {
  const ProducerRecord& record = control_.producers[id];
  return record.busy.load(std::memory_order_acquire) != 0 &&
         record.sequence.load(std::memory_order_relaxed) == sequence && !IsAsleep(control_, id);
}

void ArenaRepair::AddWork(const OpenBatch& batch, WorkSeen* seen) const {
  const BatchFacts& facts = batch.facts;
  const SlotHeader& header = arena_.slot(batch.slot);
  for (uint32_t chunk = batch.done_chunks; chunk < facts.chunks; ++chunk) {
    if (header.chunk_words[chunk].load(std::memory_order_acquire) != ChunkWord(facts.sequence, kChunkUnclaimed)) {
      continue;
    }
    if (facts.KindOf(chunk) == ClaimKind::kCollate) {
      const ChunksState items = LookAtChunks(header, facts.sequence, facts.RowChunks());
      if (items.done && !items.failed) {
        seen->collators_may_claim = batches_.constants().collators;
      }
    } else if (facts.producer == kAnybody) {
      seen->anybody_may_claim = true;
    } else {
      seen->may_claim[facts.producer] = true;
    }
  }
}

void ArenaRepair::KillStuck() {
  WorkSeen seen;
  for (const OpenBatch& batch : batches_.batches()) {
    if (batch.has_slot && !batch.concluded) {
      AddWork(batch, &seen);
    }
  }
  std::vector<HeldClaim> claims;
  AddAllClaims(&claims);
  for (const HeldClaim& claim : claims) {
    seen.at_claim[claim.producer] = true;
  }
  producers_.KillStuck(seen);
}

void ArenaRepair::CheckSharedState() {
  for (OpenBatch& batch : batches_.batches()) {
    CheckOpen(batch);
  }
  KillStuck();
  batches_.RestoreControlBlock();
  // Even if all of that was right: producers may have gone by what stood there before.
  batches_.HaveAllLookAgain();
}

}  // namespace headrace::shared_memory
