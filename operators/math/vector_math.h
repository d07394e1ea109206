// Transcendental functions over arrays, by those of chunk_math.h. `y` may be `x`. T is float or double.
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
