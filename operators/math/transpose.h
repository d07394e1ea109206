// Transposition of matrices in memory, square by square: what is read of a cache line is read while it is there.
// Elements are copied as bytes, so that T may be any type of their size. Eigen's transpose takes longer
// (kernel_benchmark).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace headrace::ops {

// Writes the transpose of the 8 × 8 matrix `from`, in vectors: no array and no loop, lest they lie in memory on the
// way.
template <typename T>
  requires(sizeof(T) == 4)
inline void TransposeSquare(const T* from, int64_t stride, T* to, int64_t to_stride) {
  typedef T Vector __attribute__((vector_size(32)));
  // Not returned: without AVX, the ABI has no place for what a function returns, be it inlined or not.
  const auto load = [&](int row, Vector* v)
                        __attribute__((always_inline)) { __builtin_memcpy(v, from + row * stride, sizeof(*v)); };
  const auto store = [&](int row, const Vector& low, const Vector& high) __attribute__((always_inline)) {
    const Vector first = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11);
    const Vector second = __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
    __builtin_memcpy(to + row * to_stride, &first, sizeof(first));
    __builtin_memcpy(to + (row + 4) * to_stride, &second, sizeof(second));
  };
  // Columns 0 and 4, 1 and 5, 2 and 6, 3 and 7 of four rows.
  struct Four {
    Vector column[4];
  };
  const auto four = [&](int row) __attribute__((always_inline)) {
    Vector a, b, c, d;
    load(row, &a);
    load(row + 1, &b);
    load(row + 2, &c);
    load(row + 3, &d);
    const Vector ab = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
    const Vector cd = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13);
    const Vector ab2 = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    const Vector cd2 = __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    return Four{{__builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13),
                 __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15),
                 __builtin_shufflevector(ab2, cd2, 0, 1, 8, 9, 4, 5, 12, 13),
                 __builtin_shufflevector(ab2, cd2, 2, 3, 10, 11, 6, 7, 14, 15)}};
  };
  const Four low = four(0);
  const Four high = four(4);
  store(0, low.column[0], high.column[0]);
  store(1, low.column[1], high.column[1]);
  store(2, low.column[2], high.column[2]);
  store(3, low.column[3], high.column[3]);
}

template <typename T>
inline void TransposeSquare(const T* from, int64_t stride, T* to, int64_t to_stride) {
  for (int64_t c = 0; c < 8; ++c) {
    for (int64_t r = 0; r < 8; ++r) {
      std::memcpy(to + r * to_stride + c, from + c * stride + r, sizeof(T));
    }
  }
}

// Panel [rows, width] of the transpose of `from`, which has `cols` rows of stride `stride`.
template <typename T>
void TransposePanel(const T* from, int64_t stride, int64_t rows, int64_t cols, int64_t width, T* panel) {
  constexpr int64_t kSquare = 8;
  constexpr int64_t kLine = 64 / sizeof(T);  // all of a cache line while it is in the first-level cache
  for (int64_t line = 0; line < rows; line += kLine) {
    for (int64_t c = 0; c < cols; c += kSquare) {
      for (int64_t r = line; r < std::min(rows, line + kLine); r += kSquare) {
        const T* square = from + c * stride + r;
        T* to = panel + r * width + c;
        if (r + kSquare <= rows && c + kSquare <= cols) {
          TransposeSquare(square, stride, to, width);
          continue;
        }
        for (int64_t i = 0; i < std::min(kSquare, rows - r); ++i) {
          for (int64_t j = 0; j < std::min(kSquare, cols - c); ++j) {
            std::memcpy(to + i * width + j, square + j * stride + i, sizeof(T));
          }
        }
      }
    }
  }
}

}  // namespace headrace::ops
