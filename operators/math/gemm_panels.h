// Matrix products whose right-hand side or result is not in memory as a matrix: for convolutions.
#pragma once

#include <cstdint>

#include "framework/function_ref.h"
#include "operators/math/gemm.h"

namespace headrace::ops {

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
