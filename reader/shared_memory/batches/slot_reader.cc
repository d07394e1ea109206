#include "reader/shared_memory/batches/slot_reader.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "framework/errors.h"

namespace headrace::shared_memory {

void SlotReader::CheckFacts(const OpenBatch& batch) const {
  const SlotHeader& header = arena_.slot(batch.slot);
  const BatchFacts& facts = batch.facts;
  const bool same =
      std::memcmp(&header.facts, &facts, sizeof(facts)) == 0 &&
      header.sequence.load(std::memory_order_relaxed) == facts.sequence &&
      header.claimable.load(std::memory_order_relaxed) == ClaimableWord(facts.chunks, facts.kind, facts.producer) &&
      (facts.excluded == 0 ||
       std::memcmp(header.excluded, batch.excluded.data(), facts.excluded * sizeof(uint32_t)) == 0) &&
      std::memcmp(arena_.slot_data(batch.slot) + kDataOffset, batch.indices.data(), batch.indices.size()) == 0;
  HR_ENFORCE(same, DataLoss, "the data that the scheduler wrote into its slot was overwritten");
}

void SlotReader::CheckPlace(const SideRecord& place, const char* what) const {
  const size_t end = arena_.slot_bytes();
  HR_ENFORCE(
      place.bytes == 0 || (place.offset >= kDataOffset && place.offset <= end && place.bytes <= end - place.offset),
      DataLoss, what, " of ", place.bytes, " bytes at offset ", place.offset, " is outside its slot of ", end,
      " bytes");
}

std::string SlotReader::Text(uint32_t slot, const SideRecord& place) const {
  return place.bytes == 0
             ? std::string()
             : std::string(reinterpret_cast<const char*>(arena_.slot_data(slot) + place.offset), place.bytes);
}

BatchProblem SlotReader::ReadProblem(const OpenBatch& batch) const {
  const SlotHeader& header = arena_.slot(batch.slot);
  const uint64_t sequence = batch.facts.sequence;
  BatchProblem lowest;
  for (uint32_t chunk = 0; chunk < batch.facts.chunks; ++chunk) {
    const uint64_t word = header.chunk_words[chunk].load(std::memory_order_acquire);
    if (!IsDone(word, sequence) || !IsFailed(word)) {
      continue;
    }
    const ChunkProblem problem = CopyShared(header.problems[chunk]);
    HR_ENFORCE(problem.checksum == ChecksumOf(problem, sequence + chunk) &&
                   (problem.kind == ProblemKind::kFailed || problem.kind == ProblemKind::kMismatch) &&
                   problem.row >= batch.facts.RowsBegin(chunk) && problem.row < batch.facts.RowsEnd(chunk),
               DataLoss, "the report of what failed in its chunk ", chunk, " was written over");
    const SideRecord place{problem.offset, problem.bytes};
    CheckPlace(place, "a message");
    if (problem.kind == ProblemKind::kMismatch && !MakesBatch(batch.facts.KindOf(chunk))) {
      return {ProblemKind::kMismatch, problem.row, {}};
    }
    // The lowest row is the one that a single producer would have met first. A mismatch reported by a sole claimant is
    // a failure like any other.
    if (lowest.kind == ProblemKind::kNone) {
      lowest = {ProblemKind::kFailed, problem.row, Text(batch.slot, place), static_cast<uint32_t>(Claimant(word) - 1)};
    }
  }
  HR_ENFORCE(lowest.kind != ProblemKind::kNone, DataLoss, "the word of a chunk that failed was written over");
  return lowest;
}

BatchEnd SlotReader::ReadEnd(const OpenBatch& batch) const {
  const BatchEnd end = CopyShared(arena_.slot(batch.slot).end);
  HR_ENFORCE(end.checksum == ChecksumOf(end, batch.facts.sequence), DataLoss,
             "what its producer said of it was written over");
  const bool stream = batch.facts.kind == ClaimKind::kStream;
  const uint32_t rows = batch.facts.rows - batch.facts.excluded;
  const bool goes_on = end.stream_end == StreamEnd::kGoesOn;
  HR_ENFORCE(end.rows <= rows && (stream || (end.rows == rows && goes_on)) && end.stream_end <= StreamEnd::kBefore,
             DataLoss, "its producer says that it has ", end.rows, " rows, where ", rows, " were planned");
  HR_ENFORCE(end.kept_bytes <= arena_.slot_bytes() - kDataOffset && (batch.facts.split() || end.kept_bytes == 0),
             DataLoss, "its samples took ", end.kept_bytes, " bytes, more than its slot has");
  CheckPlace(end.attachment, "an attachment");
  return end;
}

std::shared_ptr<const BatchLayout> SlotReader::CopyLayout(const std::byte* slot, size_t data_offset) {
  const bool same = known_ != nullptr && known_data_offset_ == data_offset &&
                    std::memcmp(slot + kLayoutOffset, known_->bytes().data(), known_->bytes().size()) == 0;
  if (!same) {
    known_ = std::make_shared<const BatchLayout>(BatchLayout::CopyFrom(slot, data_offset, arena_.slot_bytes()));
    known_data_offset_ = data_offset;
  }
  return known_;
}

std::shared_ptr<const BatchLayout> SlotReader::TryCopyLayout(uint32_t slot, const BatchFacts& facts) {
  if (!IsLayoutReady(arena_.slot(slot).layout_state.load(std::memory_order_acquire))) {
    return nullptr;
  }
  try {
    return CopyLayout(arena_.slot_data(slot), kDataOffset + facts.indices_bytes);
  } catch (const DataLoss&) {
    return nullptr;
  }
}

void SlotReader::ReadLayout(const OpenBatch& batch, ReadyBatch* ready) {
  const SlotHeader& header = arena_.slot(batch.slot);
  const std::byte* slot = arena_.slot_data(batch.slot);
  HR_ENFORCE(IsLayoutReady(header.layout_state.load(std::memory_order_acquire)), DataLoss,
             "its layout has not been written");
  ready->layout_copy = CopyLayout(slot, kDataOffset + batch.facts.indices_bytes);
  const BatchLayout& layout = *ready->layout_copy;
  uint64_t side_bytes = 0;
  for (size_t i = 0; i < layout.leaf_count(); ++i) {
    const LeafRecord& leaf = layout.leaf(i);
    if (batch.facts.kind == ClaimKind::kRows) {
      HR_ENFORCE(leaf.ndim >= 1 && leaf.dims[0] == batch.facts.rows, DataLoss, "leaf ", i, " has ",
                 leaf.ndim == 0 ? 0 : leaf.dims[0], " rows instead of ", batch.facts.rows);
    }
    if (leaf.kind == LeafKind::kObject) {
      const size_t first = ready->objects.size();
      ready->objects.resize(first + leaf.dims[0]);
      CopyShared(ready->objects.data() + first, slot + leaf.offset, leaf.dims[0] * sizeof(SideRecord));
      for (size_t row = first; row < ready->objects.size(); ++row) {
        CheckPlace(ready->objects[row], "an object");
        side_bytes += AlignedSide(ready->objects[row].bytes);
        HR_ENFORCE(side_bytes <= arena_.slot_bytes(), DataLoss, "its objects have more bytes than its slot");
      }
    } else if (leaf.kind == LeafKind::kOffsets && i != 0 && layout.leaf(i - 1).kind == LeafKind::kArray &&
               layout.leaf(i - 1).ndim != 0) {
      CheckOffsets(slot, leaf, layout.leaf(i - 1).dims[0]);
    }
  }
  // Producers allocate side data by adding to one word. Had a stray write lowered it, one producer's side data would
  // lie over another's.
  const uint64_t taken = std::min<uint64_t>(header.side_bytes.load(std::memory_order_relaxed), arena_.slot_bytes());
  HR_ENFORCE(layout.end() + taken <= arena_.slot_bytes() &&
                 batch.end.kept_bytes + side_bytes + AlignedSide(batch.end.attachment.bytes) <= taken,
             DataLoss, "the count of its side data was written over");
}

void SlotReader::CheckOffsets(const std::byte* slot, const LeafRecord& leaf, uint64_t rows) const {
  HR_ENFORCE(leaf.ndim == 1 && leaf.item_bytes == sizeof(int64_t) && leaf.dims[0] >= 1, DataLoss,
             "offsets of rows are not one-dimensional, or not int64");
  const char* next = reinterpret_cast<const char*>(slot + leaf.offset);
  int64_t last = 0;
  for (uint64_t i = 0; i < leaf.dims[0]; ++i, next += sizeof(int64_t)) {
    int64_t offset = 0;
    CopyShared(&offset, next, sizeof(offset));
    HR_ENFORCE(i == 0 ? offset == 0 : offset >= last, DataLoss, "offset ", i, " of its rows is ", offset, " after ",
               last);
    last = offset;
  }
  HR_ENFORCE(static_cast<uint64_t>(last) == rows, DataLoss, "the offsets of its rows end at ", last, " instead of ",
             rows);
}

}  // namespace headrace::shared_memory
