#include "operators/gemm.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "framework/thread_pool.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define HEADRACE_GEMM_AVX2
#if defined(__GNUC__) && !defined(__clang__)  // Clang has another pragma; it gets the same bits from AVX2
#define HEADRACE_GEMM_AVX512
#endif
#endif

namespace headrace::ops {
namespace {

// What one call of the inner loop computes: c[rows, columns] (+)= alpha · a · b. `b` has whole vectors in each row.
template <typename T>
struct GemmTile {
  int64_t depth;
  const T* a;
  int64_t a_row;
  int64_t a_col;
  const T* b;
  int64_t b_row;
  T alpha;
  bool add;
  T* c;
  int64_t c_row;
  int64_t columns;
};

// An instruction set: functions for 1 to max_rows rows of one vector or two.
template <typename T>
struct GemmIsa {
  int64_t lanes;
  int64_t max_rows;
  void (*const* one)(const GemmTile<T>&);
  void (*const* two)(const GemmTile<T>&);
};

#if defined(HEADRACE_GEMM_AVX512)
#pragma GCC push_options
#pragma GCC target("avx512f,prefer-vector-width=512")
namespace avx512 {
typedef float FloatVector __attribute__((vector_size(64)));
typedef double DoubleVector __attribute__((vector_size(64)));
constexpr int kMaxRows = 14;
inline void MultiplyAdd(const FloatVector& a, const FloatVector& b, FloatVector* sum) {
  *sum = _mm512_fmadd_ps(a, b, *sum);
}
inline void MultiplyAdd(const DoubleVector& a, const DoubleVector& b, DoubleVector* sum) {
  *sum = _mm512_fmadd_pd(a, b, *sum);
}
#include "operators/gemm_tile.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

#if defined(HEADRACE_GEMM_AVX2)
namespace baseline {
typedef float FloatVector __attribute__((vector_size(32)));
typedef double DoubleVector __attribute__((vector_size(32)));
constexpr int kMaxRows = 6;
inline void MultiplyAdd(const FloatVector& a, const FloatVector& b, FloatVector* sum) {
  *sum = _mm256_fmadd_ps(a, b, *sum);
}
inline void MultiplyAdd(const DoubleVector& a, const DoubleVector& b, DoubleVector* sum) {
  *sum = _mm256_fmadd_pd(a, b, *sum);
}
#include "operators/gemm_tile.h"
}  // namespace baseline
#else
namespace baseline {
typedef float FloatVector __attribute__((vector_size(16)));
typedef double DoubleVector __attribute__((vector_size(16)));
constexpr int kMaxRows = 4;
template <typename Vector>
void MultiplyAdd(const Vector& a, const Vector& b, Vector* sum) {
  *sum += a * b;
}
#include "operators/gemm_tile.h"
}  // namespace baseline
#endif

template <typename T>
const GemmIsa<T>& BestIsa() {
  static const GemmIsa<T> isa = [] {
#if defined(HEADRACE_GEMM_AVX512)
    if (__builtin_cpu_supports("avx512f")) {
      return avx512::Isa<T>();
    }
#endif
    return baseline::Isa<T>();
  }();
  return isa;
}

// Of the left-hand side; so many fit the second-level cache with a block of depth.
constexpr int64_t kRowsPerTask = 140;

// How many tiles read columns of b where they lie, rather than from a copy: where rows lie close together, the
// second-level cache has them as fast as some more tiles need them.
template <typename T>
int64_t MaxDirectTiles(const StridedMatrix<T>& b) {
  return b.row * static_cast<int64_t>(sizeof(T)) <= 2048 ? 10 : 4;
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// [begin, begin + size) for part `i` of `parts` of nearly the same size.
struct Part {
  Part(int64_t whole, int64_t parts, int64_t i) : begin(whole * i / parts), size(whole * (i + 1) / parts - begin) {}
  int64_t begin;
  int64_t size;
};

// Writes the transpose of the 8 × 8 matrix `from`, in vectors.
inline void TransposeSquare(const float* from, int64_t stride, float* to, int64_t to_stride) {
  typedef float Vector __attribute__((vector_size(32)));
  Vector a[8];
  Vector b[8];
  for (int i = 0; i < 8; ++i) {
    __builtin_memcpy(&a[i], from + i * stride, sizeof(Vector));
  }
  for (int i = 0; i < 8; i += 2) {  // pairs of elements
    b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {  // fours
    for (int j = 0; j < 2; ++j) {
      a[i + 2 * j] = __builtin_shufflevector(b[i + j], b[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      a[i + 2 * j + 1] = __builtin_shufflevector(b[i + j], b[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {  // eights
    b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < 8; ++i) {
    __builtin_memcpy(to + i * to_stride, &b[i], sizeof(Vector));
  }
}

inline void TransposeSquare(const double* from, int64_t stride, double* to, int64_t to_stride) {
  for (int64_t c = 0; c < 8; ++c) {
    for (int64_t r = 0; r < 8; ++r) {
      to[r * to_stride + c] = from[c * stride + r];
    }
  }
}

// Panel [rows, width] of the transpose of `from`, which has `cols` rows of stride `stride`.
template <typename T>
void TransposePanel(const T* from, int64_t stride, int64_t rows, int64_t cols, int64_t width, T* panel) {
  constexpr int64_t kSquare = 8;
  for (int64_t r = 0; r < rows; r += kSquare) {
    for (int64_t c = 0; c < cols; c += kSquare) {
      const T* square = from + c * stride + r;
      T* to = panel + r * width + c;
      if (r + kSquare <= rows && c + kSquare <= cols) {
        TransposeSquare(square, stride, to, width);
        continue;
      }
      for (int64_t i = 0; i < std::min(kSquare, rows - r); ++i) {
        for (int64_t j = 0; j < std::min(kSquare, cols - c); ++j) {
          to[i * width + j] = square[j * stride + i];
        }
      }
    }
  }
}

// Panel [rows, width] of `from`, whose rows lie `stride` apart: kBytes of each, a constant, lest every row cost a call.
template <int64_t kBytes, typename T>
void CopyPanel(const T* from, int64_t stride, int64_t rows, int64_t width, T* panel) {
  for (int64_t r = 0; r < rows; ++r) {
    __builtin_memcpy(panel + r * width, from + r * stride, kBytes);
  }
}

// c (+)= alpha · a · b. Columns of b come as they lie in memory (`direct`) or by panels.
//
// The product is cut into tasks of some rows and some panels of columns, which threads share. A task goes through k
// block by block; in each through its panels, which then are in the first-level cache, and for each through its rows,
// which are in the second-level one.
template <typename T>
void Multiply(int64_t m, int64_t n, int64_t k, T alpha, const StridedMatrix<T>& a, const StridedMatrix<T>* direct,
              const PanelSource<T>& source, bool accumulate, T* c, int64_t c_row) {
  if (m == 0 || n == 0) {
    return;
  }
  if (k == 0) {
    for (int64_t r = 0; r < m && !accumulate; ++r) {
      std::fill_n(c + r * c_row, n, T(0));
    }
    return;
  }
  const GemmIsa<T>& isa = BestIsa<T>();
  const int64_t panel_width = 2 * isa.lanes;
  const int64_t blocks = CeilDiv(k, kGemmDepth);
  const int64_t row_tasks = CeilDiv(m, kRowsPerTask);
  const int64_t panels = CeilDiv(n, panel_width);
  const int64_t panels_per_task =
      std::clamp<int64_t>(kGemmWorkPerTask / (std::min(m, kRowsPerTask) * panel_width * k), 1, panels);
  const int64_t col_tasks = CeilDiv(panels, panels_per_task);
  ParallelFor(row_tasks * col_tasks, 1, [&](int64_t first_task, int64_t end_task) {
    // Rows of unaligned panels would lie on two cache lines each.
    alignas(64) T packed[kGemmDepth * 64 / sizeof(T) * 2];
    for (int64_t task = first_task; task < end_task; ++task) {
      const Part rows(m, row_tasks, task % row_tasks);
      const int64_t tiles = CeilDiv(rows.size, isa.max_rows);
      const int64_t first_col = task / row_tasks * panels_per_task * panel_width;
      const int64_t end_col = std::min(n, first_col + panels_per_task * panel_width);
      for (int64_t block = 0; block < blocks; ++block) {
        const Part depth(k, blocks, block);
        for (int64_t col = first_col; col < end_col; col += panel_width) {
          const int64_t cols = std::min(panel_width, end_col - col);
          const int64_t width = cols > isa.lanes ? panel_width : isa.lanes;
          GemmTile<T> tile{.depth = depth.size,
                           .a = nullptr,
                           .a_row = a.row,
                           .a_col = a.col,
                           .b = packed,
                           .b_row = width,
                           .alpha = alpha,
                           .add = accumulate || block > 0,
                           .c = nullptr,
                           .c_row = c_row,
                           .columns = cols};
          if (direct != nullptr && direct->col == 1 && cols == width && tiles <= MaxDirectTiles(*direct)) {
            tile.b = direct->data + depth.begin * direct->row + col;
            tile.b_row = direct->row;
          } else {
            if (cols < width) {
              std::fill_n(packed, depth.size * width, T(0));
            }
            source(depth.begin, depth.size, col, cols, width, packed);
          }
          for (int64_t t = 0; t < tiles; ++t) {
            const Part part(rows.size, tiles, t);
            const int64_t row = rows.begin + part.begin;
            tile.a = a.data + row * a.row + depth.begin * a.col;
            tile.c = c + row * c_row + col;
            (cols > isa.lanes ? isa.two : isa.one)[part.size - 1](tile);
          }
        }
      }
    }
  });
}

// A task takes a panel of columns of some rows through all terms, in a part of c of its own.
template <typename T>
void MultiplyShifts(int64_t m, int64_t n, int64_t k, const T* a, const T* b, int64_t b_row, const int64_t* shifts,
                    int64_t terms, const PanelSink<T>& sink) {
  if (m == 0 || n == 0) {
    return;
  }
  const GemmIsa<T>& isa = BestIsa<T>();
  const int64_t width = 2 * isa.lanes;
  const int64_t blocks = CeilDiv(k, kGemmDepth);
  const int64_t row_tasks = CeilDiv(m, kRowsPerTask);
  const int64_t panels = CeilDiv(n, width);
  const int64_t panels_per_task = std::clamp<int64_t>(
      kGemmWorkPerTask / std::max<int64_t>(1, std::min(m, kRowsPerTask) * width * k * terms), 1, panels);
  ParallelFor(row_tasks * panels, panels_per_task, [&](int64_t first, int64_t end) {
    alignas(64) T part_of_c[kRowsPerTask * 128 / sizeof(T)];
    static_assert(sizeof(part_of_c) == kRowsPerTask * 128);
    for (int64_t task = first; task < end; ++task) {
      const Part rows(m, row_tasks, task / panels);
      const int64_t col = task % panels * width;
      const int64_t tiles = CeilDiv(rows.size, isa.max_rows);
      for (int64_t t = 0; t < terms; ++t) {
        for (int64_t block = 0; block < blocks; ++block) {
          const Part depth(k, blocks, block);
          GemmTile<T> tile{.depth = depth.size,
                           .a = nullptr,
                           .a_row = k,
                           .a_col = 1,
                           .b = b + shifts[t] + depth.begin * b_row + col,
                           .b_row = b_row,
                           .alpha = T(1),
                           .add = t > 0 || block > 0,
                           .c = nullptr,
                           .c_row = width,
                           .columns = width};
          for (int64_t i = 0; i < tiles; ++i) {
            const Part part(rows.size, tiles, i);
            tile.a = a + (t * m + rows.begin + part.begin) * k + depth.begin;
            tile.c = part_of_c + part.begin * width;
            isa.two[part.size - 1](tile);
          }
        }
      }
      sink(rows.begin, rows.size, col, std::min(width, n - col), width, part_of_c);
    }
  });
}

}  // namespace

template <typename T>
void Gemm(int64_t m, int64_t n, int64_t k, T alpha, const StridedMatrix<T>& a, const StridedMatrix<T>& b,
          bool accumulate, T* c, int64_t c_row) {
  const auto panel = [&b](int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t width, T* to) {
    const T* from = b.data + row * b.row + col * b.col;
    if (b.col != 1) {
      TransposePanel(from, b.col, rows, cols, width, to);
      return;
    }
    switch (cols * static_cast<int64_t>(sizeof(T))) {
      case 32:
        return CopyPanel<32>(from, b.row, rows, width, to);
      case 64:
        return CopyPanel<64>(from, b.row, rows, width, to);
      case 128:
        return CopyPanel<128>(from, b.row, rows, width, to);
      default:
        for (int64_t r = 0; r < rows; ++r) {
          std::copy_n(from + r * b.row, cols, to + r * width);
        }
    }
  };
  Multiply<T>(m, n, k, alpha, a, &b, panel, accumulate, c, c_row);
}

template <typename T>
void GemmWithPanels(int64_t m, int64_t n, int64_t k, const StridedMatrix<T>& a, const PanelSource<T>& b,
                    bool accumulate, T* c, int64_t c_row) {
  Multiply<T>(m, n, k, T(1), a, nullptr, b, accumulate, c, c_row);
}

template <typename T>
void GemmOfShifts(int64_t m, int64_t n, int64_t k, const T* a, const T* b, int64_t b_row, const int64_t* shifts,
                  int64_t terms, const PanelSink<T>& sink) {
  MultiplyShifts(m, n, k, a, b, b_row, shifts, terms, sink);
}

template <typename T>
void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, const T* b,
          bool accumulate, T* c) {
  Gemm<T>(m, n, k, alpha, {a, transpose_a ? 1 : k, transpose_a ? m : 1}, {b, transpose_b ? 1 : n, transpose_b ? k : 1},
          accumulate, c, n);
}

#define HEADRACE_INSTANTIATE(T)                                                                                        \
  template void Gemm<T>(bool, bool, int64_t, int64_t, int64_t, T, const T*, const T*, bool, T*);                       \
  template void Gemm<T>(int64_t, int64_t, int64_t, T, const StridedMatrix<T>&, const StridedMatrix<T>&, bool, T*,      \
                        int64_t);                                                                                      \
  template void GemmWithPanels<T>(int64_t, int64_t, int64_t, const StridedMatrix<T>&, const PanelSource<T>&, bool, T*, \
                                  int64_t);                                                                            \
  template void GemmOfShifts<T>(int64_t, int64_t, int64_t, const T*, const T*, int64_t, const int64_t*, int64_t,       \
                                const PanelSink<T>&)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
