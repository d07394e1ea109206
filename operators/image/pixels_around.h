// The four pixels around a place between them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace headrace::ops {

// Where a place lies among the pixels of an image: which is the first of the four around it, and what part it has of
// the next row and column. Beyond the border are zeros; where a coordinate is no finite number, all is NaN.
template <typename T>
struct PixelsAround {
  PixelsAround(T y, T x, int64_t height, int64_t width) : is_number(std::isfinite(x) && std::isfinite(y)) {
    if (!is_number) {
      return;
    }
    // Further away there are no pixels either.
    const T top = std::floor(std::clamp(y, T(-2), static_cast<T>(height + 1)));
    const T left = std::floor(std::clamp(x, T(-2), static_cast<T>(width + 1)));
    row = static_cast<int64_t>(top);
    col = static_cast<int64_t>(left);
    below = y - top;
    beside = x - left;
    for (int64_t i = 0; i < 2; ++i) {
      has_row[i] = 0 <= row + i && row + i < height;
      has_col[i] = 0 <= col + i && col + i < width;
    }
  }

  // Calls visit(which of the four, pixel, weight) for each that there is. In maps of this `width`, row by row.
  template <typename Visit>
  void ForEachOf(int64_t width, const Visit& visit) const {
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t j = 0; j < 2; ++j) {
        if (has_row[i] && has_col[j]) {
          visit(2 * i + j, (row + i) * width + col + j, (i == 0 ? 1 - below : below) * (j == 0 ? 1 - beside : beside));
        }
      }
    }
  }

  // Calls visit(pixel, weight).
  template <typename Visit>
  void ForEach(int64_t width, const Visit& visit) const {
    ForEachOf(width, [&visit](int64_t, int64_t pixel, T weight) { visit(pixel, weight); });
  }

  // What is there in `map`.
  T Value(const T* map, int64_t width) const {
    T sum = is_number ? T(0) : std::numeric_limits<T>::quiet_NaN();
    ForEach(width, [&](int64_t pixel, T weight) { sum += weight * map[pixel]; });
    return sum;
  }

  // How that changes with y and with x.
  T SlopeDown(const T* map, int64_t width) const {
    return IfNumber((1 - beside) * (At(map, width, 1, 0) - At(map, width, 0, 0)) +
                    beside * (At(map, width, 1, 1) - At(map, width, 0, 1)));
  }
  T SlopeAcross(const T* map, int64_t width) const {
    return IfNumber((1 - below) * (At(map, width, 0, 1) - At(map, width, 0, 0)) +
                    below * (At(map, width, 1, 1) - At(map, width, 1, 0)));
  }

  bool is_number;
  int64_t row = 0;
  int64_t col = 0;
  T below = 0;
  T beside = 0;
  bool has_row[2] = {false, false};
  bool has_col[2] = {false, false};

 private:
  T At(const T* map, int64_t width, int64_t i, int64_t j) const {
    return has_row[i] && has_col[j] ? map[(row + i) * width + col + j] : T(0);
  }
  T IfNumber(T value) const { return is_number ? value : std::numeric_limits<T>::quiet_NaN(); }
};

}  // namespace headrace::ops
