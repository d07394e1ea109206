// _core.fill_mersenne_twister: the state of a Mersenne Twister that begins a stream of its own.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>

#include "framework/errors.h"
#include "python/bindings/bindings.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

// The words of an MT19937's state (Matsumoto and Nishimura, 1998).
constexpr size_t kWords = 624;

// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014). The generators' own
// seeding takes twenty times as long, because each word depends on the one before.
void Fill(uint64_t seed, std::byte* words) {
  for (size_t i = 0; i < kWords / 2; ++i) {
    uint64_t word = seed + (i + 1) * 0x9E3779B97F4A7C15U;
    word = (word ^ (word >> 30U)) * 0xBF58476D1CE4E5B9U;
    word = (word ^ (word >> 27U)) * 0x94D049BB133111EBU;
    word ^= word >> 31U;
    std::memcpy(words + i * sizeof(word), &word, sizeof(word));
  }
}

void FillMersenneTwister(const py::buffer& state, uint64_t seed) {
  Py_buffer view;
  if (PyObject_GetBuffer(state.ptr(), &view, PyBUF_WRITABLE) != 0) {
    throw py::error_already_set();
  }
  const bool fits = view.len == static_cast<Py_ssize_t>(kWords * sizeof(uint32_t));
  if (fits) {
    Fill(seed, static_cast<std::byte*>(view.buf));
  }
  PyBuffer_Release(&view);
  HR_ENFORCE(fits, InvalidArgument, "the state of a Mersenne Twister has ", kWords, " words of 32 bits");
}

}  // namespace

void BindMersenneTwister(py::module_& m) {
  m.def("fill_mersenne_twister", &FillMersenneTwister, py::arg("state"), py::arg("seed"),
        "Fills the 624 words of 32 bits of a Mersenne Twister's state with random bits that depend on the seed, of 64 "
        "bits. ValueError for a buffer of another size.");
}

}  // namespace headrace::python
