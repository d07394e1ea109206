// The start of the arena: constants, the words through which scheduler, producers and consumer find and wake each
// other, and one record per producer.
//
// The scheduler writes all of it except the producers' records, and reads back nothing but these: it keeps its own
// copies, from which it repairs what a stray write has changed (BatchScheduler::RestoreControlBlock).
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "reader/shared_memory/arena/checksum.h"

namespace headrace::shared_memory {

inline constexpr uint32_t kMaxSlots = 1024;
inline constexpr uint32_t kMaxProducers = 512;
inline constexpr size_t kCacheLine = 64;

// How the position of a sample in an epoch becomes its index in the dataset.
enum class IndexOrder : uint32_t {
  kSequential = 0,
  kShuffled = 1,  // IndexPermutation(length, seed, epoch)
  kExplicit = 2,  // the slot carries the indices
  kStream = 3,    // there are none: the producers iterate over streams
};

// Written before the first producer starts; each producer copies it on construction.
struct ArenaConstants {
  uint64_t magic;
  uint64_t slot_bytes;
  uint64_t dataset_length;
  uint64_t seed;
  uint64_t stride;  // from the position of a row to that of the next
  uint32_t slot_count;
  uint32_t trace_events;
  IndexOrder order;
  uint32_t collators;   // producers with a lower id may claim collations
  uint32_t in_order;    // 0: the consumer waits for any batch, not for the oldest
  uint32_t recheck_ms;  // ArenaOptions
  uint64_t checksum;    // ChecksumOf(*this, 0)
};
static_assert(sizeof(ArenaConstants) == 72 && offsetof(ArenaConstants, checksum) == 64);
static_assert(std::has_unique_object_representations_v<ArenaConstants>);

// Where a producer is on its way out.
enum class Retirement : uint32_t {
  kServes = 0,
  kToRetire = 1,  // by the scheduler: end after the claim at hand
  kRetired = 2,   // by the producer: it holds no claim and will make none
};

// What one producer is doing. Written only by that producer, except `retirement`; the scheduler reads it for reports,
// statistics and chunk sizes, none of which a wrong word can harm.
struct alignas(kCacheLine) ProducerRecord {
  std::atomic<uint64_t> sequence;  // the batch of the sample at hand
  std::atomic<uint32_t> row;       // its row; kNoRow: none has been started since the claim
  std::atomic<uint32_t> busy;      // 1 between a claim and its completion
  std::atomic<uint64_t> samples;   // made so far
  std::atomic<uint64_t> work_ns;   // spent on claimed chunks
  std::atomic<uint64_t> wait_ns;   // spent waiting for work
  std::atomic<uint64_t> claims;
  // Of work_ns: in the dataset, collating, writing to the slot.
  std::atomic<uint64_t> dataset_ns;
  std::atomic<uint64_t> collate_ns;
  std::atomic<uint64_t> copy_ns;
  std::atomic<Retirement> retirement;
};
static_assert(sizeof(ProducerRecord) == 128 && offsetof(ProducerRecord, retirement) == 72);

// ProducerRecord::row of a producer that has a claim and has not started a row.
inline constexpr uint32_t kNoRow = ~uint32_t{0};

// Adds to a counter with a single writer, which needs no locked instruction.
inline void AddTo(std::atomic<uint64_t>& counter, uint64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

struct ControlBlock {
  ArenaConstants constants;
  // How long producers spin, at most, before they sleep. The scheduler may write it at any time.
  std::atomic<int64_t> spin_ns;

  // Futex: incremented whenever there may be work, or a reason to stop. Producers sleep on it.
  alignas(kCacheLine) std::atomic<uint32_t> work_signal;
  // Incremented when chunks of fully claimed batches become free again: producers then rescan from the oldest batch.
  std::atomic<uint32_t> rescan;
  std::atomic<uint32_t> stop;
  std::atomic<uint64_t> oldest;  // the batch that the consumer waits for; no earlier one is open
  std::atomic<uint64_t> next;    // one past the newest open batch

  // One bit per producer that sleeps or is about to; while none is set, nobody makes a system call. Bits rather than a
  // count, because a dead sleeper must be removed without knowing how far it had got.
  alignas(kCacheLine) std::atomic<uint64_t> sleepers[kMaxProducers / 64];

  // 1 while the consumer sleeps; a producer that completes a batch then writes to the scheduler's eventfd.
  alignas(kCacheLine) std::atomic<uint32_t> consumer_sleeps;

  // Slot of batch `sequence`, at sequence % kMaxSlots. At most kMaxSlots batches are open at once.
  alignas(kCacheLine) std::atomic<uint32_t> ring[kMaxSlots];
  ProducerRecord producers[kMaxProducers];
};
static_assert(offsetof(ControlBlock, work_signal) == 128 && offsetof(ControlBlock, sleepers) == 192);
static_assert(offsetof(ControlBlock, consumer_sleeps) == 256 && offsetof(ControlBlock, ring) == 320);
static_assert(offsetof(ControlBlock, producers) == 320 + 4 * kMaxSlots);
static_assert(sizeof(ControlBlock) == 320 + 4 * kMaxSlots + 128 * kMaxProducers);
static_assert(std::is_trivially_destructible_v<ControlBlock> && std::is_standard_layout_v<ControlBlock>);
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);

// The futex bit under which a producer sleeps, since some work is for certain producers only. Those that share a bit
// wake together.
constexpr uint32_t SleeperBit(uint32_t producer) { return uint32_t{1} << producer % 32; }

// Whether any producer below `end` sleeps. Call it after incrementing work_signal.
inline bool AnySleeper(const ControlBlock& control, uint32_t end = kMaxProducers) {
  for (uint32_t word = 0; word * 64 < end; ++word) {
    if (control.sleepers[word].load() != 0) {
      return true;
    }
  }
  return false;
}

// Whether a producer sleeps.
inline bool IsAsleep(const ControlBlock& control, uint32_t producer) {
  return (control.sleepers[producer / 64].load(std::memory_order_relaxed) >> producer % 64 & 1) != 0;
}

// How many producers below `end` sleep.
inline uint32_t CountSleepers(const ControlBlock& control, uint32_t end) {
  uint32_t count = 0;
  for (uint32_t word = 0; word * 64 < end; ++word) {
    count += static_cast<uint32_t>(std::popcount(control.sleepers[word].load(std::memory_order_relaxed)));
  }
  return count;
}

}  // namespace headrace::shared_memory
