// Waiting on a 32-bit word that several processes map.
//
// Thread-safety: any thread of any process that maps the word. A process killed while it waits leaves the word
// unchanged.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace headrace::shared_memory {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

inline uint64_t MonotonicNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000ULL + static_cast<uint64_t>(now.tv_nsec);
}

// The same clock, cheaper to read and a few milliseconds behind.
inline uint64_t CoarseNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000ULL + static_cast<uint64_t>(now.tv_nsec);
}

// Bits tell sleepers apart: a wake-up reaches those that share a bit with it.
inline constexpr uint32_t kAllSleepers = FUTEX_BITSET_MATCH_ANY;

// Sleeps while `word` is `expected`, for at most `timeout_ns` (negative: without limit). May return spuriously.
inline void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns,
                      uint32_t bits = kAllSleepers) {
  timespec limit{};
  timespec* limit_pointer = nullptr;
  if (timeout_ns >= 0) {
    const uint64_t end = MonotonicNanoseconds() + static_cast<uint64_t>(timeout_ns);
    limit.tv_sec = static_cast<time_t>(end / 1'000'000'000);
    limit.tv_nsec = static_cast<long>(end % 1'000'000'000);
    limit_pointer = &limit;
  }
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET, expected, limit_pointer, nullptr, bits);
}

// Wakes up to `count` sleepers.
inline void FutexWake(std::atomic<uint32_t>& word, int count = INT_MAX, uint32_t bits = kAllSleepers) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_BITSET, count, nullptr, nullptr, bits);
}

}  // namespace headrace::shared_memory
