// Transcendental functions over arrays, with Eigen's vectorised polynomials. Every element is computed by the same
// instructions, wherever it lies and whatever its neighbours are; so the bits of a result do not depend on alignment or
// on position.
//
// `y` may be `x`. NaN gives NaN. T is float or double.
#pragma once

#include <cstdint>

namespace headrace::ops {

// Results below the smallest normal number are 0.
template <typename T>
void VectorExp(int64_t n, const T* x, T* y);
template <typename T>
void VectorLog(int64_t n, const T* x, T* y);
template <typename T>
void VectorTanh(int64_t n, const T* x, T* y);
// 1 / (1 + exp(-x))
template <typename T>
void VectorSigmoid(int64_t n, const T* x, T* y);

}  // namespace headrace::ops
