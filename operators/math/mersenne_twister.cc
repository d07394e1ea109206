#include "operators/math/mersenne_twister.h"

namespace headrace::ops {
namespace {

uint64_t Mixed64(uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

// Of the invertible functions of this form, one that C. Wellons' search for the least bias found ("hash-prospector").
uint32_t Mixed32(uint32_t value) {
  value = (value ^ (value >> 16U)) * 0x21F0AAADU;
  value = (value ^ (value >> 15U)) * 0xD35A2D97U;
  return value ^ (value >> 15U);
}

}  // namespace

MersenneTwisterWords MersenneTwisterState(uint64_t seed) {
  const uint64_t mixed = Mixed64(seed + 0x9E3779B97F4A7C15U);
  const auto start = static_cast<uint32_t>(mixed);
  const uint32_t increment = static_cast<uint32_t>(mixed >> 32U) | 1U;
  MersenneTwisterWords words;  // NOLINT(cppcoreguidelines-pro-type-member-init): all are set below
  for (uint32_t i = 0; i < words.size(); ++i) {
    words[i] = Mixed32(start + i * increment);
  }
  return words;
}

}  // namespace headrace::ops
