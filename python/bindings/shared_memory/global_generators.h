// The global generators of random, numpy.random and torch, seeded for one sample after the other.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace headrace::python {

// A generator that may be a Mersenne Twister, and its state, if it is known where it keeps that.
//
// Thread-safety: the caller holds the GIL, and the generator's lock, if Python knows one.
class MersenneTwister {
 public:
  // A tuple of the generator; its state or None; what makes it forget a number that it has drawn in advance; and what
  // seeds the generator at hand in its own way, which takes 1 to 30 µs, for a state that is not known.
  //
  // A state is a tuple of buffers over the 624 words of 32 bits, and over the bytes that say which word is the next; of
  // these bytes when it is the first; and of a buffer over the seed of 64 bits, or None if the generator keeps none.
  //
  // Throws InvalidArgument for buffers of other sizes, and what Python raises for those that cannot be written to.
  explicit MersenneTwister(const pybind11::tuple& description);

  const pybind11::object& generator() const { return generator_; }
  bool is_known() const { return words_ != nullptr; }

  // Sets all words to random bits that depend on the seed alone; SeedSlowly if it is not known where these are. torch
  // takes seeds of 63 bits, the others of 64.
  void Seed(uint64_t seed);
  void SeedSlowly(uint64_t seed) const;

 private:
  // Whether nothing has been drawn since Seed, so that no number was drawn in advance.
  bool IsAsSeeded() const;

  pybind11::object generator_;
  pybind11::object forget_;
  pybind11::object seed_slowly_;
  std::byte* words_ = nullptr;
  std::byte* position_ = nullptr;
  std::byte* seed_ = nullptr;  // null: the generator keeps none
  std::string first_position_;
  uint64_t first_words_ = 0;  // two of them, as Seed has set them
  uint64_t last_words_ = 0;
};

// Seeds them for a sample. Their own ways to take a seed cost more than many samples, so their states are written where
// they are.
//
// Thread-safety: the caller holds the GIL. NumPy draws without it, under the lock of its generator, which is taken.
// torch draws without it, too, under a lock that is out of reach: if another thread of the program draws while a sample
// is seeded, then it draws other numbers, as it would with that lock; whichever of the writes to the position comes
// last, the next word is one of the state's.
class GlobalGenerators {
 public:
  // Descriptions as MersenneTwister takes them; `find_torch`, called once a module torch is there, returns torch's, or
  // None while another thread imports it.
  GlobalGenerators(const pybind11::tuple& random, const pybind11::tuple& numpy, pybind11::object find_torch);

  // Seeds all of them, torch's only if it has been imported, as a function of the two keys.
  void Seed(uint64_t epoch_key, uint64_t record_key);

 private:
  void SeedNumpy(uint64_t seed);
  void SeedTorch(uint64_t seed);

  MersenneTwister random_;
  MersenneTwister numpy_;
  std::optional<MersenneTwister> torch_;  // none until torch has been imported
  pybind11::object find_torch_;
  // NumPy's methods that run for each sample.
  pybind11::object get_bit_generator_;
  pybind11::object acquire_;
  pybind11::object release_;
};

// What stands for a row of a batch as the record of GlobalGenerators::Seed.
inline uint64_t PositionKey(uint64_t batch, uint32_t row) { return batch << 32U ^ row; }

// What stands for the collation of a batch as a row: no batch has as many.
inline constexpr uint32_t kCollationRow = UINT32_MAX;

}  // namespace headrace::python
