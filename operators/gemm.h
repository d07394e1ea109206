// Matrix products, so that one source file alone instantiates Eigen's.
#pragma once

#include <cstdint>

namespace headrace::ops {

// c[m, n] = alpha · op(a) · op(b), or, if `accumulate`, c += alpha · op(a) · op(b). All matrices are row-major and
// contiguous; op transposes: `a` is [m, k], or [k, m] if `transpose_a`; `b` is [k, n], or [n, k] if `transpose_b`. `c`
// must not overlap the others.
//
// The bits of the result do not depend on where the matrices lie in memory nor on the processor's cache sizes. T is
// float or double.
template <typename T>
void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, const T* b,
          bool accumulate, T* c);

}  // namespace headrace::ops
