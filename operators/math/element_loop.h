// What loops over the elements of tensors share: how they are cut for several threads, and arithmetic that is defined
// for all values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "framework/thread_pool.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {

// How many elements a block of a parallel loop has that does little with each.
inline constexpr int64_t kElementsPerBlock = 16384;

// How many rows such a block has. `work`: what a row costs, in elements of which little is made.
inline int64_t RowsPerBlock(int64_t work) {
  return std::max<int64_t>(1, kElementsPerBlock / std::max<int64_t>(1, work));
}

// Before a loop over pointers of which any two are equal or lead to memory that does not overlap, and of which each
// iteration uses elements of its own. The compiler need not check that, and vectorises it however many they are.
#if defined(__clang__)
#define HEADRACE_INDEPENDENT_ITERATIONS
#else
#define HEADRACE_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

// Before a loop of a few iterations that is to be vectorised: GCC would replace it by its iterations before that.
#if defined(__clang__)
#define HEADRACE_VECTORISED_WHOLE
#else
#define HEADRACE_VECTORISED_WHOLE _Pragma("GCC unroll 1")
#endif

// Calls element(i) for each i of [0, n), from several threads. It uses elements of its own, as above. `work`: what one
// costs, in elements of which little is made.
template <typename Element>
void ParallelForEach(int64_t n, const Element& element, int64_t work = 1) {
  ParallelFor(n, RowsPerBlock(work), [&element](int64_t begin, int64_t end) {
    const Element own = element;  // which nothing else points to, so that the compiler keeps what it holds in registers
    HEADRACE_INDEPENDENT_ITERATIONS
    for (int64_t i = begin; i < end; ++i) {
      own(i);
    }
  });
}

// Calls visit(number of the line, its first element) for each line along the axis of `size`, from several threads. The
// elements of a line are size.inner apart. `work`: what one of them costs, in elements of which little is made.
template <typename Visit>
void ForEachLine(const AxisSize& size, int64_t work, const Visit& visit) {
  ParallelFor(size.outer * size.inner, RowsPerBlock(work * size.extent), [=](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      visit(line, line / size.inner * size.extent * size.inner + line % size.inner);
    }
  });
}

// How many lines a strip has at most; the longer they are, the fewer.
inline constexpr int64_t kStrip = 128;

// Calls visit(number of the first line, its first element, lines) for each strip of lines along the axis of `size` that
// lie side by side, from several threads: element a of line i lies a · size.inner + i behind that first one. `work` as
// in ForEachLine.
template <typename Visit>
void ForEachStrip(const AxisSize& size, int64_t work, const Visit& visit) {
  constexpr int64_t kNarrow = 16;
  const int64_t width = std::clamp(kElementsPerBlock / std::max<int64_t>(1, size.extent), kNarrow, kStrip);
  const int64_t strips = (size.inner + width - 1) / width;
  ParallelFor(size.outer * strips, RowsPerBlock(work * size.extent * std::min(width, size.inner)),
              [=](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t outer = i / strips * size.inner;
                  const int64_t column = i % strips * width;
                  visit(outer + column, outer * size.extent + column, std::min(width, size.inner - column));
                }
              });
}

// Calls visit(element, its place in [extent, columns], its column) for the elements of a strip of `columns` lines, row
// by row; element 0 is the strip's first. It uses elements of its own, as above.
template <typename Visit>
void ForEachInStrip(const AxisSize& size, int64_t columns, const Visit& visit) {
  for (int64_t a = 0; a < size.extent; ++a) {
    HEADRACE_INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < columns; ++i) {
      visit(a * size.inner + i, a * columns + i, i);
    }
  }
}

// std::fill_n and std::copy_n, by several threads.
template <typename T>
void ParallelFill(T* to, int64_t n, T value) {
  ParallelFor(n, kElementsPerBlock, [=](int64_t begin, int64_t end) { std::fill(to + begin, to + end, value); });
}
template <typename T>
void ParallelCopy(const T* from, int64_t n, T* to) {
  ParallelFor(n, kElementsPerBlock,
              [=](int64_t begin, int64_t end) { std::copy(from + begin, from + end, to + begin); });
}

// Also for integers, which never are.
template <typename T>
bool IsNaN(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

// Integers wrap around, as NumPy's do; signed overflow would be undefined. So they are computed as Wrapping<T>, which
// is T itself for floating point.
template <typename T, bool = std::is_integral_v<T>>
struct WrappingOf {
  using type = std::make_unsigned_t<T>;
};
template <typename T>
struct WrappingOf<T, false> {
  using type = T;
};
template <typename T>
using Wrapping = typename WrappingOf<T>::type;

}  // namespace headrace::ops
