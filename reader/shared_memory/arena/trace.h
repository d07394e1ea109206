// What happened when: rings in shared memory with the newest events of each producer and of the scheduler.
//
// Thread-safety and crash-safety: a ring has one writer at a time and any number of readers, in any process, which
// never block it: its words are atomic, and a reader uses the count to leave out events overwritten while it read them.
// A killed writer leaves at most one event that is not counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "framework/export.h"

namespace headrace::shared_memory {

inline constexpr uint32_t kMaxTraceEvents = uint32_t{1} << 20;

enum class TraceKind : uint32_t {
  // A producer's claim, from start to end; the numbers are those of ClaimKind.
  kRows = 0,
  kWhole = 1,
  kItems = 2,
  kCollate = 3,
  kStream = 4,
  // Instants in the life of a batch.
  kOpened = 16,
  kReady = 17,
  kTaken = 18,
  kReleased = 19,
  // The consumer waited.
  kWait = 20,
};

struct TraceEvent {
  static constexpr uint32_t kScheduler = ~uint32_t{0};

  TraceKind kind = TraceKind::kRows;
  uint32_t producer = kScheduler;
  uint64_t begin_ns = 0;  // CLOCK_MONOTONIC
  uint64_t end_ns = 0;
  uint64_t epoch = 0;
  uint64_t batch = 0;  // kStream: in its stream
  uint32_t stream = 0;
  uint32_t slot = 0;
  uint32_t begin_row = 0;
  uint32_t end_row = 0;
};

class HEADRACE_API TraceRing {
 public:
  // Records nothing.
  TraceRing() = default;
  // Over zeroed memory, or that of another TraceRing.
  TraceRing(std::byte* memory, uint32_t capacity);

  static constexpr size_t Bytes(uint32_t capacity) {
    return capacity == 0 ? 0 : (size_t{capacity} + 1) * kWords * sizeof(Word);
  }

  explicit operator bool() const { return words_ != nullptr; }
  void Write(const TraceEvent& event);
  // Appends the recorded events, oldest first, as events of `producer`.
  void Read(uint32_t producer, std::vector<TraceEvent>* out) const;

 private:
  using Word = std::atomic<uint64_t>;
  static constexpr size_t kWords = 8;  // per event; also for the count, which has a cache line to itself

  Word* EventAt(uint64_t index) const { return words_ + kWords * (1 + index % capacity_); }

  Word* words_ = nullptr;  // the number of events written so far, then the events
  uint32_t capacity_ = 0;
};

}  // namespace headrace::shared_memory
