// _core.GlobalGenerators.
#include "python/bindings/shared_memory/global_generators.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "framework/errors.h"
#include "operators/math/philox.h"
#include "python/bindings/bindings.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

void Call(const py::object& function) {
  if (!py::reinterpret_steal<py::object>(PyObject_CallNoArgs(function.ptr()))) {
    throw py::error_already_set();
  }
}

void Call(const py::object& function, const py::object& argument) {
  if (!py::reinterpret_steal<py::object>(PyObject_CallOneArg(function.ptr(), argument.ptr()))) {
    throw py::error_already_set();
  }
}

// Buffers over the words of a state and over the position, in memory of the generator's.
using State = std::pair<py::buffer, py::buffer>;

MersenneTwister Twister(const py::object& generator, const std::optional<State>& state, const py::object& seed_slowly) {
  MersenneTwister twister{.generator = generator, .seed_slowly = seed_slowly};
  if (state) {
    const py::buffer_info words = state->first.request(/*writable=*/true);
    const py::buffer_info position = state->second.request(/*writable=*/true);
    HR_ENFORCE(words.size * words.itemsize == MersenneTwister::kWords * sizeof(uint32_t) &&
                   position.size * position.itemsize == sizeof(uint32_t),
               InvalidArgument, "the state of a Mersenne Twister has ", MersenneTwister::kWords,
               " words of 32 bits, and a position of one more");
    twister.words = static_cast<std::byte*>(words.ptr);
    twister.position = static_cast<uint32_t*>(position.ptr);
  }
  return twister;
}

uint64_t Bits(const ops::PhiloxBlock& block, size_t pair) {
  return static_cast<uint64_t>(block[2 * pair]) << 32U | block[2 * pair + 1];
}

}  // namespace

// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014). The generators' own
// seeding takes twenty times as long, because each word depends on the one before.
void MersenneTwister::Fill(uint64_t seed) const {
  for (size_t i = 0; i < kWords / 2; ++i) {
    uint64_t word = seed + (i + 1) * 0x9E3779B97F4A7C15U;
    word = (word ^ (word >> 30U)) * 0xBF58476D1CE4E5B9U;
    word = (word ^ (word >> 27U)) * 0x94D049BB133111EBU;
    word ^= word >> 31U;
    std::memcpy(words + i * sizeof(word), &word, sizeof(word));
  }
  *position = kWords;
}

GlobalGenerators::GlobalGenerators(MersenneTwister random, MersenneTwister numpy)
    : random_(std::move(random)), numpy_(std::move(numpy)) {
  if (numpy_.words != nullptr) {
    const py::module_ module = py::module_::import("numpy.random");
    get_bit_generator_ = module.attr("get_bit_generator");
    set_bit_generator_ = module.attr("set_bit_generator");
    const py::object lock = numpy_.generator.attr("lock");
    acquire_ = lock.attr("acquire");
    release_ = lock.attr("release");
  }
}

void GlobalGenerators::Seed(uint64_t epoch_key, uint64_t record_key) {
  const ops::PhiloxBlock first = ops::PhiloxStream(epoch_key, 0).Block(record_key);
  const ops::PhiloxBlock second = ops::PhiloxStream(epoch_key, 1).Block(record_key);
  SeedRandom(Bits(first, 0));
  SeedNumpy(Bits(first, 1));
  SeedTorch(Bits(second, 0));
}

void GlobalGenerators::SeedRandom(uint64_t seed) {
  if (random_.words == nullptr) {
    Call(random_.seed_slowly, py::int_(seed));
    return;
  }
  random_.Fill(seed);
  // The second of two numbers that were drawn together.
  random_.generator.attr("gauss_next") = py::none();
}

void GlobalGenerators::SeedNumpy(uint64_t seed) {
  if (numpy_.words != nullptr && get_bit_generator_().is(numpy_.generator)) {  // the program may choose another
    Call(acquire_);
    numpy_.Fill(seed);
    Call(release_);
    Call(set_bit_generator_, numpy_.generator);  // drops the second of two numbers that were drawn together
    return;
  }
  Call(numpy_.seed_slowly, py::int_(seed));
}

void GlobalGenerators::SeedTorch(uint64_t seed) {
  if (!torch_manual_seed_) {
    const auto modules = py::reinterpret_borrow<py::dict>(PyImport_GetModuleDict());
    if (!modules.contains("torch")) {
      return;
    }
    // Not torch.manual_seed, which looks for devices to seed, too, and takes a hundred times as long.
    torch_manual_seed_ = modules["torch"].attr("default_generator").attr("manual_seed");
  }
  Call(torch_manual_seed_, py::int_(seed >> 1U));
}

void BindGlobalGenerators(py::module_& m) {
  py::class_<GlobalGenerators, std::shared_ptr<GlobalGenerators>>(
      m, "GlobalGenerators", "The global generators of random, numpy.random and torch, seeded for each sample.")
      .def(
          py::init([](const py::object& random, const std::optional<State>& random_state, const py::object& seed_random,
                      const py::object& numpy, const std::optional<State>& numpy_state, const py::object& seed_numpy) {
            return std::make_shared<GlobalGenerators>(Twister(random, random_state, seed_random),
                                                      Twister(numpy, numpy_state, seed_numpy));
          }),
          py::arg("random"), py::arg("random_state"), py::arg("seed_random"), py::arg("numpy"), py::arg("numpy_state"),
          py::arg("seed_numpy"),
          "Of each of random and numpy: the generator; buffers over the 624 words of its state and over the position, "
          "if it is a Mersenne Twister and it is known where it keeps them; and a function that seeds it by 64 bits in "
          "its own way, used if it is not known, or, with numpy, if the program has chosen another generator. "
          "ValueError or BufferError for buffers of another size, or that cannot be written to.")
      .def("seed", &GlobalGenerators::Seed, py::arg("epoch_key"), py::arg("record_key"),
           "Seeds them, torch's only if it has been imported, as a function of two keys of 64 bits.");
  m.attr("COLLATION_ROW") = kCollationRow;
  m.def(
      "mersenne_twister_words",
      [](uint64_t seed) {
        uint32_t position = 0;
        py::array_t<uint32_t> words(static_cast<py::ssize_t>(MersenneTwister::kWords));
        MersenneTwister{reinterpret_cast<std::byte*>(words.mutable_data()), &position}.Fill(seed);
        return words;
      },
      py::arg("seed"),
      "The words that `GlobalGenerators` gives a Mersenne Twister for a seed of 64 bits: a new uint32 array (624,).");
}

}  // namespace headrace::python
