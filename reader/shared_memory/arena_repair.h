// Repairs what producers leave behind that die or that write where they must not.
//
// A producer that ends gives up its claims, which others take (NoteDeaths, Reclaim). And nobody waits in vain: checks
// (CheckSharedState) look for what cannot come. A batch is waited for because of a chunk that is unclaimed or claimed.
// If its word, or anything that leads producers to it, is not as it should be, the batch fails or the word is restored.
// If it is claimed, its claimant is at work on it, or else the batch fails. If it is unclaimed, producers claim it,
// unless all are at work on other claims, which end; or are starting; or are stuck, and are killed and replaced
// (stuck_producers.h).
//
// Has no state of its own. Which rows are given up because they kill their producers again and again is not decided
// here: the caller counts the deaths.
//
// Thread-safety: none; BatchScheduler guards it with its mutex.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/export.h"
#include "reader/shared_memory/batches/open_batches.h"
#include "reader/shared_memory/producers/producer_death.h"
#include "reader/shared_memory/producers/producer_table.h"

namespace headrace::shared_memory {

class HEADRACE_API ArenaRepair {
 public:
  // All that is passed must outlive it. `keeps_pages`: slots are page-locked, so that their memory cannot be released
  // row by row.
  ArenaRepair(OpenBatches& batches, ProducerTable& producers, Arena& arena, bool keeps_pages);

  // Frees what producers that have ended leave behind, and reports their deaths to the table, unless they were asked to
  // end.
  void NoteDeaths();
  // Frees the claims of a producer that is known to be dead.
  ProducerDeath Reclaim(uint32_t id);
  // What producers hold, the oldest batch first. A snapshot that may be outdated when it returns.
  std::vector<HeldClaim> Claims() const;
  // Looks for damage by stray writes to words that nothing else checks: fails batches that cannot go on, restores the
  // rest, and kills producers that are stuck.
  void CheckSharedState();

 private:
  // What producer `id` is doing with a chunk that it holds.
  HeldClaim Describe(const BatchFacts& facts, uint32_t chunk, uint32_t id) const;
  // Appends the claims held on one batch, or on all, open or withdrawn.
  void AddClaims(uint32_t slot, const BatchFacts& facts, std::vector<HeldClaim>* claims) const;
  void AddAllClaims(std::vector<HeldClaim>* claims) const;
  // Frees a dead producer's chunks of one batch. `closed`: nothing of the batch is to be made any more.
  void ReclaimChunks(uint32_t slot, const BatchFacts& facts, bool closed, ProducerDeath* death);
  // Returns the memory of a dead producer's chunk, of which all rows are to be made anew, to the system.
  void ReleaseRowMemory(uint32_t slot, const BatchFacts& facts, uint32_t chunk);
  void CheckOpen(OpenBatch& batch);
  void KillStuck();
  // Adds who may claim a chunk of an open batch.
  void AddWork(const OpenBatch& batch, WorkSeen* seen) const;
  // Whether the producer whom a chunk's word names has begun with it and is not asleep.
  bool IsAtWork(uint32_t id, uint64_t sequence) const;

  OpenBatches& batches_;
  ProducerTable& producers_;
  Arena& arena_;
  ControlBlock& control_;
  const bool keeps_pages_;
};

}  // namespace headrace::shared_memory
