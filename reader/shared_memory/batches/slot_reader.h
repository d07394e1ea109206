// Reads what producers have left in a slot: copies each item once, and checks the copy against the slot's bounds and
// the scheduler's own facts before anybody uses it. A failed check throws DataLoss, with a text that continues "the
// batch is corrupt: ".
//
// Thread-safety: none; BatchScheduler guards its reader with its mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "reader/shared_memory/arena/arena.h"
#include "reader/shared_memory/arena/batch_layout.h"
#include "reader/shared_memory/batches/open_batch.h"
#include "reader/shared_memory/batches/ready_batch.h"

namespace headrace::shared_memory {

class SlotReader {
 public:
  explicit SlotReader(const Arena& arena) : arena_(arena) {}

  // Checks that the scheduler's facts, which producers work from, are still in the slot as written.
  void CheckFacts(const OpenBatch& batch) const;

  // For a batch that is done and has a failed chunk: the problem of the lowest row, or kMismatch if there is one.
  BatchProblem ReadProblem(const OpenBatch& batch) const;

  // For a batch made by one producer alone: that producer's report.
  BatchEnd ReadEnd(const OpenBatch& batch) const;

  // For a batch that is done without a problem: its layout and objects.
  void ReadLayout(const OpenBatch& batch, ReadyBatch* ready);

  // The layout of a batch in the making; null if there is none, or none that can be read.
  std::shared_ptr<const BatchLayout> TryCopyLayout(uint32_t slot, const BatchFacts& facts);

  // Bytes of a slot as a string.
  std::string Text(uint32_t slot, const SideRecord& place) const;

 private:
  void CheckPlace(const SideRecord& place, const char* what) const;
  std::shared_ptr<const BatchLayout> CopyLayout(const std::byte* slot, size_t data_offset);
  void CheckOffsets(const std::byte* slot, const LeafRecord& leaf, uint64_t rows) const;

  const Arena& arena_;
  // The last layout: batches with the same layout share one copy.
  std::shared_ptr<const BatchLayout> known_;
  size_t known_data_offset_ = 0;
};

}  // namespace headrace::shared_memory
