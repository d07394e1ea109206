// A loop over elements in vectors of 512 bits, for processors with AVX-512, which choose it at run time: x86-64-v3
// compiles everything else for 256 bits.
#pragma once

#include <cstdint>

#include "operators/math/element_loop.h"

namespace headrace::ops {

// Clang has other attributes and pragmas; it gets the same bits from AVX2.
#if defined(__AVX2__) && defined(__FMA__) && defined(__GNUC__) && !defined(__clang__)
#define HEADRACE_AVX512
#endif

#if defined(HEADRACE_AVX512)
// Everything that `function` calls is inlined here. So no other symbol holds code for AVX-512, which the linker could
// give to a source that runs without it.
template <typename T, typename Function, typename... Arrays>
__attribute__((flatten, target("avx512f,prefer-vector-width=512"))) void RunAvx512Loop(int64_t n, T* y,
                                                                                       Function function,
                                                                                       const Arrays*... x) {
  HEADRACE_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < n; ++i) {
    y[i] = function(x[i]...);
  }
}

inline bool HasAvx512() { return __builtin_cpu_supports("avx512f") != 0; }
#else
template <typename T, typename Function, typename... Arrays>
void RunAvx512Loop(int64_t, T*, Function, const Arrays*...) {}

inline bool HasAvx512() { return false; }
#endif

}  // namespace headrace::ops
