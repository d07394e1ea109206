// Takes what producers have left in a slot out of it: copies each thing once, and checks the copy against the slot's
// bounds and the scheduler's own facts before anybody uses it. What fails is DataLoss, with a text that says what is
// wrong, made to follow "the batch is corrupt: ".
//
// Thread-safety: none; BatchScheduler guards its reader with its mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "reader/shared_memory/arena.h"
#include "reader/shared_memory/batch_layout.h"
#include "reader/shared_memory/open_batch.h"
#include "reader/shared_memory/ready_batch.h"

namespace headrace::shared_memory {

class SlotReader {
 public:
  explicit SlotReader(const Arena& arena) : arena_(arena) {}

  // That the scheduler's facts stand in the slot as they were written: producers go by them.
  void CheckFacts(const OpenBatch& batch) const;

  // Of a batch that is done and of which a chunk has failed: the problem of the lowest row, or kMismatch if there is
  // one.
  BatchProblem ReadProblem(const OpenBatch& batch) const;

  // Of a batch that one producer has made alone: what that says of it.
  BatchEnd ReadEnd(const OpenBatch& batch) const;

  // Of a batch that is done without a problem: layout and objects.
  void ReadLayout(const OpenBatch& batch, ReadyBatch* ready);

  // Bytes of a slot as a string.
  std::string Text(uint32_t slot, const SideRecord& place) const;

 private:
  void CheckPlace(const SideRecord& place, const char* what) const;
  std::shared_ptr<const BatchLayout> CopyLayout(const std::byte* slot, size_t data_offset);
  void CheckOffsets(const std::byte* slot, const LeafRecord& leaf, uint64_t rows) const;

  const Arena& arena_;
  // The last layout: batches that look the same share one copy.
  std::shared_ptr<const BatchLayout> known_;
  size_t known_data_offset_ = 0;
};

}  // namespace headrace::shared_memory
