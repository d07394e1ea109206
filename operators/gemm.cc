#include "operators/gemm.h"

#include <Eigen/Core>

namespace headrace::ops {
namespace {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Eigen chooses its blocks, and with them the order of summation, by the sizes of the caches. Fixed sizes (those of a
// common server core) give the same bits on every machine with the same instruction set.
[[maybe_unused]] const bool kCacheSizesAreFixed = [] {
  Eigen::setCpuCacheSizes(32 * 1024, 512 * 1024, 4 * 1024 * 1024);
  return true;
}();

// Below this, Eigen's product falls back to one that vectorises along the destination's alignment.
constexpr int64_t kTiny = 20;

template <typename T>
void TinyGemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, const T* b,
              bool accumulate, T* c) {
  const int64_t a_row = transpose_a ? 1 : k;
  const int64_t a_col = transpose_a ? m : 1;
  const int64_t b_row = transpose_b ? 1 : n;
  const int64_t b_col = transpose_b ? k : 1;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += a[i * a_row + l * a_col] * b[l * b_row + j * b_col];
      }
      T& out = c[i * n + j];
      out = accumulate ? out + alpha * sum : alpha * sum;
    }
  }
}

}  // namespace

template <typename T>
void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, const T* b,
          bool accumulate, T* c) {
  if (m == 0 || n == 0) {
    return;
  }
  // A single row or column would go to Eigen's dot product, which peels by alignment where both are one.
  if (m + n + k < kTiny || (m == 1 && n == 1)) {
    TinyGemm(transpose_a, transpose_b, m, n, k, alpha, a, b, accumulate, c);
    return;
  }
  Eigen::Map<Matrix<T>> out(c, m, n);
  const Eigen::Map<const Matrix<T>> lhs(a, transpose_a ? k : m, transpose_a ? m : k);
  const Eigen::Map<const Matrix<T>> rhs(b, transpose_b ? n : k, transpose_b ? k : n);
  if (!accumulate) {
    out.setZero();
  }
  if (transpose_a && transpose_b) {
    out.noalias() += alpha * lhs.transpose() * rhs.transpose();
  } else if (transpose_a) {
    out.noalias() += alpha * lhs.transpose() * rhs;
  } else if (transpose_b) {
    out.noalias() += alpha * lhs * rhs.transpose();
  } else {
    out.noalias() += alpha * lhs * rhs;
  }
}

template void Gemm<float>(bool, bool, int64_t, int64_t, int64_t, float, const float*, const float*, bool, float*);
template void Gemm<double>(bool, bool, int64_t, int64_t, int64_t, double, const double*, const double*, bool, double*);

}  // namespace headrace::ops
