// The global generators of random, numpy.random and torch, seeded for one sample after the other.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

namespace headrace::python {

// The state of a generator that is a Mersenne Twister, MT19937 (Matsumoto and Nishimura, 1998), where that keeps it.
struct MersenneTwister {
  static constexpr size_t kWords = 624;

  std::byte* words = nullptr;      // of 32 bits; null: nobody knows where they are
  uint32_t* position = nullptr;    // of the next word
  pybind11::object generator{};    // whose state it is
  pybind11::object seed_slowly{};  // seeds the generator at hand in its own way, which takes 4 to 30 µs

  // Puts random bits that depend on the seed in place of all words.
  void Fill(uint64_t seed) const;
};

// Seeds them for a sample. Their own ways to take a seed cost more than many samples, so the states of Python's and
// NumPy's are written where they are.
//
// Thread-safety: the caller holds the GIL. NumPy draws without it, under the lock of its generator, which is taken.
class GlobalGenerators {
 public:
  GlobalGenerators(MersenneTwister random, MersenneTwister numpy);

  // Seeds all of them, torch's only if it has been imported, as a function of the two keys.
  void Seed(uint64_t epoch_key, uint64_t record_key);

 private:
  void SeedRandom(uint64_t seed);
  void SeedNumpy(uint64_t seed);
  void SeedTorch(uint64_t seed);

  const MersenneTwister random_;
  const MersenneTwister numpy_;
  // Methods that run for each sample.
  pybind11::object get_bit_generator_;
  pybind11::object set_bit_generator_;
  pybind11::object acquire_;
  pybind11::object release_;
  pybind11::object torch_manual_seed_;  // null until torch has been imported
};

// What stands for a row of a batch as the record of GlobalGenerators::Seed.
inline uint64_t PositionKey(uint64_t batch, uint32_t row) { return batch << 32U ^ row; }

// What stands for the collation of a batch as a row: no batch has as many.
inline constexpr uint32_t kCollationRow = UINT32_MAX;

}  // namespace headrace::python
