// _core.GlobalGenerators.
#include "python/bindings/shared_memory/global_generators.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "framework/errors.h"
#include "operators/math/mersenne_twister.h"
#include "operators/math/philox.h"
#include "python/bindings/bindings.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

constexpr size_t kLastWords = sizeof(ops::MersenneTwisterWords) - sizeof(uint64_t);

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

std::byte* Memory(const py::handle& buffer, size_t size, const char* what) {
  const py::buffer_info info = py::cast<py::buffer>(buffer).request(/*writable=*/true);
  HR_ENFORCE(static_cast<size_t>(info.size * info.itemsize) == size, InvalidArgument, what,
             " of a Mersenne Twister has ", size, " bytes, got a buffer of ", info.size * info.itemsize);
  return static_cast<std::byte*>(info.ptr);
}

uint64_t Load(const std::byte* at) {
  uint64_t value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

uint64_t Bits(const ops::PhiloxBlock& block, size_t pair) {
  return static_cast<uint64_t>(block[2 * pair]) << 32U | block[2 * pair + 1];
}

}  // namespace

MersenneTwister::MersenneTwister(const py::tuple& description) {
  py::object state;
  std::tie(generator_, state, forget_, seed_slowly_) =
      py::cast<std::tuple<py::object, py::object, py::object, py::object>>(description);
  if (state.is_none()) {
    return;
  }
  const auto [words, position, first_position, seed] =
      py::cast<std::tuple<py::object, py::object, std::string, py::object>>(state);
  words_ = Memory(words, sizeof(ops::MersenneTwisterWords), "the state");
  position_ = Memory(position, first_position.size(), "the position");
  seed_ = seed.is_none() ? nullptr : Memory(seed, sizeof(uint64_t), "the seed");
  first_position_ = first_position;
}

void MersenneTwister::Seed(uint64_t seed) {
  if (!is_known()) {
    SeedSlowly(seed);
    return;
  }
  if (!IsAsSeeded()) {
    Call(forget_);
  }
  const ops::MersenneTwisterWords words = ops::MersenneTwisterState(seed);
  std::memcpy(words_, words.data(), sizeof(words));
  std::memcpy(position_, first_position_.data(), first_position_.size());
  if (seed_ != nullptr) {
    std::memcpy(seed_, &seed, sizeof(seed));
  }
  first_words_ = Load(words_);
  last_words_ = Load(words_ + kLastWords);
}

void MersenneTwister::SeedSlowly(uint64_t seed) const { Call(seed_slowly_, py::int_(seed)); }

bool MersenneTwister::IsAsSeeded() const {
  return std::memcmp(position_, first_position_.data(), first_position_.size()) == 0 && Load(words_) == first_words_ &&
         Load(words_ + kLastWords) == last_words_;
}

GlobalGenerators::GlobalGenerators(const py::tuple& random, const py::tuple& numpy, py::object find_torch)
    : random_(random), numpy_(numpy), find_torch_(std::move(find_torch)) {
  if (numpy_.is_known()) {
    get_bit_generator_ = py::module_::import("numpy.random").attr("get_bit_generator");
    const py::object lock = numpy_.generator().attr("lock");
    acquire_ = lock.attr("acquire");
    release_ = lock.attr("release");
  }
}

void GlobalGenerators::Seed(uint64_t epoch_key, uint64_t record_key) {
  const ops::PhiloxBlock first = ops::PhiloxStream(epoch_key, 0).Block(record_key);
  const ops::PhiloxBlock second = ops::PhiloxStream(epoch_key, 1).Block(record_key);
  random_.Seed(Bits(first, 0));
  SeedNumpy(Bits(first, 1));
  SeedTorch(Bits(second, 0) >> 1U);  // torch.initial_seed() is one of 63 bits
}

void GlobalGenerators::SeedNumpy(uint64_t seed) {
  if (!numpy_.is_known() || !get_bit_generator_().is(numpy_.generator())) {  // the program may choose another
    numpy_.SeedSlowly(seed);
    return;
  }
  Call(acquire_);
  try {
    numpy_.Seed(seed);
  } catch (...) {
    Call(release_);
    throw;
  }
  Call(release_);
}

void GlobalGenerators::SeedTorch(uint64_t seed) {
  if (!torch_) {
    if (!py::reinterpret_borrow<py::dict>(PyImport_GetModuleDict()).contains("torch")) {
      return;
    }
    const py::object found = find_torch_();
    if (found.is_none()) {
      return;
    }
    torch_.emplace(py::cast<py::tuple>(found));
  }
  torch_->Seed(seed);
}

void BindGlobalGenerators(py::module_& m) {
  py::class_<GlobalGenerators, std::shared_ptr<GlobalGenerators>>(
      m, "GlobalGenerators", "The global generators of random, numpy.random and torch, seeded for each sample.")
      .def(py::init<const py::tuple&, const py::tuple&, py::object>(), py::arg("random"), py::arg("numpy"),
           py::arg("find_torch"),
           "The first two describe a generator: the generator; its state or None; a function that makes it forget a "
           "number that it has drawn in advance; and one that seeds it by 64 bits in its own way, used if its state is "
           "not known, or, with numpy, if the program has chosen another generator. A state: buffers over the 624 "
           "words, and over the bytes that say which one is the next; these bytes when it is the first; and a buffer "
           "over the seed of 64 bits, or None. `find_torch`, called once a module torch is there, returns such a "
           "description, or None while that is being imported. ValueError or BufferError for buffers of another size, "
           "or that cannot be written to.")
      .def("seed", &GlobalGenerators::Seed, py::arg("epoch_key"), py::arg("record_key"),
           "Seeds them, torch's only if it has been imported, as a function of two keys of 64 bits.");
  m.attr("COLLATION_ROW") = kCollationRow;
  m.def(
      "mersenne_twister_words",
      [](uint64_t seed) {
        const ops::MersenneTwisterWords words = ops::MersenneTwisterState(seed);
        return py::array_t<uint32_t>(static_cast<py::ssize_t>(words.size()), words.data());
      },
      py::arg("seed"),
      "The words that `GlobalGenerators` gives a Mersenne Twister for a seed of 64 bits: a new uint32 array (624,).");
}

}  // namespace headrace::python
