// Functions of a chunk of elements, which Eigen's vectorised polynomials compute: each element by the same
// instructions, wherever it lies and whatever its neighbours are. So the bits of a result depend neither on alignment
// nor on position. NaN gives NaN; results whose magnitude is below the smallest normal number are 0. T is float or
// double; where Eigen has no polynomial for double, the standard library computes it, element by element.
//
// Functions that branchless.h has for float are of a chunk of double or of a float itself, which stands for a chunk of
// one: ForEachVector calls them in a loop that the compiler vectorises, by chunks or for wider vectors.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <unsupported/Eigen/SpecialFunctions>

#include "operators/math/avx512_loop.h"
#include "operators/math/branchless.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {

// A whole number of the widest vector registers, so that Eigen has no remainder to compute element by element.
inline constexpr int kChunk = 16;
template <typename T>
using Chunk = Eigen::Array<T, kChunk, 1>;

// n elements at x, n <= kChunk; the rest of the chunk is 1.
template <typename T>
Chunk<T> ReadPart(int64_t n, const T* x) {
  Chunk<T> chunk = Chunk<T>::Ones();
  for (int64_t i = 0; i < n; ++i) {
    chunk[i] = x[i];
  }
  return chunk;
}

// y = function(x, …), chunk by chunk. `y` may be one of the arguments.
template <typename T, typename Function, typename... Arrays>
void ForEachChunk(int64_t n, T* y, Function&& function, const Arrays*... x) {
  int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    Eigen::Map<Chunk<T>>(y + i) = function(Chunk<T>(Eigen::Map<const Chunk<T>>(x + i))...);
  }
  if (i < n) {
    const Chunk<T> out = function(ReadPart(n - i, x + i)...);
    for (int64_t j = i; j < n; ++j) {
      y[j] = out[j - i];
    }
  }
}

// The value of an expression of Eigen's.
template <typename Expression>
auto Evaluated(const Expression& expression) {
  if constexpr (std::is_arithmetic_v<Expression>) {
    return expression;
  } else {
    return expression.eval();
  }
}

// function(a, b, …), element by element, in a loop that the compiler vectorises where it can.
template <typename Function, typename T, typename... More>
Chunk<T> ForEachElement(Function&& function, const Chunk<T>& first, const More&... more) {
  Chunk<T> out;
  HEADRACE_VECTORISED_WHOLE
  for (int i = 0; i < kChunk; ++i) {
    out[i] = function(first[i], more[i]...);
  }
  return out;
}

template <typename Function, std::floating_point... Elements>
auto ForEachElement(Function&& function, Elements... elements) {
  return function(elements...);
}

// y = function(x, …), of floats or of chunks of double. Of floats, it is arithmetic without branches or calls: it has
// the same bits in vectors of any width. `y` may be one of the arguments.
template <typename T, typename Function, typename... Arrays>
void ForEachVector(int64_t n, T* y, Function function, const Arrays*... x) {
  if constexpr (!std::is_same_v<T, float>) {
    ForEachChunk(n, y, function, x...);
  } else if (n >= kChunk && HasAvx512()) {
    RunAvx512Loop(n, y, function, x...);
  } else {
    ForEachChunk(n, y, [&](const auto&... chunk) { return ForEachElement(function, chunk...); }, x...);
  }
}

inline float ChunkExp(float x) { return branchless::Exp(x); }
inline Chunk<double> ChunkExp(const Chunk<double>& x) {
  // Eigen's clamps its argument, so that the smallest result is not 0 but denormal: exp(-infinity) would not be 0.
  static const double smallest = std::log(std::numeric_limits<double>::min());
  const Chunk<double> exp = x.exp();
  return ForEachElement([](double v, double e) { return v < smallest ? 0 : e; }, x, exp);
}

inline float ChunkLog(float x) { return branchless::Log(x); }
inline Chunk<double> ChunkLog(const Chunk<double>& x) {
  // Eigen's takes denormals for the smallest normal number: they are computed from 2^64 times as large ones.
  constexpr double kSmallest = std::numeric_limits<double>::min();
  constexpr double kScale = 0x1p64;
  static const double log_of_scale = std::log(kScale);
  if (!(x < kSmallest).any()) {
    return x.log();
  }
  const Chunk<double> log = (x < kSmallest).select(x * kScale, x).log();
  return (x < kSmallest).select(log - log_of_scale, log);
}

inline float ChunkTanh(float x) { return branchless::Tanh(x); }
inline Chunk<double> ChunkTanh(const Chunk<double>& x) {
  // Eigen's clamps its argument, and a NaN with it.
  const Chunk<double> tanh = x.tanh();
  return ForEachElement([](double v, double t) { return v != v ? v : t; }, x, tanh);
}

// 1 / (1 + exp(-x))
inline float ChunkSigmoid(float x) { return branchless::Sigmoid(x); }
inline Chunk<double> ChunkSigmoid(const Chunk<double>& x) {
  static const double smallest = std::log(std::numeric_limits<double>::min());
  const Chunk<double> exp = (-x).exp();
  return ForEachElement([](double v, double e) { return v < smallest ? 0 : 1 / (1 + e); }, x, exp);
}

// log(1 + exp(x))
inline float ChunkSoftplus(float x) { return branchless::Softplus(x); }
inline Chunk<double> ChunkSoftplus(const Chunk<double>& x) {
  const Chunk<double> log = ChunkExp((-x.abs()).eval()).log1p();
  return ForEachElement([](double v, double l) { return v != v ? v : (v > 0 ? v : 0) + l; }, x, log);
}

// exp(x) - 1 where x < 0, else x
inline float ChunkExpLinear(float x) { return branchless::ExpLinear(x); }
inline Chunk<double> ChunkExpLinear(const Chunk<double>& x) {
  const Chunk<double> exp = x.min(0.0).expm1();
  return ForEachElement([](double v, double e) { return v < 0 ? e : v; }, x, exp);
}

// The arc sine and the arc cosine.
inline float ChunkArcSine(float x) { return branchless::ArcSine(x); }
inline Chunk<double> ChunkArcSine(const Chunk<double>& x) { return x.asin(); }
inline float ChunkArcCosine(float x) { return branchless::ArcCosine(x); }
inline Chunk<double> ChunkArcCosine(const Chunk<double>& x) { return x.acos(); }

// The arc tangent.
inline float ChunkArcTangent(float x) { return branchless::ArcTangent(x); }
inline Chunk<double> ChunkArcTangent(const Chunk<double>& x) { return x.atan(); }

// The error function.
inline float ChunkErf(float x) { return branchless::Erf(x); }
inline Chunk<double> ChunkErf(const Chunk<double>& x) {
  // Eigen 5's squares its argument, which may overflow. From 6 on, the result is 1.
  const Chunk<double> erf = x.max(-6.0).min(6.0).erf();
  return ForEachElement([](double v, double e) { return v != v ? v : e; }, x, erf);
}

}  // namespace headrace::ops
