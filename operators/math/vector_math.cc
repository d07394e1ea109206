#include "operators/math/vector_math.h"

#include <Eigen/Core>
#include <cmath>
#include <limits>

namespace headrace::ops {
namespace {

// A whole number of the widest vector registers, so that Eigen has no remainder to compute element by element.
constexpr int kChunk = 16;
template <typename T>
using Chunk = Eigen::Array<T, kChunk, 1>;

template <typename T, typename Function>
void ForEachChunk(int64_t n, const T* x, T* y, Function&& function) {
  int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    const Chunk<T> in = Eigen::Map<const Chunk<T>>(x + i);
    Eigen::Map<Chunk<T>>(y + i) = function(in);
  }
  if (i < n) {
    Chunk<T> in = Chunk<T>::Ones();
    for (int64_t j = i; j < n; ++j) {
      in[j - i] = x[j];
    }
    const Chunk<T> out = function(in);
    for (int64_t j = i; j < n; ++j) {
      y[j] = out[j - i];
    }
  }
}

}  // namespace

template <typename T>
void VectorExp(int64_t n, const T* x, T* y) {
  // Eigen's clamps its argument, so that the smallest result is not 0 but denormal: exp(-infinity) would not be 0.
  static const T smallest = std::log(std::numeric_limits<T>::min());
  ForEachChunk(n, x, y, [](const Chunk<T>& v) -> Chunk<T> {
    const Chunk<T> exp = v.exp();
    return (v < smallest).select(Chunk<T>::Zero(), exp);
  });
}

template <typename T>
void VectorLog(int64_t n, const T* x, T* y) {
  // Eigen's takes denormals for the smallest normal number: they are computed from 2^64 times as large ones.
  static constexpr T kSmallest = std::numeric_limits<T>::min();
  static constexpr T kScale = static_cast<T>(0x1p64);
  static const T log_of_scale = std::log(kScale);
  ForEachChunk(n, x, y, [](const Chunk<T>& v) -> Chunk<T> {
    if (!(v < kSmallest).any()) {
      return v.log();
    }
    const Chunk<T> log = (v < kSmallest).select(v * kScale, v).log();
    return (v < kSmallest).select(log - log_of_scale, log);
  });
}

template <typename T>
void VectorTanh(int64_t n, const T* x, T* y) {
  // Eigen's clamps its argument, and a NaN with it.
  ForEachChunk(n, x, y, [](const Chunk<T>& v) -> Chunk<T> {
    const Chunk<T> tanh = v.tanh();
    return v.isNaN().select(v, tanh);
  });
}

template <typename T>
void VectorSigmoid(int64_t n, const T* x, T* y) {
  ForEachChunk(n, x, y, [](const Chunk<T>& v) -> Chunk<T> {
    const Chunk<T> exp = (-v).exp();
    return (exp + T(1)).inverse();
  });
}

#define HEADRACE_INSTANTIATE(T)                       \
  template void VectorExp<T>(int64_t, const T*, T*);  \
  template void VectorLog<T>(int64_t, const T*, T*);  \
  template void VectorTanh<T>(int64_t, const T*, T*); \
  template void VectorSigmoid<T>(int64_t, const T*, T*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
