// Rows of a table by their numbers, of which some occur more than once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "framework/thread_pool.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {

// Calls visit(i, number(i)) for each i of [0, count) whose number is not negative, from several threads. Each goes
// through all numbers, for rows of its own: the same row is visited by one thread, in the order of its places.
// `height`, `width`: of the table.
template <typename Number, typename Visit>
void ForEachNumberedRow(int64_t count, const Number& number, int64_t height, int64_t width, const Visit& visit) {
  // A result does not depend on the cut, so that it may depend on the threads.
  const int64_t grain = std::max(RowsPerBlock(width), (height + PoolThreads() - 1) / PoolThreads());
  ParallelFor(height, grain, [=](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = number(i);
      if (begin <= row && row < end) {
        visit(i, row);
      }
    }
  });
}

// The same of numbers in an array.
template <typename Visit>
void ForEachNumberedRow(const int64_t* numbers, int64_t count, int64_t height, int64_t width, const Visit& visit) {
  ForEachNumberedRow(count, [numbers](int64_t i) { return numbers[i]; }, height, width, visit);
}

// to[i] += factor * from[i] for each i of [0, n).
template <typename T>
void AddScaled(T factor, const T* from, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] += factor * from[i];
  }
}

}  // namespace headrace::ops
