// Sums in an order that is fixed by the number of elements alone: not by where they lie in memory, as that of a
// vectorised loop with alignment peeling would be.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headrace::ops {

// Σ at(i) for i in [0, n). Sixteen partial sums, which the compiler keeps in vector registers, over blocks whose sums
// are added in double: the error does not grow with n for float.
template <typename T, typename At>
T SumOf(int64_t n, At&& at) {
  constexpr int64_t kLanes = 16;
  constexpr int64_t kBlock = 512;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    T lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += at(i + lane);
      }
    }
    for (int64_t lane = 0; i < end; ++i, ++lane) {
      lanes[lane] += at(i);
    }
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (int64_t lane = 0; lane < width; ++lane) {
        lanes[lane] += lanes[lane + width];
      }
    }
    total += static_cast<double>(lanes[0]);
  }
  return static_cast<T>(total);
}

template <typename T>
T Sum(int64_t n, const T* x) {
  return SumOf<T>(n, [x](int64_t i) { return x[i]; });
}

}  // namespace headrace::ops
