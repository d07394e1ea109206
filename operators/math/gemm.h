// Matrix products.
//
// Each element of a product is summed over blocks of kGemmDepth or fewer (as many as k alone says), in a block one
// product after another, each multiplied and added with one rounding; then block after block. So its bits depend
// neither on where the matrices lie, nor on the sizes of the others dimensions, of caches and of vector registers, nor
// on the number of threads. (Processors without fused multiply-add round twice.) T is float or double.
#pragma once

#include <cstdint>

#include "framework/function_ref.h"

namespace headrace::ops {

// A block of a panel: 32 columns of float fit a first-level cache.
inline constexpr int64_t kGemmDepth = 256;

// How many multiplications a thread does at least before it comes back for more.
inline constexpr int64_t kGemmWorkPerTask = 1 << 20;

// c[m, n] = alpha · op(a) · op(b), or, if `accumulate`, c += alpha · op(a) · op(b). All matrices are row-major and
// contiguous; op transposes: `a` is [m, k], or [k, m] if `transpose_a`; `b` is [k, n], or [n, k] if `transpose_b`. `c`
// must not overlap the others. Runs on the threads of this thread's pool.
template <typename T>
void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, const T* b,
          bool accumulate, T* c);

// A matrix in memory: element (r, c) lies at data[r · row + c · col].
template <typename T>
struct StridedMatrix {
  const T* data;
  int64_t row;
  int64_t col;
};

// As above, with matrices that are parts of others: c has rows `c_row` apart.
template <typename T>
void Gemm(int64_t m, int64_t n, int64_t k, T alpha, const StridedMatrix<T>& a, const StridedMatrix<T>& b,
          bool accumulate, T* c, int64_t c_row);

// Where the right-hand side of a product comes from if it is not in memory as a matrix. Writes the elements of rows
// [row, row + rows) and columns [col, col + cols) to panel[r · width + c]; width >= cols. Called from several threads.
template <typename T>
using PanelSource = FunctionRef<void(int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t width, T* panel)>;

// The same for such a right-hand side, [k, n].
template <typename T>
void GemmWithPanels(int64_t m, int64_t n, int64_t k, const StridedMatrix<T>& a, const PanelSource<T>& b,
                    bool accumulate, T* c, int64_t c_row);

// Where a product goes that is not wanted in memory as a matrix. Takes its rows [row, row + rows) and columns
// [col, col + cols): element (r, c) of these is panel[r · width + c]. Called from several threads.
template <typename T>
using PanelSink =
    FunctionRef<void(int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t width, const T* panel)>;

// How many elements behind a matrix GemmOfShifts may read, whatever they are.
inline constexpr int64_t kGemmSlack = 64;

// Σ a_t · b_t for t in [0, terms), [m, n], handed to `sink` in parts. The a_t, [m, k], follow one another at `a`; b_t,
// [k, n], begins at b + shifts[t], and its rows, `b_row` apart, may overlap. The terms are summed in their order, and
// the products of each as above.
template <typename T>
void GemmOfShifts(int64_t m, int64_t n, int64_t k, const T* a, const T* b, int64_t b_row, const int64_t* shifts,
                  int64_t terms, const PanelSink<T>& sink);

}  // namespace headrace::ops
