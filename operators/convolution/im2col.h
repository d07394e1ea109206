// Convolution as a product of matrices: the patches of an image as the columns of one, a tile at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "operators/convolution/conv_shape.h"

namespace headrace::ops {

// Output rows [begin, end) of an image, counted over the whole depth.
struct Tile {
  int64_t begin;
  int64_t end;
};

// How many output rows a tile has: as many as have columns of about a quarter of a second-level cache, but not so few
// that reading the filter would cost more than multiplying by it.
inline int64_t RowsPerTile(const ConvShape& s, size_t element_size) {
  constexpr int64_t kBytes = 256 * 1024;
  constexpr int64_t kMinColumns = 256;
  const int64_t columns = std::max(kMinColumns, kBytes / (s.PatchSize() * static_cast<int64_t>(element_size)));
  return std::clamp<int64_t>(columns / s.out.width, 1, s.OutputRows());
}

// Visits the tiles of an image in order.
template <typename Visit>
void ForEachTile(const ConvShape& s, int64_t rows, Visit&& visit) {
  for (int64_t begin = 0; begin < s.OutputRows(); begin += rows) {
    visit(Tile{begin, std::min(begin + rows, s.OutputRows())});
  }
}

// Copies a run; most are so short that a call of memcpy would take longer than the copying. The last vector may lie
// over the one before.
template <typename T>
[[gnu::always_inline]] inline void CopyRun(const T* from, int64_t n, T* to) {
  const auto copy = [from, n, to]<int64_t kStep>(std::integral_constant<int64_t, kStep>) {
    typedef T Vector __attribute__((vector_size(kStep * sizeof(T))));
    Vector v;
    for (int64_t i = 0; i < n - kStep; i += kStep) {
      __builtin_memcpy(&v, from + i, sizeof(v));
      __builtin_memcpy(to + i, &v, sizeof(v));
    }
    __builtin_memcpy(&v, from + n - kStep, sizeof(v));
    __builtin_memcpy(to + n - kStep, &v, sizeof(v));
  };
  if (n >= 8) {
    copy(std::integral_constant<int64_t, 8>());
  } else if (n >= 4) {
    copy(std::integral_constant<int64_t, 4>());
  } else if (n >= 2) {
    copy(std::integral_constant<int64_t, 2>());
  } else if (n == 1) {
    *to = *from;
  }
}

// The same of every second element, [0, 2n) without the last.
template <typename T>
[[gnu::always_inline]] inline void CopyEverySecond(const T* from, int64_t n, T* to) {
  if constexpr (sizeof(T) == 4) {
    const auto copy = [from, n, to]<int64_t kStep, int... kIndex>(std::integer_sequence<int, kIndex...>,
                                                                  std::integral_constant<int64_t, kStep>) {
      typedef T Vector __attribute__((vector_size(kStep * sizeof(T))));
      Vector low, high;
      const auto step = [&](int64_t i) {
        __builtin_memcpy(&low, from + 2 * i, sizeof(low));
        __builtin_memcpy(&high, from + 2 * i + kStep - 1, sizeof(high));
        const Vector v = __builtin_shufflevector(low, high, (kIndex < kStep / 2 ? 2 * kIndex : 2 * kIndex + 1)...);
        __builtin_memcpy(to + i, &v, sizeof(v));
      };
      for (int64_t i = 0; i < n - kStep; i += kStep) {
        step(i);
      }
      step(n - kStep);
    };
    if (n >= 8) {
      return copy(std::make_integer_sequence<int, 8>(), std::integral_constant<int64_t, 8>());
    }
    if (n >= 4) {
      return copy(std::make_integer_sequence<int, 4>(), std::integral_constant<int64_t, 4>());
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    to[i] = from[2 * i];
  }
}

// Runs of n elements, `stride` apart from each other, from each of the `offsets` on:
// to[r · width + i] = from[offsets[r] + i · stride].
template <typename T>
void CopyRuns(int64_t stride, const T* from, const int64_t* offsets, int64_t rows, int64_t n, int64_t width, T* to) {
  if (stride == 1) {
    for (int64_t r = 0; r < rows; ++r) {
      CopyRun(from + offsets[r], n, to + r * width);
    }
  } else if (stride == 2) {
    for (int64_t r = 0; r < rows; ++r) {
      CopyEverySecond(from + offsets[r], n, to + r * width);
    }
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        to[r * width + i] = from[offsets[r] + i * stride];
      }
    }
  }
}

// Writes output positions [x, x + n) of one row as offset `j` of the window sees the row `line` of the input.
template <typename T>
void CopyPositions(const ConvShape& s, const T* line, int64_t j, int64_t x, int64_t n, T* to) {
  const Window::Range inside = s.cols.OutputsInside(j, s.in.width, s.out.width);
  const T* from = line + s.cols.InputAt(x, j);
  for (int64_t o = 0; o < n; ++o) {
    to[o] = inside.begin <= x + o && x + o < inside.end ? from[o * s.cols.stride] : T(0);
  }
}

// A part of the columns of one group of one image: rows [row, row + rows) of the patches, and output positions
// [col, col + cols), which may begin and end anywhere in a row, to panel[r · width + c]. Goes through the patches once
// for each row of positions, so that all copies have the same length.
template <typename T>
void ImageToPanel(const ConvShape& s, const T* image, int64_t row, int64_t rows, int64_t col, int64_t cols,
                  int64_t width, T* panel) {
  const int64_t first_j = row % s.cols.size;
  const int64_t first_i = row / s.cols.size % s.rows.size;
  const int64_t first_h = row / (s.cols.size * s.rows.size) % s.planes.size;
  const T* first_channel = image + row / (s.cols.size * s.rows.size * s.planes.size) * s.in.Volume();
  int64_t x = col % s.out.width;
  int64_t y = col / s.out.width % s.out.height;
  int64_t z = col / (s.out.width * s.out.height);
  for (int64_t n = 0; cols > 0; cols -= n) {
    n = std::min(cols, s.out.width - x);
    int64_t j = first_j;
    int64_t i = first_i;
    int64_t h = first_h;
    const T* channel = first_channel;
    T* to = panel;
    for (int64_t left = rows; left > 0;) {
      const int64_t in_z = s.planes.InputAt(z, h);
      const int64_t in_y = s.rows.InputAt(y, i);
      const int64_t end = std::min(s.cols.size, j + left);
      left -= end - j;
      if (in_z < 0 || in_z >= s.in.depth || in_y < 0 || in_y >= s.in.height) {
        for (; j < end; ++j, to += width) {
          std::fill_n(to, n, T(0));
        }
      } else {
        const T* line = channel + (in_z * s.in.height + in_y) * s.in.width;
        int64_t at = s.cols.InputAt(x, j);
        // All offsets copy n elements; what lies beside the line is replaced by zeros.
        const bool copy =
            s.cols.stride == 1 && line + at >= image && line + s.cols.InputAt(x, end - 1) + n <= image + s.InputSize();
        for (; copy && j < end; ++j, to += width, at += s.cols.dilation) {
          CopyRun(line + at, n, to);
          for (int64_t o = std::min(n, -at); o > 0; --o) {
            to[o - 1] = T(0);
          }
          for (int64_t o = std::max<int64_t>(0, s.in.width - at); o < n; ++o) {
            to[o] = T(0);
          }
        }
        for (; j < end; ++j, to += width) {
          CopyPositions(s, line, j, x, n, to);
        }
      }
      j = 0;
      if (++i == s.rows.size) {
        i = 0;
        if (++h == s.planes.size) {
          h = 0;
          channel += s.in.Volume();
        }
      }
    }
    panel += n;
    x = 0;
    if (++y == s.out.height) {
      y = 0;
      ++z;
    }
  }
}

// Adds a run to another, `step` elements apart. They must not overlap.
template <typename T>
void AddRun(const T* __restrict from, int64_t n, int64_t step, T* __restrict to) {
  if (step != 1) {
    for (int64_t i = 0; i < n; ++i) {
      to[i * step] += from[i];
    }
    return;
  }
  const auto add = [&]<int64_t kStep>(std::integral_constant<int64_t, kStep>) {
    for (int64_t i = 0; i < kStep; ++i) {
      to[i] += from[i];
    }
    from += kStep;
    to += kStep;
  };
  for (; n >= 8; n -= 8) {
    add(std::integral_constant<int64_t, 8>());
  }
  if ((n & 4) != 0) {
    add(std::integral_constant<int64_t, 4>());
  }
  if ((n & 2) != 0) {
    add(std::integral_constant<int64_t, 2>());
  }
  if ((n & 1) != 0) {
    *to += *from;
  }
}

// The transpose of ImageToPanel for a tile: adds each element of the columns [PatchSize, pixels of the tile], a matrix
// with rows of `stride` elements, to the pixel that it came from.
template <typename T>
void AddColumnsToImage(const ConvShape& s, const Tile& tile, const T* columns, int64_t stride, T* image) {
  const int64_t first_plane = tile.begin / s.out.height;
  const int64_t end_plane = (tile.end - 1) / s.out.height + 1;
  for (int64_t c = 0; c < s.channels; ++c, image += s.in.Volume()) {
    for (int64_t h = 0; h < s.planes.size; ++h) {
      for (int64_t i = 0; i < s.rows.size; ++i) {
        const Window::Range rows = s.rows.OutputsInside(i, s.in.height, s.out.height);
        for (int64_t j = 0; j < s.cols.size; ++j, columns += stride) {
          const Window::Range cols = s.cols.OutputsInside(j, s.in.width, s.out.width);
          for (int64_t z = first_plane; z < end_plane; ++z) {
            const int64_t in_z = s.planes.InputAt(z, h);
            if (in_z < 0 || in_z >= s.in.depth) {
              continue;
            }
            const int64_t before = z * s.out.height;  // output rows
            const int64_t end = std::min(rows.end, tile.end - before);
            for (int64_t y = std::max(rows.begin, tile.begin - before); y < end; ++y) {
              AddRun(columns + (before + y - tile.begin) * s.out.width + cols.begin, cols.end - cols.begin,
                     s.cols.stride,
                     image + (in_z * s.in.height + s.rows.InputAt(y, i)) * s.in.width + s.cols.InputAt(cols.begin, j));
            }
          }
        }
      }
    }
  }
}

}  // namespace headrace::ops
