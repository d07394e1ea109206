// Transcendental functions over arrays, by those of chunk_math.h. `y` may be `x`. T is float or double.
#pragma once

#include <cstdint>

#include "framework/export.h"

namespace headrace::ops {

// Whether products of matrices, and the functions of which avx512_loop.h has loops, run in vectors of 512 bits: if the
// processor has AVX-512, and the library was compiled with that in mind.
HEADRACE_API bool UsesAvx512();

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
