// Matrix products.
//
// Each element of a product is summed in blocks of at most 512 products, or 256 without AVX-512: in a block one product
// after another, each multiplied and added with one rounding; then block after block. So its bits depend on the shapes
// and the instruction set, but neither on where the matrices are in memory, nor on the sizes of caches or the number of
// threads. (Processors without fused multiply-add round twice.) T is float or double.
//
// On one thread it takes as long as Eigen's product (kernel_benchmark). It is our own for its bits, which Eigen's
// product changes with the number of threads, and for products without a matrix in memory (gemm_panels.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "framework/export.h"

namespace headrace::ops {

// How many multiplications a thread does at least before it comes back for more.
inline constexpr int64_t kGemmWorkPerTask = 1 << 20;

// How many products of `multiplications` each a thread makes at least. The smallest take as long as 4,096.
inline int64_t ProductsPerTask(int64_t multiplications) {
  constexpr int64_t kLeast = 4096;
  return std::max<int64_t>(1, kGemmWorkPerTask / std::max(kLeast, multiplications));
}

// c[m, n] = alpha · op(a) · op(b), or, if `accumulate`, c += alpha · op(a) · op(b). All matrices are row-major and
// contiguous; op transposes: `a` is [m, k], or [k, m] if `transpose_a`; `b` is [k, n], or [n, k] if `transpose_b`. `c`
// must not overlap the others. Runs on the threads of this thread's pool.
template <typename T>
HEADRACE_API void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a,
                       const T* b, bool accumulate, T* c);

// A matrix in memory: element (r, c) lies at data[r · row + c · col].
template <typename T>
struct StridedMatrix {
  const T* data;
  int64_t row;
  int64_t col;
};

// As above, with matrices that are parts of others: c has rows `c_row` apart.
template <typename T>
HEADRACE_API void Gemm(int64_t m, int64_t n, int64_t k, T alpha, const StridedMatrix<T>& a, const StridedMatrix<T>& b,
                       bool accumulate, T* c, int64_t c_row);

}  // namespace headrace::ops
