// The state of a Mersenne Twister, MT19937 (Matsumoto and Nishimura, 1998), seeded some ten times faster than
// generators seed themselves: in their way, each word depends on the one before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "framework/export.h"

namespace headrace::ops {

inline constexpr size_t kMersenneTwisterWords = 624;

using MersenneTwisterWords = std::array<uint32_t, kMersenneTwisterWords>;

// All words of the state of a generator that has yet to make its first numbers: bits that depend on the seed alone, and
// look random, whatever the seeds.
//
// The numbers of SplitMix (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014) with words of
// 32 bits, whose multiplication has vector instructions. Start and increment are an output of the usual one, of 64
// bits.
//
// Thread-safety: pure.
HEADRACE_API MersenneTwisterWords MersenneTwisterState(uint64_t seed);

}  // namespace headrace::ops
