#include "reader/index_permutation.h"

#include <algorithm>
#include <bit>

#include "framework/errors.h"

namespace headrace {
namespace {

// With halves of 2 bits some orders of five or six elements come up a tenth more often than others, whatever the number
// of rounds: too few permutations can be composed of such rounds. From 3 bits on nothing of the kind can be measured.
constexpr uint32_t kLeastHalfBits = 3;

}  // namespace

IndexPermutation::IndexPermutation(uint64_t length, uint64_t seed, uint64_t epoch) : length_(length) {
  HR_ENFORCE(length >= 1 && length <= (uint64_t{1} << 62), InvalidArgument,
             "the length of a permutation must be 1 to 2^62, got ", length);
  const auto bits = static_cast<uint32_t>(std::bit_width(length - 1));
  half_bits_ = std::max(kLeastHalfBits, (bits + 1) / 2);
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  // Two dependent mixes keep (seed, epoch) and (seed + 1, epoch - 1) apart.
  uint64_t state = MixBits(MixBits(seed) ^ (epoch * 0xD1B54A32D192ED03ULL));
  for (uint64_t& key : keys_) {
    state = MixBits(state);
    key = state;
  }
}

uint64_t IndexPermutation::operator()(uint64_t position) const {
  // Outside its range the walk below might never end.
  HR_ENFORCE(position < length_, OutOfRange, "position ", position, " of a permutation of length ", length_);
  uint64_t value = position;
  do {
    value = Permuted(value);
  } while (value >= length_);
  return value;
}

void IndexPermutation::Map(std::span<uint64_t> positions) const {
  // The positions that are still walking: a processor works on several of them at once, as long as no branch depends on
  // where one is.
  constexpr size_t kAtOnce = 64;
  uint32_t walking[kAtOnce];
  for (size_t begin = 0; begin < positions.size(); begin += kAtOnce) {
    const std::span<uint64_t> values = positions.subspan(begin, std::min(kAtOnce, positions.size() - begin));
    uint32_t left = 0;
    for (uint64_t value : values) {
      HR_ENFORCE(value < length_, OutOfRange, "position ", value, " of a permutation of length ", length_);
      walking[left] = left;
      ++left;
    }
    while (left != 0) {
      uint32_t still = 0;
      for (uint32_t i = 0; i < left; ++i) {
        const uint32_t at = walking[i];
        const uint64_t value = Permuted(values[at]);
        values[at] = value;
        walking[still] = at;
        still += value >= length_ ? 1 : 0;
      }
      left = still;
    }
  }
}

inline uint64_t IndexPermutation::Permuted(uint64_t value) const {
  uint64_t left = value >> half_bits_;
  uint64_t right = value & half_mask_;
  for (const uint64_t key : keys_) {
    const uint64_t mixed = left ^ (MixBits(right ^ key) & half_mask_);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

}  // namespace headrace
