// What lies at the arena's begin: constants, the words by which scheduler, producers and consumer find and wake each
// other, and a record of each producer.
//
// The scheduler writes all of it but the producers' records, and reads nothing of it back but these: it has its own
// copies, from which it repairs what a stray write has changed (BatchScheduler::CheckSharedState).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "reader/shared_memory/seal.h"

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

// Written before the first producer starts; a producer copies it when it is made.
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
  uint64_t seal;        // SealOf(*this, 0)
};
static_assert(sizeof(ArenaConstants) == 72 && offsetof(ArenaConstants, seal) == 64);
static_assert(std::has_unique_object_representations_v<ArenaConstants>);

// Where a producer is on its way out.
enum class Retirement : uint32_t {
  kServes = 0,
  kToRetire = 1,  // by the scheduler: end after the claim at hand
  kRetired = 2,   // by the producer: it holds no claim and will make none
};

// What one producer is doing. Written by that producer alone, except `retirement`; read by the scheduler for reports,
// figures and the cut of batches, none of which a wrong word can harm.
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
  std::atomic<Retirement> retirement;
};
static_assert(sizeof(ProducerRecord) == 128 && offsetof(ProducerRecord, retirement) == 72);

// ProducerRecord::row of a producer that prepares for its claim.
inline constexpr uint32_t kNoRow = ~uint32_t{0};

// Adds to a counter that has one writer, which so needs no locked instruction.
inline void AddTo(std::atomic<uint64_t>& counter, uint64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

struct ControlBlock {
  ArenaConstants constants;
  // How long producers wait awake, at most, before they go to sleep. Written by the scheduler at any time.
  std::atomic<int64_t> spin_ns;

  // Futex: grows whenever there may be work, or a reason to stop. Producers sleep on it.
  alignas(kCacheLine) std::atomic<uint32_t> work_signal;
  // Grows when chunks of batches that were fully claimed become free again: producers look at the oldest batches once
  // more.
  std::atomic<uint32_t> rescan;
  std::atomic<uint32_t> stop;
  std::atomic<uint64_t> oldest;  // the batch that the consumer waits for; none before it is open
  std::atomic<uint64_t> next;    // one past the newest open batch

  // A bit for each producer that sleeps or is about to: no system call is made while there is none. A bit, not a count,
  // since a dead sleeper must be taken out without knowing how far it had come.
  alignas(kCacheLine) std::atomic<uint64_t> sleepers[kMaxProducers / 64];

  // 1 while the consumer sleeps; whoever completes a batch then writes to the scheduler's eventfd.
  alignas(kCacheLine) std::atomic<uint32_t> consumer_sleeps;

  // Slot of batch `sequence`, at sequence % kMaxSlots. No more than kMaxSlots batches are open at once.
  alignas(kCacheLine) std::atomic<uint32_t> ring[kMaxSlots];
  ProducerRecord producers[kMaxProducers];
};
static_assert(offsetof(ControlBlock, work_signal) == 128 && offsetof(ControlBlock, sleepers) == 192);
static_assert(offsetof(ControlBlock, consumer_sleeps) == 256 && offsetof(ControlBlock, ring) == 320);
static_assert(offsetof(ControlBlock, producers) == 320 + 4 * kMaxSlots);
static_assert(sizeof(ControlBlock) == 320 + 4 * kMaxSlots + 128 * kMaxProducers);
static_assert(std::is_trivially_destructible_v<ControlBlock> && std::is_standard_layout_v<ControlBlock>);
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);

// The bit of the futex by which a producer sleeps: some work is for certain ones only. Those that share a bit are woken
// together.
constexpr uint32_t SleeperBit(uint32_t producer) { return uint32_t{1} << producer % 32; }

// Whether anybody sleeps, of the producers below `end`. To be asked after work_signal has grown.
inline bool AnySleeper(const ControlBlock& control, uint32_t end = kMaxProducers) {
  for (uint32_t word = 0; word * 64 < end; ++word) {
    if (control.sleepers[word].load() != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace headrace::shared_memory
