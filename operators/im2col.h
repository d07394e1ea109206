// Convolution as a product of matrices: the patches of an image as the columns of one, a tile at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "operators/convolution.h"

namespace headrace::ops {

// What goes into one matrix product: some images, or some output rows of one image.
struct Tile {
  int64_t first;   // image
  int64_t images;  // 1 unless all rows are taken
  int64_t begin;   // output rows [begin, end), counted over the whole depth
  int64_t end;
};

// Cuts the work in tiles whose columns fit about half of a second-level cache, but not so narrow that packing the
// filter would cost more than multiplying by it. Of large images a tile takes a few rows, so that the columns are still
// in the cache when they are multiplied; small images share a tile, since each product has its costs. Visits the tiles
// in order.
template <typename Visit>
void ForEachTile(const ConvShape& s, size_t element_size, Visit&& visit) {
  constexpr int64_t kBytes = 256 * 1024;
  constexpr int64_t kMinColumns = 256;
  const int64_t columns = std::max(kMinColumns, kBytes / (s.PatchSize() * static_cast<int64_t>(element_size)));
  const int64_t images = std::max<int64_t>(1, columns / s.Pixels());
  const int64_t rows = std::clamp<int64_t>(columns / s.out.width, 1, s.OutputRows());
  for (int64_t first = 0; first < s.images; first += images) {
    if (images > 1) {
      visit(Tile{first, std::min(images, s.images - first), 0, s.OutputRows()});
      continue;
    }
    for (int64_t begin = 0; begin < s.OutputRows(); begin += rows) {
      visit(Tile{first, 1, begin, std::min(begin + rows, s.OutputRows())});
    }
  }
}

// Visits the pieces of one channel of one image as the column matrix of a tile sees them: piece(row, column, input,
// begin, end) for each window offset (`row` of the matrix) and output row (which starts at `column`): output positions
// [begin, end) of that row meet the input; position `begin` meets `input`, and each next one lies `cols.stride`
// further. The others meet padding.
template <typename Piece>
void ForEachPiece(const ConvShape& s, const Tile& tile, Piece&& piece) {
  int64_t row = 0;
  for (int64_t h = 0; h < s.planes.size; ++h) {
    for (int64_t i = 0; i < s.rows.size; ++i) {
      for (int64_t j = 0; j < s.cols.size; ++j, ++row) {
        const Window::Range range = s.cols.OutputsInside(j, s.in.width, s.out.width);
        int64_t z = tile.begin / s.out.height;
        int64_t y = tile.begin % s.out.height;
        for (int64_t r = tile.begin; r < tile.end; ++r) {
          const int64_t in_z = s.planes.InputAt(z, h);
          const int64_t in_y = s.rows.InputAt(y, i);
          const bool inside =
              0 <= in_z && in_z < s.in.depth && 0 <= in_y && in_y < s.in.height && range.begin < range.end;
          piece(row, (r - tile.begin) * s.out.width,
                inside ? (in_z * s.in.height + in_y) * s.in.width + s.cols.InputAt(range.begin, j) : 0,
                inside ? range.begin : 0, inside ? range.end : 0);
          if (++y == s.out.height) {
            y = 0;
            ++z;
          }
        }
      }
    }
  }
}

// Writes the patches of one group of one image as columns [PatchSize, pixels of the tile] of a matrix with rows of
// `stride` elements.
template <typename T>
void ImageToColumns(const ConvShape& s, const Tile& tile, const T* image, int64_t stride, T* columns) {
  const int64_t step = s.cols.stride;
  for (int64_t c = 0; c < s.channels; ++c) {
    ForEachPiece(s, tile, [=](int64_t row, int64_t column, int64_t input, int64_t begin, int64_t end) {
      T* to = columns + row * stride + column;
      const T* from = image + input;
      std::fill_n(to, begin, T(0));
      if (step == 1) {
        std::copy_n(from, end - begin, to + begin);
      } else {
        for (int64_t x = begin; x < end; ++x, from += step) {
          to[x] = *from;
        }
      }
      std::fill_n(to + end, s.out.width - end, T(0));
    });
    image += s.in.Volume();
    columns += s.PatchSize() / s.channels * stride;
  }
}

// The transpose of ImageToColumns: adds each element of the columns to the pixel that it came from.
template <typename T>
void AddColumnsToImage(const ConvShape& s, const Tile& tile, const T* columns, int64_t stride, T* image) {
  const int64_t step = s.cols.stride;
  for (int64_t c = 0; c < s.channels; ++c) {
    ForEachPiece(s, tile, [=](int64_t row, int64_t column, int64_t input, int64_t begin, int64_t end) {
      const T* from = columns + row * stride + column;
      T* to = image + input;
      if (step == 1) {
        for (int64_t x = begin; x < end; ++x) {
          to[x - begin] += from[x];
        }
      } else {
        for (int64_t x = begin; x < end; ++x, to += step) {
          *to += from[x];
        }
      }
    });
    image += s.in.Volume();
    columns += s.PatchSize() / s.channels * stride;
  }
}

}  // namespace headrace::ops
