// Matrix products whose right-hand side is not in memory as a matrix: for convolutions.
#pragma once

#include <cstdint>

#include "framework/function_ref.h"
#include "operators/math/gemm.h"

namespace headrace::ops {

// Where the right-hand side of a product comes from. Writes the elements of rows [row, row + rows) and columns
// [col, col + cols) to panel[r · width + c]; width >= cols. Called from several threads.
template <typename T>
using PanelSource = FunctionRef<void(int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t width, T* panel)>;

// The same for such a right-hand side, [k, n].
template <typename T>
void GemmWithPanels(int64_t m, int64_t n, int64_t k, const StridedMatrix<T>& a, const PanelSource<T>& b,
                    bool accumulate, T* c, int64_t c_row);

// A right-hand side whose columns are in lines: `count` lines of `length` columns each. Row r of column i of a line is
// at data[start(line) + i + offsets[r]]; kLinePadding elements behind each are read, too, and may be anything. Lines
// are in the order of their starts.
template <typename T>
struct ColumnLines {
  const T* data;
  const int64_t* offsets;
  int64_t count;
  int64_t length;
  FunctionRef<int64_t(int64_t line)> start;
};
inline constexpr int64_t kLinePadding = 32;

// How many rows a product with such a right-hand side has at most.
inline constexpr int64_t kMaxMapsInLines = 128;

// c[m, count · length] = a · b, for at most kMaxMapsInLines rows. Nothing is copied. Each element is one sum over k,
// without blocks.
template <typename T>
void GemmOfLines(int64_t m, int64_t k, const StridedMatrix<T>& a, const ColumnLines<T>& b, T* c, int64_t c_row);

}  // namespace headrace::ops
