// Philox4x32-10, the counter-based random number generator of J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A pure function of (counter, key): number i of a stream costs
// the same as number 0, and does not depend on who asked for the others.
//
// Thread-safety: pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::ops {

using PhiloxBlock = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline PhiloxBlock Philox4x32(PhiloxBlock counter, PhiloxKey key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;  // the golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85;  // √3 − 1
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// The stream of random numbers of one seed.
class PhiloxStream {
 public:
  // `stream` tells apart streams of one seed.
  explicit PhiloxStream(uint64_t seed, uint64_t stream = 0)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, stream_(stream) {}

  // 128 random bits, a function of the seed, the stream and `index`.
  PhiloxBlock Block(uint64_t index) const {
    return Philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream_),
                       static_cast<uint32_t>(stream_ >> 32)},
                      key_);
  }

 private:
  PhiloxKey key_;
  uint64_t stream_;
};

// A number from [0, 1), a multiple of 2^-53, from 64 random bits.
inline double UniformOfBits(uint32_t high, uint32_t low) {
  return static_cast<double>((static_cast<uint64_t>(high) << 32 | low) >> 11) * 0x1p-53;
}

// Number `i`, 0 or 1, of a block, uniform in (0, 1): a multiple of 2^-53 that is neither 0 nor 1.
inline double UniformOpen(const PhiloxBlock& block, size_t i) {
  const uint64_t bits = (static_cast<uint64_t>(block[2 * i]) << 32 | block[2 * i + 1]) >> 12;
  return static_cast<double>(2 * bits + 1) * 0x1p-53;
}

}  // namespace headrace::ops
