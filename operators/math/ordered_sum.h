// Sums with the same bits on any number of threads: their order is fixed by the number of elements alone, and not by
// where they lie in memory, as that of a vectorised loop with alignment peeling would be. Eigen's sums, which promise
// neither that nor sums of blocks in double, take less time (kernel_benchmark).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "framework/thread_pool.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {

inline constexpr int64_t kSumBlock = 512;

// `lanes` combined: those of the first half with those of the second, and so on. A loop over the halves would keep them
// out of registers.
template <int64_t kLanes, typename T, typename Combine>
inline T FoldLanes(const T (&lanes)[kLanes], const Combine& combine) {
  if constexpr (kLanes == 1) {
    return lanes[0];
  } else {
    T half[kLanes / 2];
    for (int64_t lane = 0; lane < kLanes / 2; ++lane) {
      half[lane] = combine(lanes[lane], lanes[lane + kLanes / 2]);
    }
    return FoldLanes(half, combine);
  }
}

// Σ at(i) for i in [first, end). Partial sums, which the compiler keeps in vector registers, over blocks whose sums are
// added in double: the error does not grow with n for float.
template <typename T, typename At>
double SumOfRange(int64_t first, int64_t last, At&& at) {
  constexpr int64_t kLanes = 128 / sizeof(T);
  constexpr int64_t kFewLanes = 4;
  const auto add = [](T a, T b) { return a + b; };
  double total = 0;
  for (int64_t begin = first; begin < last; begin += kSumBlock) {
    const int64_t end = std::min(last, begin + kSumBlock);
    T lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += at(i + lane);
      }
    }
    T few[kFewLanes] = {};
    for (; i + kFewLanes <= end; i += kFewLanes) {
      for (int64_t lane = 0; lane < kFewLanes; ++lane) {
        few[lane] += at(i + lane);
      }
    }
    T rest = 0;
    for (; i < end; ++i) {
      rest += at(i);
    }
    total += static_cast<double>(FoldLanes(lanes, add) + (FoldLanes(few, add) + rest));
  }
  return total;
}

// Σ at(i) for i in [0, n).
template <typename T, typename At>
T SumOf(int64_t n, At&& at) {
  return static_cast<T>(SumOfRange<T>(0, n, at));
}

// The same by several threads: long sums are sums of parts, added in their order.
template <typename T, typename At>
T ParallelSumOf(int64_t n, const At& at) {
  constexpr int64_t kMaxParts = 64;
  constexpr int64_t kMinBlocks = 64;  // of a part
  const int64_t blocks = std::max(kMinBlocks, (n / kSumBlock + kMaxParts) / kMaxParts);
  const int64_t size = blocks * kSumBlock;
  if (n <= size) {
    return SumOf<T>(n, at);
  }
  std::array<double, kMaxParts> parts{};
  ParallelFor(n, size, [&](int64_t begin, int64_t end) {
    parts[static_cast<size_t>(begin / size)] = SumOfRange<T>(begin, end, at);
  });
  double total = 0;
  for (const double part : parts) {
    total += part;
  }
  return static_cast<T>(total);
}

// sums[i] = Σ at(r, i) for r in [0, rows), for each i of [0, columns), of which there are at most kStrip. Some rows at
// a time, whose sums are added in double.
template <typename T, typename At>
void SumColumns(int64_t rows, int64_t columns, T* sums, const At& at) {
  constexpr int64_t kRows = 64;
  double totals[kStrip] = {};
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    std::fill_n(sums, columns, T(0));
    for (int64_t r = begin; r < std::min(rows, begin + kRows); ++r) {
      HEADRACE_INDEPENDENT_ITERATIONS
      for (int64_t i = 0; i < columns; ++i) {
        sums[i] += at(r, i);
      }
    }
    for (int64_t i = 0; i < columns; ++i) {
      totals[i] += static_cast<double>(sums[i]);
    }
  }
  for (int64_t i = 0; i < columns; ++i) {
    sums[i] = static_cast<T>(totals[i]);
  }
}

template <typename T>
T Sum(int64_t n, const T* x) {
  return SumOf<T>(n, [x](int64_t i) { return x[i]; });
}

}  // namespace headrace::ops
