// A pseudo-random permutation of [0, length) that needs no list: each index is computed on its own, in O(1). Which
// loaders have this order is decided in python/headrace/data/_order/choose_order.py.
//
// A balanced Feistel network over the smallest even number of bits that holds `length`, walked until the value falls
// inside (cycle walking, after Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). A Feistel network is
// a bijection whatever its round function is, so the result is a permutation for every length; the domain is less than
// four times the length (or 64), so that few steps are walked.
//
// Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <span>

#include "framework/export.h"

namespace headrace {

class HEADRACE_API IndexPermutation {
 public:
  // `length` from 1 to 2^62 (InvalidArgument otherwise). Different (seed, epoch) pairs give independent permutations.
  IndexPermutation(uint64_t length, uint64_t seed, uint64_t epoch);

  uint64_t length() const { return length_; }

  // The index at `position`. Throws OutOfRange unless it is less than length().
  uint64_t operator()(uint64_t position) const;
  // Replaces positions by the indices there: several times as fast as one by one. Throws as above.
  void Map(std::span<uint64_t> positions) const;

 private:
  static constexpr int kRounds = 8;

  // The network, without the walk.
  uint64_t Permuted(uint64_t value) const;

  uint64_t length_;
  uint32_t half_bits_;
  uint64_t half_mask_;
  uint64_t keys_[kRounds];
};

// A bijection of 64-bit values that mixes every bit into every other: the finaliser of SplitMix64 (Steele, Lea and
// Flood, 2014).
inline uint64_t MixBits(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace headrace
