// A slot's header: a batch in the making, as the scheduler and producers, which are the workers, see it.
//
// Who writes what:
//  1. The scheduler writes sequence, claimable, facts, excluded and the indices while no chunk can be claimed. It keeps
//     the originals (OpenBatch), never uses these copies, and compares them when the batch is done: if they have
//     changed, producers worked from wrong facts.
//  2. A producer reads facts and excluded only while it holds a claim: the acquire of the chunk's word orders the reads
//     after 1.
//  3. A chunk is one word: unclaimed → claimed (one compare-and-swap that names batch and producer) → done,
//     or done and failed (one more by the claimant). So at every instant, wherever a producer is killed, the words tell
//     exactly which chunks are lost: those that it had claimed and not finished. Sequence numbers are never reused, so
//     a claim fails on a slot that has moved on.
//  4. A producer writes what it reports about a chunk or a batch (ChunkProblem, BatchEnd), with a checksum over it and
//     the batch's number, just before it marks the chunk done.
//  5. side_bytes only grows. If the side data of a finished batch adds up to more, the word was overwritten.
//
// A batch of kind kItems has one more chunk than its rows need: the last one, its collation. It can be claimed once the
// others are done and none has failed; if one has, the collation is not needed. Both conditions follow from the words
// alone, which no longer change at that point, so no process has to keep track and none can take the knowledge with it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "framework/export.h"
#include "reader/shared_memory/arena/checksum.h"
#include "reader/shared_memory/arena/control_block.h"

namespace headrace::shared_memory {

// A batch has at most this many chunks of consecutive rows.
inline constexpr uint32_t kMaxChunks = 256;
// At most this many rows of a batch can be skipped (BatchScheduler::Skip).
inline constexpr uint32_t kMaxExcluded = 64;
// Leaves of a batch start at multiples of this.
inline constexpr size_t kLeafAlignment = 128;

// Offsets within a slot. The layout (batch_layout.h) describes what is in the data; side data grows down from the
// slot's end.
inline constexpr size_t kLayoutOffset = 12 * 1024;
inline constexpr size_t kDataOffset = 256 * 1024;

// What the claimant of a chunk does.
enum class ClaimKind : uint32_t {
  kRows = 0,     // make its rows, each in its place
  kWhole = 1,    // make all samples of the batch and collate them: for a user's collate function, or after a mismatch
  kItems = 2,    // make its rows and keep them for the batch's collation
  kCollate = 3,  // collate what was kept
  kStream = 4,   // make the next batch of a stream
};

// "rows", "whole", …
HEADRACE_API const char* NameOf(ClaimKind kind);

// Whether the claimant alone makes the batch as it is delivered.
constexpr bool MakesBatch(ClaimKind kind) { return kind != ClaimKind::kRows && kind != ClaimKind::kItems; }

// What a batch reports about its stream.
enum class StreamEnd : uint32_t {
  kGoesOn = 0,
  kAfter = 1,   // these are the last rows
  kBefore = 2,  // the stream was over: there are no rows, and the batch is not delivered
};

// Why a batch has no rows.
enum class ProblemKind : uint32_t {
  kNone = 0,
  kFailed = 1,    // making a sample raised an error
  kMismatch = 2,  // a sample does not fit the layout of the batch; the scheduler has the batch made again
  kKilled = 3,    // set by the scheduler: it was abandoned because a row kept killing its producers
  kCorrupt = 4,   // set by the scheduler: the slot's content contradicts itself or the scheduler's facts
};

// Bytes somewhere in a slot.
struct SideRecord {
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(SideRecord) == 16 && std::is_trivially_copyable_v<SideRecord>);

// BatchFacts::producer if any producer may claim.
inline constexpr uint32_t kAnybody = 0xFFFF;

// What the scheduler has decided about a batch.
struct BatchFacts {
  uint64_t sequence;
  uint64_t epoch;
  uint64_t batch;           // index of the batch in its epoch; kStream: in its stream
  uint64_t first_position;  // of row 0 in the epoch
  uint64_t indices_bytes;   // kExplicit: indices at kDataOffset, as int64, or pickled when pickled_indices is 1
  uint64_t revision;        // of the dataset that it is made from
  uint32_t rows;            // planned, excluded ones included
  uint32_t chunks;
  uint32_t chunk_rows;
  uint32_t stream;
  ClaimKind kind;     // kItems: of all chunks but the last, which is kCollate
  uint32_t producer;  // the only one allowed to claim, or kAnybody
  uint32_t pickled_indices;
  uint32_t excluded;  // number of rows that are not made

  bool split() const { return kind == ClaimKind::kItems; }
  uint32_t LastChunk() const { return chunks - 1; }
  // Chunks that give rows.
  uint32_t RowChunks() const { return chunks - (split() ? 1 : 0); }
  ClaimKind KindOf(uint32_t chunk) const { return chunk < RowChunks() ? kind : ClaimKind::kCollate; }
  // Rows [begin, end) of a chunk.
  uint32_t RowsBegin(uint32_t chunk) const { return chunk < RowChunks() ? chunk * chunk_rows : 0; }
  uint32_t RowsEnd(uint32_t chunk) const {
    return chunk < RowChunks() && chunk_rows < rows - RowsBegin(chunk) ? RowsBegin(chunk) + chunk_rows : rows;
  }
};
static_assert(sizeof(BatchFacts) == 80 && std::has_unique_object_representations_v<BatchFacts>);

// What a producer must know before it claims, in one word.
constexpr uint64_t ClaimableWord(uint32_t chunks, ClaimKind kind, uint32_t producer) {
  return uint64_t{chunks} | uint64_t{static_cast<uint32_t>(kind)} << 16 | uint64_t{producer} << 32;
}
constexpr uint32_t ClaimableChunks(uint64_t word) { return static_cast<uint32_t>(word & 0xFFFF); }
constexpr ClaimKind ClaimableKind(uint64_t word) { return static_cast<ClaimKind>(word >> 16 & 0xFFFF); }
constexpr uint32_t ClaimableProducer(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

// A chunk's word: the batch's sequence number above, then the chunk's state, then the claimant: 0, or producer + 1. Any
// two states differ in four bits, so no flip of fewer bits turns one into another.
inline constexpr uint32_t kSequenceShift = 16;
inline constexpr uint64_t kChunkStateMask = 0xFC00;
inline constexpr uint64_t kChunkUnclaimed = 0;
inline constexpr uint64_t kChunkClaimed = 0xCC00;
inline constexpr uint64_t kChunkDone = 0xF000;
inline constexpr uint64_t kChunkFailed = 0x3C00;  // done, and it has a ChunkProblem
inline constexpr uint64_t kChunkWithdrawn =
    kChunkFailed;  // with claimant 0; set by the scheduler: no longer to be made
inline constexpr uint64_t kClaimantMask = 0x03FF;
constexpr uint64_t Claimant(uint64_t word) { return word & kClaimantMask; }
constexpr uint64_t ChunkWord(uint64_t sequence, uint64_t state) { return sequence << kSequenceShift | state; }
constexpr uint64_t ChunkWord(uint64_t sequence, uint64_t state, uint32_t producer) {
  return ChunkWord(sequence, state | (producer + 1));
}
// Done, failed or withdrawn.
constexpr bool IsDone(uint64_t word, uint64_t sequence) {
  const uint64_t state = word & kChunkStateMask;
  return word >> kSequenceShift == sequence && state != kChunkUnclaimed && state != kChunkClaimed;
}
constexpr bool IsFailed(uint64_t word) { return (word & kChunkStateMask) == kChunkFailed && Claimant(word) != 0; }
constexpr bool IsClaimed(uint64_t word, uint64_t sequence) {
  return word >> kSequenceShift == sequence && (word & kChunkStateMask) == kChunkClaimed;
}
// Whether the word is one that this batch can have while it is open.
constexpr bool IsValid(uint64_t word, uint64_t sequence) {
  const uint64_t state = word & kChunkStateMask;
  const uint64_t claimant = Claimant(word);
  return word >> kSequenceShift == sequence && claimant <= kMaxProducers &&
         (claimant == 0 ? state == kChunkUnclaimed
                        : state == kChunkClaimed || state == kChunkDone || state == kChunkFailed);
}
static_assert(kMaxProducers < kClaimantMask && kMaxChunks < 0x10000);

// Why a chunk did not give its rows.
struct ChunkProblem {
  uint64_t offset;  // of a message in the slot, whose meaning is up to the producer and the consumer
  uint64_t bytes;
  uint32_t row;
  ProblemKind kind;   // kFailed or kMismatch
  uint64_t checksum;  // ChecksumOf(*this, sequence + chunk)
};
static_assert(sizeof(ChunkProblem) == 32 && std::has_unique_object_representations_v<ChunkProblem>);

// What the sole claimant that makes a batch (MakesBatch) reports about it.
struct BatchEnd {
  uint32_t rows;
  StreamEnd stream_end;
  SideRecord attachment;
  uint64_t kept_bytes;  // so many at the slot's end were needed only until the collation
  uint64_t checksum;    // ChecksumOf(*this, sequence)
};
static_assert(sizeof(BatchEnd) == 40 && std::has_unique_object_representations_v<BatchEnd>);

// SlotHeader::layout_state: 0 until a producer starts to write the layout, then that producer and its progress.
inline constexpr uint32_t kLayoutEmpty = 0;
constexpr uint32_t LayoutWriting(uint32_t producer) { return producer << 2 | 1; }
constexpr uint32_t LayoutReady(uint32_t producer) { return producer << 2 | 2; }
constexpr bool IsLayoutReady(uint32_t state) { return (state & 3) == 2; }
constexpr uint32_t LayoutProducer(uint32_t state) { return state >> 2; }
constexpr bool IsLayoutWriting(uint32_t state) { return (state & 3) == 1 && LayoutProducer(state) < kMaxProducers; }

struct SlotHeader {
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> claimable;  // ClaimableWord
  BatchFacts facts;
  std::atomic<uint32_t> layout_state;
  std::atomic<uint32_t> cursor;      // hint: chunks before it are probably claimed
  std::atomic<uint64_t> side_bytes;  // allocated at the slot's end for what has no fixed place
  std::atomic<uint64_t> done_ns;     // with a trace: when the last chunk was done
  BatchEnd end;
  uint32_t excluded[kMaxExcluded];  // rows that are not made, in ascending order
  std::atomic<uint64_t> chunk_words[kMaxChunks];
  // How many producers have died at a row of the chunk, at most 255. Written by the scheduler; a hint for claimants,
  // and for those of later batches of a stream.
  std::atomic<uint8_t> deaths[kMaxChunks];
  ChunkProblem problems[kMaxChunks];
};
static_assert(offsetof(SlotHeader, facts) == 16 && offsetof(SlotHeader, end) == 120);
static_assert(offsetof(SlotHeader, chunk_words) == 160 + 4 * kMaxExcluded);
static_assert(sizeof(SlotHeader) == 160 + 4 * kMaxExcluded + 41 * kMaxChunks && sizeof(SlotHeader) <= kLayoutOffset);
static_assert(std::is_trivially_destructible_v<SlotHeader> && std::is_standard_layout_v<SlotHeader>);

// Side data starts at multiples of this.
inline constexpr size_t kSideAlignment = 64;
constexpr uint64_t AlignedSide(uint64_t bytes) {
  return (bytes + kSideAlignment - 1) / kSideAlignment * kSideAlignment;
}

// Size in bytes of the table that locates the samples of a kItems batch.
constexpr size_t KeptTableBytes(uint64_t rows) { return AlignedSide(rows * sizeof(SideRecord)); }

// The state of the first `chunks` chunks of a batch.
struct ChunksState {
  bool done = false;    // all are
  bool failed = false;  // all are done, and one of them has a problem
};
// Starts at `from`, wraps around, and stops at the first chunk that is not done.
inline ChunksState LookAtChunks(const SlotHeader& slot, uint64_t sequence, uint32_t chunks, uint32_t from = 0) {
  ChunksState state;
  for (uint32_t step = 0; step < chunks; ++step) {
    const uint32_t chunk = from + step < chunks ? from + step : from + step - chunks;
    // Sequentially consistent with the store that marks a chunk done: of two that finish at once, one sees both.
    const uint64_t word = slot.chunk_words[chunk].load();
    if (!IsDone(word, sequence)) {
      return {};
    }
    state.failed = state.failed || IsFailed(word);
  }
  state.done = true;
  return state;
}

}  // namespace headrace::shared_memory
