// One shared mapping for the life of a loader: a control block, the rings of a trace, and a row of slots,
// each holding one batch.
//
// The memory is a memfd: it has no name, is not bound by the size of /dev/shm and vanishes with the last process that
// maps it. It is sparse: a slot reserves `slot_bytes` of address space and uses only the pages that a batch has
// touched, so that a larger batch fits without mapping anew. It is sealed against resizing, so that no process can make
// another's mapping fault.
//
// Everything in shared memory is trivially copyable or a lock-free atomic, and refers to the rest by offsets and
// numbers, never by pointers.
//
// Thread-safety: an Arena object is immutable after construction and may be used by any thread; what is inside is
// guarded as the comments of the structs say. "The scheduler" is the one object, in the main process, that opens
// batches (batch_scheduler.h); "a producer" is a worker that fills them (batch_producer.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "framework/export.h"
#include "reader/shared_memory/trace.h"

namespace headrace::shared_memory {

inline constexpr uint32_t kMaxSlots = 1024;
inline constexpr uint32_t kMaxProducers = 512;
// A batch is claimed in at most this many chunks of consecutive rows.
inline constexpr uint32_t kMaxChunks = 256;
inline constexpr size_t kCacheLine = 64;
// Leaves of a batch start at multiples of this.
inline constexpr size_t kLeafAlignment = 128;

// How the position of a sample in an epoch becomes its index in the dataset.
enum class IndexOrder : uint32_t {
  kSequential = 0,
  kShuffled = 1,  // IndexPermutation(length, seed, epoch)
  kExplicit = 2,  // the slot carries the indices
  kStream = 3,    // there are none: the producers iterate over streams
};

// What the claimant of a chunk has to do.
enum class ClaimKind : uint32_t {
  kRows = 0,     // make its rows, each in its place
  kWhole = 1,    // make all samples of the batch and collate them: a collate function of the user's, or a mismatch
  kItems = 2,    // make its rows and keep them for the batch's collation
  kCollate = 3,  // collate what was kept
  kStream = 4,   // make the next batch of a stream
};

// "rows", "whole", …
HEADRACE_API const char* NameOf(ClaimKind kind);

// Whether the claimant makes the batch as it will be delivered, alone.
constexpr bool MakesBatch(ClaimKind kind) { return kind != ClaimKind::kRows && kind != ClaimKind::kItems; }

// What a batch says of its stream.
enum class StreamEnd : uint32_t {
  kGoesOn = 0,
  kAfter = 1,   // these are the last rows
  kBefore = 2,  // the stream was over: there are no rows, and the batch is not delivered
};

// Bytes somewhere in a slot.
struct SideRecord {
  uint64_t offset;
  uint64_t bytes;
};

// The bit by which a producer sleeps: some work is for certain ones only. Those that share a bit are woken together.
constexpr uint32_t SleeperBit(uint32_t producer) { return uint32_t{1} << producer % 32; }

// What one producer is doing. Written by that producer alone, read by the scheduler, except `retired`.
struct alignas(kCacheLine) ProducerRecord {
  std::atomic<uint64_t> sequence;  // the batch of the sample at hand
  std::atomic<uint32_t> row;       // its row; kNoRow: none has been begun since the claim
  std::atomic<uint32_t> busy;      // 1 between a claim and its completion
  std::atomic<uint64_t> samples;   // made so far
  std::atomic<uint64_t> work_ns;   // spent on claimed chunks
  std::atomic<uint64_t> wait_ns;   // spent waiting for work
  std::atomic<uint64_t> claims;
  // Of work_ns: in the dataset, collating, writing to the slot.
  std::atomic<uint64_t> dataset_ns;
  std::atomic<uint64_t> collate_ns;
  std::atomic<uint64_t> copy_ns;
  std::atomic<uint32_t> retirement;  // kServes, …
};

// ProducerRecord::row of a producer that prepares for its claim.
inline constexpr uint32_t kNoRow = ~uint32_t{0};

// States of ProducerRecord::retirement.
inline constexpr uint32_t kServes = 0;
inline constexpr uint32_t kToRetire = 1;  // by the scheduler: end after the claim at hand
inline constexpr uint32_t kRetired = 2;   // by the producer: it holds no claim and will make none

struct ControlBlock {
  // Written once by the scheduler before any producer starts.
  uint64_t magic;
  uint64_t slot_bytes;
  uint32_t slot_count;
  uint32_t order;  // IndexOrder
  uint32_t trace_events;
  uint64_t dataset_length;
  uint64_t seed;
  uint64_t stride;     // from the position of a row to that of the next
  uint32_t collators;  // producers with a lower id may claim collations
  uint32_t in_order;   // 0: the consumer waits for any batch, not for the oldest
  // How long to wait awake, at most, before going to sleep. Written by the scheduler at any time.
  std::atomic<int64_t> spin_ns;

  // Futex: grows whenever there may be work, or a reason to stop. Producers sleep on it.
  alignas(kCacheLine) std::atomic<uint32_t> work_signal;
  std::atomic<uint32_t> work_sleepers;
  // Grows when chunks of batches that were fully claimed become free again: producers look at the oldest batches once
  // more.
  std::atomic<uint32_t> rescan;
  std::atomic<uint32_t> stop;
  std::atomic<uint64_t> oldest;  // the batch that the consumer waits for; none before it is open
  std::atomic<uint64_t> next;    // one past the newest open batch

  // 1 while the consumer sleeps; whoever completes a batch then writes to the scheduler's eventfd.
  alignas(kCacheLine) std::atomic<uint32_t> consumer_sleeps;

  // Slot of batch `sequence`, at sequence % kMaxSlots. No more than kMaxSlots batches are open at once.
  alignas(kCacheLine) std::atomic<uint32_t> ring[kMaxSlots];
  ProducerRecord producers[kMaxProducers];
};

// States of SlotHeader::layout_state besides kLayoutWriting + producer.
inline constexpr uint32_t kLayoutEmpty = 0;
inline constexpr uint32_t kLayoutReady = 1;
inline constexpr uint32_t kLayoutWriting = 16;

// A batch is made without at most so many of its rows (BatchScheduler::Skip).
inline constexpr uint32_t kMaxExcluded = 64;

// Bits of a chunk's claim word: the batch's sequence number above, the claimant below.
inline constexpr uint32_t kClaimantBits = 16;
inline constexpr uint64_t kUnclaimed = 0;       // claimants are producer + 1
inline constexpr uint64_t kWithdrawn = 0xFFFF;  // by the scheduler: not to be made any more
inline uint64_t ClaimWord(uint64_t sequence, uint64_t claimant) { return (sequence << kClaimantBits) | claimant; }
inline uint64_t Claimant(uint64_t word) { return word & 0xFFFF; }

// SlotHeader::maker where any producer may claim.
inline constexpr uint32_t kAnybody = ~uint32_t{0};

// Why a chunk did not give its rows.
struct ChunkProblem {
  uint64_t offset;  // of a message in the slot; its meaning is the producer's and the consumer's affair
  uint64_t bytes;
  uint32_t row;
  uint32_t kind;  // kNoProblem, …
};
inline constexpr uint32_t kNoProblem = 0;
inline constexpr uint32_t kFailed = 1;    // making the sample raised an error
inline constexpr uint32_t kMismatch = 2;  // the sample does not fit the layout of the batch

// A batch in the making. Fields without atomics are written by the scheduler while no chunk of the batch can be
// claimed, and read by a producer only while it holds a claim: the claim word's release/acquire pair orders the two.
//
// A chunk goes Unclaimed → claimed (one compare-and-swap of its word, which names batch and claimant at once) → done
// (one fetch_or). So at every instant, wherever a producer is killed, the words say exactly which chunks are lost:
// those whose claimant is dead and whose bit is not set.
//
// A batch of kind kItems has one chunk more than its rows need, the last: its collation. That can be claimed once the
// others are done and none of them has failed; if one has, it is not needed. Both follow from `done` and items_failed
// alone, which do not change any more then, so that nobody has to see to it and nothing is lost with whoever would.
struct SlotHeader {
  std::atomic<uint64_t> sequence;
  std::atomic<uint32_t> chunks;
  uint32_t rows;
  uint32_t chunk_rows;
  std::atomic<uint32_t> kind;   // ClaimKind; kItems: of all chunks but the last, which is kCollate
  std::atomic<uint32_t> maker;  // the only producer that may claim, or kAnybody
  uint32_t stream;
  uint64_t epoch;
  uint64_t batch;           // index of the batch in its epoch; kStream: in its stream
  uint64_t first_position;  // of row 0 in the epoch
  uint64_t indices_bytes;   // kExplicit: indices at kDataOffset, as int64, or pickled when pickled_indices is 1
  uint32_t pickled_indices;
  uint32_t excluded_count;
  uint32_t excluded[kMaxExcluded];  // kWhole: rows that are not made, in ascending order
  std::atomic<uint32_t> layout_state;
  std::atomic<uint32_t> cursor;        // hint: chunks before it are probably claimed
  uint32_t layout_bytes;               // written by the layout's author before kLayoutReady
  std::atomic<uint64_t> side_bytes;    // taken from the end of the slot for what has no fixed place
  std::atomic<uint32_t> items_failed;  // kItems: 1 if a chunk has a problem; set before its bit in done
  // Written by the one claimant that makes the batch (MakesBatch) before its bit in done.
  uint32_t made_rows;
  uint32_t stream_end;  // StreamEnd
  SideRecord attachment;
  std::atomic<uint64_t> done_ns;  // if there is a trace: when the last chunk was done
  uint64_t kept_bytes;            // so many of side_bytes, from the slot's end on, are of use until the collation only
  std::atomic<uint64_t> done[kMaxChunks / 64];
  std::atomic<uint64_t> claims[kMaxChunks];
  // How many producers have died at a row of the chunk, at most 255. Written by the scheduler; a hint for claimants.
  std::atomic<uint8_t> deaths[kMaxChunks];
  ChunkProblem problems[kMaxChunks];  // entry c is written by the claimant of chunk c before its bit in done
};

// Offsets within a slot. The layout (batch_layout.h) describes what is in the data; side data grows down from the
// slot's end.
inline constexpr size_t kLayoutOffset = 12 * 1024;
inline constexpr size_t kDataOffset = 256 * 1024;
static_assert(sizeof(SlotHeader) <= kLayoutOffset);
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);
static_assert(kMaxProducers < kWithdrawn);

struct ArenaOptions {
  uint32_t slot_count = 64;             // at most kMaxSlots
  size_t slot_bytes = size_t{4} << 30;  // address space per slot, 1 MiB to 1 TiB; halved if the system refuses
  IndexOrder order = IndexOrder::kSequential;
  uint64_t dataset_length = 0;
  uint64_t seed = 0;
  uint32_t trace_events = 0;  // remembered of each producer, at most kMaxTraceEvents; 0: there is no trace
};

class HEADRACE_API Arena {
 public:
  // Creates and maps an arena. Throws InvalidArgument for a count or size out of range, ResourceExhausted with the
  // number of bytes if the system gives no memory, IoError if a system call fails. Where address space is limited, the
  // slots come out smaller and leave half of it to others.
  static std::shared_ptr<Arena> Create(const ArenaOptions& options);

  // Maps the arena behind `fd`, which another process created; `fd` is duplicated. Throws DataLoss if it is not an
  // arena, IoError if it is no file at all, ResourceExhausted if it cannot be mapped.
  static std::shared_ptr<Arena> Attach(int fd);

  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int fd() const { return fd_; }
  ControlBlock& control() const { return *reinterpret_cast<ControlBlock*>(base_); }
  uint32_t slot_count() const { return slot_count_; }
  size_t slot_bytes() const { return slot_bytes_; }
  SlotHeader& slot(uint32_t index) const { return *reinterpret_cast<SlotHeader*>(slot_data(index)); }
  // Start of the slot.
  std::byte* slot_data(uint32_t index) const {
    return base_ + slots_offset_ + static_cast<size_t>(index) * slot_bytes_;
  }

  // The ring of a producer, or of the scheduler (kMaxProducers). Without a trace it takes no notes.
  TraceRing trace(uint32_t producer) const;

  // Bytes of memory in use by all processes together.
  size_t ResidentBytes() const;

  // Gives the memory of a slot back to the system, from `offset` on. Nobody may be using it.
  void Release(uint32_t index, size_t offset);

 private:
  Arena() = default;
  // False, with errno, if the system refuses.
  bool Map(size_t bytes);

  int fd_ = -1;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  size_t slots_offset_ = 0;
  size_t slot_bytes_ = 0;
  uint32_t slot_count_ = 0;
};

}  // namespace headrace::shared_memory
