#include "operators/convolution/convolution.h"

#include <algorithm>
#include <string>
#include <vector>

#include "framework/thread_pool.h"
#include "operators/common/registration.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/convolution/depthwise.h"
#include "operators/convolution/im2col.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm_panels.h"
#include "operators/math/layout.h"
#include "operators/math/scratch.h"
#include "operators/math/transpose.h"

namespace headrace::ops {

namespace {

// Whether no pixel lies outside of the image.
bool HasNoPadding(const ConvShape& s) {
  return s.planes.Paddings() == 0 && s.rows.Paddings() == 0 && s.cols.Paddings() == 0;
}

// A convolution as products of the filter and the patches of images, which are copied panel by panel, on the way into
// the product. With zeros around the image, each element of the patches has the same distance from the first one,
// wherever a patch lies. In the padded image, a row is cut into phases: columns that are a whole number of strides
// apart lie together, so that neighbouring patches do.
template <typename T>
class PaddedConvolution {
 public:
  explicit PaddedConvolution(const ConvShape& s)
      : s_(s),
        in_lines_(AreLinesFaster(s)),
        pads_(in_lines_ || !HasNoPadding(s) || (s.cols.stride > 1 && s.cols.size > 1)),
        phases_(pads_ ? std::min(s.cols.stride, s.in.width + s.cols.Paddings()) : 1),
        phase_((s.in.width + s.cols.Paddings() + phases_ - 1) / phases_),
        padded_{s.in.depth + s.planes.Paddings(), s.in.height + s.rows.Paddings(), phases_ * phase_} {}

  // Whether the padded images take little memory.
  static bool Fits(const ConvShape& s) {
    constexpr double kMaxPadding = 16;  // how many times as large the input may become
    const auto padded = [](int64_t extent, const Window& w) {
      return static_cast<double>(extent) + static_cast<double>(w.Paddings());
    };
    return padded(s.in.depth, s.planes) * padded(s.in.height, s.rows) * padded(s.in.width, s.cols) <=
           kMaxPadding * static_cast<double>(s.in.Volume());
  }

  void Run(const T* input, const T* filter, T* out) const {
    constexpr int64_t kMaxElements = 1 << 22;  // of the padded images
    constexpr int64_t kTasks = 16;             // of a product that threads share, else they share the products
    // Small images share a product: columns for whole panels, which many rows of the filter are read for.
    constexpr int64_t kMinColumns = 384;
    const int64_t enough = (kMinColumns - 1) / std::max<int64_t>(1, s_.Pixels()) + 1;
    const int64_t most =
        std::max<int64_t>(1, in_lines_ ? s_.images : s_.images / enough);  // parts, of nearly the same size
    const int64_t together = std::max<int64_t>(1, (s_.images + most - 1) / most);
    const int64_t parts = (s_.images + together - 1) / together;
    const int64_t products = parts * s_.groups;
    const int64_t padded_size = pads_ ? together * s_.channels * padded_.Volume() + (in_lines_ ? kLinePadding : 0) : 0;
    const int64_t result_size = together == 1 ? 0 : together * s_.OutputSizeOfGroup();
    const int64_t size = std::max<int64_t>(1, padded_size + result_size);
    const bool is_large = s_.FilterSize() * s_.Pixels() * together >= kTasks * kGemmWorkPerTask;
    const int64_t blocks = is_large || products == 0
                               ? 1
                               : std::clamp<int64_t>(kMaxElements / size, 1, std::min(FreePieces::kMax, products));
    Tensor offsets_memory;
    Tensor memory;
    int64_t* offsets = Scratch<int64_t>(&offsets_memory, s_.PatchSize());
    T* buffers = Scratch<T>(&memory, std::min<int64_t>(blocks, PoolThreads()) * (padded_size + result_size));
    ListOffsets(offsets);
    FreePieces pieces;
    ParallelFor(blocks, 1, [&](int64_t first, int64_t end) {
      const int64_t piece = pieces.Take();
      T* buffer = buffers + piece * (padded_size + result_size);
      for (int64_t i = products * first / blocks; i < products * end / blocks; ++i) {
        const int64_t group = i % s_.groups;
        const int64_t image = i / s_.groups * together;
        RunImages(image, std::min(together, s_.images - image), group, input, filter, offsets, buffer,
                  buffer + padded_size, out);
      }
      pieces.Return(piece);
    });
  }

 private:
  // Whether it is faster to multiply by patches where they lie in the padded image, with what lies between two lines of
  // them, than to copy them: for few maps.
  static bool AreLinesFaster(const ConvShape& s) {
    constexpr double kCopying = 9;  // of a patch, in maps
    const auto patches = static_cast<double>(s.Pixels());
    const auto read = static_cast<double>(s.OutputRows() * (s.in.width + s.cols.Paddings()));
    return s.planes.stride == 1 && s.rows.stride == 1 && s.cols.stride == 1 && s.maps <= kMaxMapsInLines &&
           (read - patches) * static_cast<double>(s.maps) < kCopying * patches;
  }

  // How far each element of a patch is from the first.
  void ListOffsets(int64_t* offsets) const {
    for (int64_t c = 0; c < s_.channels; ++c) {
      for (int64_t h = 0; h < s_.planes.size; ++h) {
        for (int64_t i = 0; i < s_.rows.size; ++i) {
          for (int64_t j = 0; j < s_.cols.size; ++j) {
            *offsets++ = c * padded_.Volume() +
                         (h * s_.planes.dilation * padded_.height + i * s_.rows.dilation) * padded_.width +
                         ColumnAt(j * s_.cols.dilation);
          }
        }
      }
    }
  }

  // A group of images [image, image + count). `padded` has room for them, `result` for theirs if they are several.
  void RunImages(int64_t image, int64_t count, int64_t group, const T* input, const T* filter, const int64_t* offsets,
                 T* padded, T* result, T* out) const {
    const T* images = input + (image * s_.groups + group) * s_.InputSize();
    int64_t distance = s_.groups * s_.InputSize();
    if (pads_) {
      ParallelFor(count * s_.channels, RowsPerBlock(padded_.Volume()), [=, this](int64_t first, int64_t end) {
        for (int64_t c = first; c < end; ++c) {
          Pad(images + c / s_.channels * distance + c % s_.channels * s_.in.Volume(), padded + c * padded_.Volume());
        }
      });
      images = padded;
      distance = s_.channels * padded_.Volume();
    }
    const auto patches = [=, this](int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t width, T* panel) {
      CopyPatches(images, distance, offsets + row, rows, col, cols, width, panel);
    };
    const StridedMatrix<T> weights{filter + group * s_.FilterSize(), s_.PatchSize(), 1};
    T* to = out + (image * s_.groups + group) * s_.OutputSizeOfGroup();
    if (in_lines_) {
      const auto start = [this](int64_t line) {
        return (line / s_.out.height * padded_.height + line % s_.out.height) * padded_.width;
      };
      GemmOfLines<T>(s_.maps, s_.PatchSize(), weights, {images, offsets, s_.OutputRows(), s_.out.width, start}, to,
                     s_.Pixels());
      return;
    }
    if (count == 1) {
      GemmWithPanels<T>(s_.maps, s_.Pixels(), s_.PatchSize(), weights, patches, false, to, s_.Pixels());
      return;
    }
    const int64_t columns = count * s_.Pixels();
    GemmWithPanels<T>(s_.maps, columns, s_.PatchSize(), weights, patches, false, result, columns);
    ParallelFor(count * s_.maps, RowsPerBlock(s_.Pixels()), [=, this](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) {
        std::copy_n(result + i % s_.maps * columns + i / s_.maps * s_.Pixels(), s_.Pixels(),
                    to + (i / s_.maps * s_.groups * s_.maps + i % s_.maps) * s_.Pixels());
      }
    });
  }

  // Where a column of the padded image is in its row.
  int64_t ColumnAt(int64_t x) const { return x % phases_ * phase_ + x / phases_; }

  // A channel.
  void Pad(const T* from, T* to) const {
    std::fill_n(to, padded_.Volume(), T(0));
    to += (s_.planes.padding * padded_.height + s_.rows.padding) * padded_.width;
    const int64_t no_offset = 0;
    for (int64_t z = 0; z < s_.in.depth; ++z, to += s_.rows.Paddings() * padded_.width) {
      for (int64_t y = 0; y < s_.in.height; ++y, from += s_.in.width, to += padded_.width) {
        for (int64_t x = 0; x < std::min(phases_, s_.in.width); ++x) {
          CopyRuns(phases_, from + x, &no_offset, 1, (s_.in.width - x + phases_ - 1) / phases_, 0,
                   to + ColumnAt(s_.cols.padding + x));
        }
      }
    }
  }

  // Elements at `offsets` of the patches of positions [col, col + cols), counted through the images, which are
  // `distance` apart.
  void CopyPatches(const T* images, int64_t distance, const int64_t* offsets, int64_t rows, int64_t col, int64_t cols,
                   int64_t width, T* panel) const {
    for (int64_t n = 0; cols > 0; cols -= n, col += n, panel += n) {
      const int64_t x = col % s_.out.width;
      const int64_t y = col / s_.out.width % s_.out.height;
      const int64_t z = col / (s_.out.width * s_.out.height) % s_.out.depth;
      n = std::min(cols, s_.out.width - x);
      const T* from = images + col / s_.Pixels() * distance +
                      (z * s_.planes.stride * padded_.height + y * s_.rows.stride) * padded_.width +
                      (pads_ ? x : x * s_.cols.stride);
      CopyRuns(pads_ ? 1 : s_.cols.stride, from, offsets, rows, n, width, panel);
    }
  }

  const ConvShape& s_;
  const bool in_lines_;  // one image at a time
  const bool pads_;      // else patches are copied from the images themselves
  const int64_t phases_;
  const int64_t phase_;  // how many columns one has
  const Extents padded_;
};

}  // namespace

template <typename T>
void Convolve(const ConvShape& s, const T* input, const T* filter, T* out) {
  if (IsDepthwise(s)) {
    return ConvolveDepthwise(s, input, filter, out);
  }
  // The patches of an image are the image itself, and large enough.
  constexpr int64_t kManyPixels = 128;
  const bool is_matrix = s.IsPointwise() && s.Pixels() >= kManyPixels;
  if (!is_matrix && PaddedConvolution<T>::Fits(s)) {
    return PaddedConvolution<T>(s).Run(input, filter, out);
  }
  // A few large images are taken one by one, since the products over them are shared among the threads.
  constexpr int64_t kFew = 4;
  const int64_t n = s.images * s.groups;
  ParallelFor(n, n < kFew ? n : ProductsPerTask(s.FilterSize() * s.Pixels()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* image = input + i * s.InputSize();
      const StridedMatrix<T> weights{filter + i % s.groups * s.FilterSize(), s.PatchSize(), 1};
      T* to = out + i * s.OutputSizeOfGroup();
      if (s.IsPointwise()) {
        Gemm<T>(s.maps, s.Pixels(), s.PatchSize(), T(1), weights, {image, s.Pixels(), 1}, false, to, s.Pixels());
        continue;
      }
      const auto columns = [&s, image](int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t width, T* panel) {
        ImageToPanel(s, image, row, rows, col, cols, width, panel);
      };
      GemmWithPanels<T>(s.maps, s.Pixels(), s.PatchSize(), weights, columns, false, to, s.Pixels());
    }
  });
}

// The gradients by some images, one after the other, or, if they are small, `together` at a time. `filter_grad`, of all
// groups, is transposed if `transposed`: [PatchSize, maps] for each group. `columns` has room for those of a tile, or
// for those of the images together and then the gradients of their maps.
template <typename T>
struct ConvImagesBackward {
  void Run(int64_t first, int64_t end, T* filter_grad, T* columns) const {
    if (together > 1) {
      for (int64_t image = first; image < end; image += together) {
        for (int64_t group = 0; group < s.groups; ++group) {
          RunTogether(image, std::min(together, end - image), group, image > first, filter_grad, columns);
        }
      }
      return;
    }
    for (int64_t i = first * s.groups; i < end * s.groups; ++i) {
      const int64_t filter_at = i % s.groups * s.FilterSize();
      const StridedMatrix<T> d{out_grad + i * s.OutputSizeOfGroup(), s.Pixels(), 1};
      const T* image = input == nullptr ? nullptr : input + i * s.InputSize();
      T* image_grad = input_grad == nullptr ? nullptr : input_grad + i * s.InputSize();
      if (s.IsPointwise()) {
        AddFilterGrad(d, image, s.Pixels(), i >= (first + 1) * s.groups, filter_grad, filter_at);
        AddInputGrad(d, s.Pixels(), filter + filter_at, image_grad);
        continue;
      }
      std::fill_n(image_grad, image_grad == nullptr ? 0 : s.InputSize(), T(0));
      ForEachTile(s, rows_per_tile, [&](const Tile& tile) {
        const int64_t pixels = (tile.end - tile.begin) * s.out.width;
        const StridedMatrix<T> d_tile{d.data + tile.begin * s.out.width, d.row, 1};
        if (filter_grad != nullptr) {
          ImageToPanel(s, image, 0, s.PatchSize(), tile.begin * s.out.width, pixels, pixels, columns);
          AddFilterGrad(d_tile, columns, pixels, i >= (first + 1) * s.groups || tile.begin > 0, filter_grad, filter_at);
        }
        if (image_grad != nullptr) {
          AddInputGrad(d_tile, pixels, filter + filter_at, columns);
          AddColumnsToImage(s, tile, columns, pixels, image_grad);
        }
      });
    }
  }

  // A group of images [image, image + count), side by side in the columns. So the gradient of the filter is read and
  // written, and the filter read, once for all of them.
  void RunTogether(int64_t image, int64_t count, int64_t group, bool add, T* filter_grad, T* columns) const {
    const int64_t pixels = s.Pixels();
    const int64_t width = count * pixels;
    const int64_t filter_at = group * s.FilterSize();
    const auto place = [=, this](int64_t i) { return (image + i) * s.groups + group; };
    T* d = columns + s.PatchSize() * width;
    for (int64_t i = 0; i < count; ++i) {
      const T* from = out_grad + place(i) * s.OutputSizeOfGroup();
      for (int64_t m = 0; m < s.maps; ++m) {
        std::copy_n(from + m * pixels, pixels, d + m * width + i * pixels);
      }
    }
    const StridedMatrix<T> maps{d, width, 1};
    if (filter_grad != nullptr) {
      ParallelFor(count, 1, [=, this](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          ImageToPanel(s, input + place(i) * s.InputSize(), 0, s.PatchSize(), 0, pixels, width, columns + i * pixels);
        }
      });
      AddFilterGrad(maps, columns, width, add, filter_grad, filter_at);
    }
    if (input_grad != nullptr) {
      AddInputGrad(maps, width, filter + filter_at, columns);
      ParallelFor(count, 1, [=, this](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          T* image_grad = input_grad + place(i) * s.InputSize();
          std::fill_n(image_grad, s.InputSize(), T(0));
          AddColumnsToImage(s, Tile{0, s.OutputRows()}, columns + i * pixels, width, image_grad);
        }
      });
    }
  }

  void AddFilterGrad(const StridedMatrix<T>& d, const T* columns, int64_t pixels, bool add, T* filter_grad,
                     int64_t at) const {
    if (filter_grad == nullptr) {
      return;
    }
    if (transposed) {
      Gemm<T>(s.PatchSize(), s.maps, pixels, T(1), {columns, pixels, 1}, {d.data, 1, d.row}, add, filter_grad + at,
              s.maps);
    } else {
      Gemm<T>(s.maps, s.PatchSize(), pixels, T(1), d, {columns, 1, pixels}, add, filter_grad + at, s.PatchSize());
    }
  }

  // Not added, in fact: to columns, which then are.
  void AddInputGrad(const StridedMatrix<T>& d, int64_t pixels, const T* group_filter, T* columns) const {
    if (input_grad != nullptr) {
      Gemm<T>(s.PatchSize(), pixels, s.maps, T(1), {group_filter, 1, s.PatchSize()}, d, false, columns, pixels);
    }
  }

  const ConvShape& s;
  const T* out_grad;
  const T* input;
  const T* filter;
  T* input_grad;
  int64_t together;
  int64_t rows_per_tile;
  bool transposed;
};

namespace {

// filter_grad = the gradients of the blocks, added one after the other. Those may be transposed: of each group
// [PatchSize, maps].
template <typename T>
void AddFilterGrads(const ConvShape& s, const T* filter_grads, int64_t blocks, bool transposed, T* filter_grad) {
  // Some maps at a time: a cache line of each transposed row.
  constexpr int64_t kMaps = 64 / sizeof(T);
  constexpr int64_t kRows = 64;
  const int64_t patch = s.PatchSize();
  const int64_t pieces = (s.maps + kMaps - 1) / kMaps;
  const auto add = [&](int64_t at, int64_t n, T* to) {
    std::fill_n(to, n, T(0));
    for (int64_t b = 0; b < blocks; ++b) {
      const T* from = filter_grads + b * s.groups * s.FilterSize() + at;
      for (int64_t i = 0; i < n; ++i) {
        to[i] += from[i];
      }
    }
  };
  ParallelFor(s.groups * pieces, RowsPerBlock(blocks * kMaps * patch), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t group = i / pieces * s.FilterSize();
      const int64_t map = i % pieces * kMaps;
      const int64_t maps = std::min(kMaps, s.maps - map);
      T* to = filter_grad + group + map * patch;
      if (!transposed) {
        add(group + map * patch, maps * patch, to);
        continue;
      }
      T sums[kRows * kMaps];
      for (int64_t row = 0; row < patch; row += kRows) {
        const int64_t rows = std::min(kRows, patch - row);
        for (int64_t r = 0; r < rows; ++r) {
          add(group + (row + r) * s.maps + map, maps, sums + r * kMaps);
        }
        TransposePanel(sums, kMaps, maps, rows, patch, to + row);
      }
    }
  });
}

// The gradient of a convolution of stride 1 by its input is a convolution, too: of the gradient of its result, with a
// filter that is mirrored and has maps and channels exchanged.
ConvShape MirroredShape(const ConvShape& s) {
  ConvShape mirrored = s;
  std::swap(mirrored.channels, mirrored.maps);
  std::swap(mirrored.in, mirrored.out);
  for (Window* w : {&mirrored.planes, &mirrored.rows, &mirrored.cols}) {
    const int64_t reach = w->dilation * (w->size - 1);
    w->padding = reach - w->padding;
    w->padding_after = reach - w->padding_after;
  }
  return mirrored;
}

// Whether there is such a convolution, and it costs less than the columns that it saves: it has as few columns to copy
// for each row of its filter, and as few products.
bool HasFasterMirrored(const ConvShape& s) {
  constexpr int64_t kMinChannels = 32;
  constexpr int64_t kMinColumns = 512;
  constexpr double kMaxMoreWork = 1.25;
  const auto exists = [](const Window& w) {
    const int64_t reach = w.dilation * (w.size - 1);
    return w.stride == 1 && w.padding <= reach && w.padding_after <= reach;
  };
  return !s.IsPointwise() && exists(s.planes) && exists(s.rows) && exists(s.cols) && s.channels >= kMinChannels &&
         s.images * s.Pixels() >= kMinColumns &&
         static_cast<double>(s.in.Volume()) <= kMaxMoreWork * static_cast<double>(s.Pixels());
}

// From [groups · maps, channels, taps] to [groups · channels, maps, taps], the last tap first.
template <typename T>
void MirrorFilter(const ConvShape& s, const T* filter, T* mirrored) {
  const int64_t taps = s.PatchSize() / s.channels;
  ParallelForEach(
      s.groups * s.channels,
      [=, &s](int64_t i) {
        const T* from = filter + (i / s.channels * s.maps * s.channels + i % s.channels) * taps;
        T* to = mirrored + i * s.maps * taps;
        for (int64_t m = 0; m < s.maps; ++m, from += s.PatchSize(), to += taps) {
          std::reverse_copy(from, from + taps, to);
        }
      },
      s.maps * taps);
}

}  // namespace

template <typename T>
void ConvolveBackward(const ConvShape& s, const T* out_grad, const T* input, const T* filter, T* input_grad,
                      T* filter_grad) {
  if (IsDepthwise(s)) {
    return ConvolveDepthwiseBackward(s, out_grad, input, filter, input_grad, filter_grad);
  }
  if (input_grad != nullptr && HasFasterMirrored(s)) {
    Tensor memory;
    T* mirrored = Scratch<T>(&memory, s.groups * s.FilterSize());
    MirrorFilter(s, filter, mirrored);
    Convolve<T>(MirroredShape(s), out_grad, mirrored, input_grad);
    input_grad = nullptr;
  }
  if (input_grad == nullptr && filter_grad == nullptr) {
    return;
  }
  // Threads share blocks of images. Each block has a gradient of the filter of its own; these are added in order.
  constexpr int64_t kMaxBlocks = 16;
  constexpr int64_t kMaxElements = 1 << 20;  // of what the blocks need
  const int64_t rows_per_tile = RowsPerTile(s, sizeof(T));
  // Small images share a product: as many as have the columns of a block of its depth.
  constexpr int64_t kMaxColumns = 256;
  const int64_t together =
      std::clamp<int64_t>(kMaxColumns / std::max<int64_t>(1, s.Pixels()), 1, std::max<int64_t>(1, s.images));
  const int64_t columns_size = together > 1      ? (s.PatchSize() + s.maps) * together * s.Pixels()
                               : s.IsPointwise() ? 0
                                                 : s.PatchSize() * rows_per_tile * s.out.width;
  const int64_t filter_size = filter_grad == nullptr ? 0 : s.groups * s.FilterSize();
  const int64_t blocks =
      std::min({kMaxBlocks, (s.images + together - 1) / together,
                std::max<int64_t>(1, kMaxElements / std::max<int64_t>(1, columns_size + filter_size))});
  Tensor columns_memory;
  Tensor filter_grad_memory;
  T* columns = Scratch<T>(&columns_memory, blocks * columns_size);
  // Either the columns are transposed on their way into the product, or the gradients of the maps are, and then the
  // product: what copies less, unless the last vector registers of its rows would be rather empty.
  constexpr int64_t kLanes = 16;
  const int64_t lanes = (s.maps + kLanes - 1) / kLanes * kLanes;
  const auto copied = [&s](int64_t rows, int64_t cols) {
    constexpr int64_t kRowsPerCopy = 1120 / sizeof(T);  // about as many as a product copies its columns for
    return (rows + kRowsPerCopy - 1) / kRowsPerCopy * cols * s.images * s.Pixels();
  };
  const bool transposed = lanes - s.maps <= s.maps / 8 &&
                          copied(s.PatchSize(), s.maps) + blocks * s.FilterSize() < copied(s.maps, s.PatchSize());
  const bool is_in_place = blocks == 1 && !transposed;
  T* filter_grads = is_in_place ? filter_grad : Scratch<T>(&filter_grad_memory, blocks * filter_size);
  const ConvImagesBackward<T> backward{s, out_grad, input, filter, input_grad, together, rows_per_tile, transposed};
  static_assert(kMaxBlocks <= FreePieces::kMax);
  FreePieces pieces;
  ParallelFor(blocks, 1, [&](int64_t first, int64_t end) {
    const int64_t piece = pieces.Take();
    for (int64_t b = first; b < end; ++b) {
      backward.Run(s.images * b / blocks, s.images * (b + 1) / blocks,
                   filter_grad == nullptr ? nullptr : filter_grads + b * filter_size, columns + piece * columns_size);
    }
    pieces.Return(piece);
  });
  if (filter_grad != nullptr && filter_grads != filter_grad) {
    AddFilterGrads(s, filter_grads, blocks, transposed, filter_grad);
  }
}

OpRegistrar&& ConvAttrs(OpRegistrar&& op, size_t dimensions) {
  const std::string names = ": " + std::string(DimensionNames(dimensions));
  const std::vector<int32_t> ones(dimensions, 1);
  return std::move(op)
      .Attr<std::vector<int32_t>>("strides", "step of the window" + names, ones)
      .With(PaddingAttrs, dimensions, "zeros around the input")
      .Attr<std::vector<int32_t>>("dilations", "step between the elements of the filter" + names, ones)
      .Attr<int32_t>("groups", "number of groups of channels that do not mix", 1)
      .With(LayoutAttr, "data_format", "AnyLayout");
}

void RegisterConv(const std::string& type, size_t dimensions, const std::string& comment, const ConvKind& kind) {
  OpRegistrar forward(type);
  OpRegistrar backward(type + "_grad");
  const bool flat = dimensions == 2;
  const auto bind = [dimensions](ConvKind::Kernel kernel) {
    return [dimensions, kernel](const ExecutionContext& ctx) { kernel(ctx, dimensions); };
  };
  More(forward)
      .Comment(comment)
      .Input("Input", LayoutNames(dimensions))
      .Input("Filter", StrCat("[", kind.filter, flat ? ", KH, KW]" : ", KD, KH, KW]", ", dtype of Input"))
      .Output("Output", StrCat(flat ? "[N, M, OH, OW]" : "[N, M, OD, OH, OW]", ", or with M last; OH = ", kind.output,
                               ", the others likewise"))
      .With(kind.attrs, dimensions)
      .InferShape([dimensions, infer = kind.infer](InferShapeContext& ctx) {
        SetOutput(ctx, "Output", infer(ctx, dimensions), ctx.InputType("Input"));
        ctx.ShareLoD("Input", "Output");
      })
      .Kernel<float>(bind(kind.kernel_of_float))
      .Kernel<double>(bind(kind.kernel_of_double))
      .Gradient(DefaultGradient({.inputs = {"Input", "Filter"}, .outputs = {}, .no_gradient = {}}))
      .Register();
  More(backward)
      .Comment("Gradient of " + type + ".")
      .Input("Input", "as in the operator")
      .Input("Filter", "as in the operator")
      .Input("Output@GRAD", "gradient of Output")
      .Output("Input@GRAD", "dims of Input", kDispensable)
      .Output("Filter@GRAD", "dims of Filter", kDispensable)
      .With(kind.attrs, dimensions)
      .InferShape([dimensions, infer = kind.infer](InferShapeContext& ctx) {
        EnforceDims(ctx, "Output@GRAD", infer(ctx, dimensions));
        EnforceSameType(ctx, "Output@GRAD", "Input");
        InferGradients(ctx, {"Input", "Filter"});
      })
      .Kernel<float>(bind(kind.gradient_of_float))
      .Kernel<double>(bind(kind.gradient_of_double))
      .Gradient(GradientOfBilinear(type, "Input", "Filter", "Output"))
      .Register();
}

#define HEADRACE_INSTANTIATE(T)                                        \
  template void Convolve<T>(const ConvShape&, const T*, const T*, T*); \
  template void ConvolveBackward<T>(const ConvShape&, const T*, const T*, const T*, T*, T*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
