// A checksum at the end of what one process writes to shared memory and another relies on: it reveals a stray write in
// between, or the remains of another batch. It guards against accidents, not attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace headrace::shared_memory {

// Checksum of `bytes` bytes. `salt` identifies what they belong to, so the same bytes are not valid elsewhere.
inline uint64_t Checksum(const void* data, size_t bytes, uint64_t salt) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio
  const char* next = static_cast<const char*>(data);
  uint64_t sum = (salt + bytes + 1) * kFactor;
  for (; bytes > 0;) {
    uint64_t word = 0;
    const size_t count = bytes < sizeof(word) ? bytes : sizeof(word);
    std::memcpy(&word, next, count);
    sum = (sum ^ word) * kFactor;
    sum ^= sum >> 29;
    next += count;
    bytes -= count;
  }
  return sum;
}

// Checksum of a record whose last member is its uint64_t `checksum`.
template <typename Record>
uint64_t ChecksumOf(const Record& record, uint64_t salt) {
  static_assert(std::has_unique_object_representations_v<Record>, "padding has no defined content");
  static_assert(offsetof(Record, checksum) + sizeof(uint64_t) == sizeof(Record));
  return Checksum(&record, offsetof(Record, checksum), salt);
}

// Copies what another process may be changing, so that what is checked is also what is used. The barrier keeps the
// compiler from reading the original again.
inline void CopyShared(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  asm volatile("" ::: "memory");
}
template <typename Record>
Record CopyShared(const Record& shared) {
  static_assert(std::is_trivially_copyable_v<Record>);
  Record copy;
  CopyShared(&copy, &shared, sizeof(copy));
  return copy;
}

}  // namespace headrace::shared_memory
