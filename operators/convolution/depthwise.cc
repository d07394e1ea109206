#include "operators/convolution/depthwise.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "framework/thread_pool.h"
#include "operators/convolution/im2col.h"
#include "operators/math/element_loop.h"
#include "operators/math/scratch.h"

namespace headrace::ops {

namespace {

constexpr int64_t kMaxPhases = 8;  // strides

// Those of a register. GCC keeps sums of longer vectors in memory.
#ifdef __AVX__
constexpr int64_t kPlaneBytes = 32;
#else
constexpr int64_t kPlaneBytes = 16;
#endif

template <typename T>
constexpr int64_t kPlaneLanes = kPlaneBytes / sizeof(T);

template <typename T>
struct PlaneVector {
  typedef T Type __attribute__((vector_size(kPlaneBytes)));
};

// Whole vectors are read where a row ends, and lie over what follows it: less than that many elements.
constexpr int64_t kPlaneSlack = 8;

// Rows of a plane, copied between zeros, so that no tap of the filter falls outside. The columns are split by the
// stride: those that a tap meets one after the other lie side by side.
struct PaddedRows {
  int64_t phases;  // the stride
  int64_t before;  // zeros
  int64_t phase;   // elements of a phase
  int64_t rows;    // at a time

  int64_t Pitch() const { return phases * phase; }
  // Of a column, counted with the zeros.
  int64_t At(int64_t column) const { return column % phases * phase + column / phases; }
};

template <typename T>
void SplitRow(const PaddedRows& p, const T* from, int64_t n, T* to) {
  if (p.phases == 1) {
    CopyRun(from, n, to + p.before);
  } else if (p.phases == 2) {  // which the compiler vectorises
    T* even = to + p.At(p.before);
    T* odd = to + p.At(p.before + 1);
    HEADRACE_INDEPENDENT_ITERATIONS
    for (int64_t q = 0; q < n / 2; ++q) {
      even[q] = from[2 * q];
      odd[q] = from[2 * q + 1];
    }
    if (n % 2 != 0) {
      even[n / 2] = from[n - 1];
    }
  } else {
    for (int64_t first = 0; first < std::min(n, p.phases); ++first) {
      T* phase = to + p.At(p.before + first);
      for (int64_t x = first; x < n; x += p.phases) {
        *phase++ = from[x];
      }
    }
  }
}

// Rows [first, first + rows) of a plane of that height and width. `to` has zeros where the columns of zeros are.
template <typename T>
void PadRows(const PaddedRows& p, const T* plane, int64_t height, int64_t width, int64_t first, int64_t rows, T* to) {
  for (int64_t y = first; y < first + rows; ++y, to += p.Pitch()) {
    if (0 <= y && y < height) {
      SplitRow(p, plane + y * width, width, to);
    } else {
      std::fill_n(to, p.Pitch(), T(0));
    }
  }
}

// Of a filter; summed in their order.
template <typename T>
struct Taps {
  const int64_t* offsets;  // of the inputs that they meet
  const T* weights;
  int64_t size;
};

// Rows of results, `width` elements each and next to each other. A row ends with a whole vector, which lies over the
// next one, not yet written; none lies beyond `end`.
template <typename T>
struct ResultRows {
  T* to;
  T* end;
  int64_t width;
};

// Column `x` and those that follow, of kRows rows, whose inputs are from[0], from[pitch] and so on.
template <typename T, int64_t kRows, int64_t kVectors>
void CorrelateBlock(const Taps<T>& taps, const T* from, int64_t pitch, const ResultRows<T>& rows, int64_t x) {
  using Vector = typename PlaneVector<T>::Type;
  constexpr int64_t kLanes = kPlaneLanes<T>;
  // Set and copied by element, without which GCC keeps the array in memory.
  Vector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      sums[r][v] = Vector();
    }
  }
  for (int64_t t = 0; t < taps.size; ++t) {
    const T* at = from + x + taps.offsets[t];
    const T weight = taps.weights[t];
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < kVectors; ++v) {
        Vector in;
        __builtin_memcpy(&in, at + r * pitch + v * kLanes, sizeof(in));
        sums[r][v] += in * weight;
      }
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    T* to = rows.to + r * rows.width + x;
    T last[kVectors * kLanes];
    const bool fits = rows.end - to >= kVectors * kLanes;
    for (int64_t v = 0; v < kVectors; ++v) {
      __builtin_memcpy((fits ? to : last) + v * kLanes, &sums[r][v], sizeof(Vector));
    }
    if (!fits) {
      CopyRun(last, std::min(kVectors * kLanes, rows.width - x), to);
    }
  }
}

// As many of `count` rows as there are with kRows at a time, then half as many, and so on; the rows are one block wide.
template <typename T, int64_t kRows, int64_t kVectors>
void CorrelateShortRows(const Taps<T>& taps, const T* from, int64_t pitch, int64_t count, ResultRows<T> rows) {
  for (; count >= kRows; count -= kRows, from += kRows * pitch, rows.to += kRows * rows.width) {
    CorrelateBlock<T, kRows, kVectors>(taps, from, pitch, rows, 0);
  }
  if constexpr (kRows > 1) {
    CorrelateShortRows<T, kRows / 2, kVectors>(taps, from, pitch, count, rows);
  }
}

// `count` rows, whose last blocks have kVectors.
template <typename T, int64_t kVectors>
void CorrelateRows(const Taps<T>& taps, const T* from, int64_t pitch, int64_t count, ResultRows<T> rows) {
  constexpr int64_t kMax = 8;  // vectors in registers
  constexpr int64_t kStep = kMax * kPlaneLanes<T>;
  if (rows.width <= kStep) {
    return CorrelateShortRows<T, kMax / kVectors, kVectors>(taps, from, pitch, count, rows);
  }
  for (int64_t y = 0; y < count; ++y, from += pitch, rows.to += rows.width) {
    int64_t x = 0;
    for (; rows.width - x > kStep; x += kStep) {
      CorrelateBlock<T, 1, kMax>(taps, from, pitch, rows, x);
    }
    CorrelateBlock<T, 1, kVectors>(taps, from, pitch, rows, x);
  }
}

// As CorrelateRows, for any width.
template <typename T>
void Correlate(const Taps<T>& taps, const T* from, int64_t pitch, int64_t count, const ResultRows<T>& rows) {
  using Function = void (*)(const Taps<T>&, const T*, int64_t, int64_t, ResultRows<T>);
  static constexpr Function kFunctions[] = {CorrelateRows<T, 1>, CorrelateRows<T, 2>, CorrelateRows<T, 3>,
                                            CorrelateRows<T, 4>, CorrelateRows<T, 5>, CorrelateRows<T, 6>,
                                            CorrelateRows<T, 7>, CorrelateRows<T, 8>};
  kFunctions[(rows.width - 1) / kPlaneLanes<T> % 8](taps, from, pitch, count, rows);
}

// The sum of the kPlaneLanes elements from sums[t · kPlaneLanes] on, += Σ d · (the input that tap t meets), over `rows`
// rows of d, `width` elements each and next to each other. No element of d is read from `end` on.
template <typename T, int64_t kTaps>
void AddTapGrads(const int64_t* offsets, const T* d, const T* end, int64_t width, int64_t rows, const T* from,
                 int64_t pitch, T* sums) {
  using Vector = typename PlaneVector<T>::Type;
  using Mask = decltype(Vector() < Vector());
  constexpr int64_t kLanes = kPlaneLanes<T>;
  const int64_t whole = width / kLanes * kLanes;
  Mask mask;  // of the last elements of a row; what is behind it may be infinite
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    mask[lane] = lane < width - whole ? -1 : 0;
  }
  Vector totals[kTaps];
#pragma GCC unroll 16
  for (int64_t t = 0; t < kTaps; ++t) {
    __builtin_memcpy(&totals[t], sums + t * kLanes, sizeof(Vector));
  }
  Vector grad;
  Vector in;
  for (int64_t y = 0; y < rows; ++y, d += width, from += pitch) {
    for (int64_t x = 0; x < whole; x += kLanes) {
      __builtin_memcpy(&grad, d + x, sizeof(grad));
      for (int64_t t = 0; t < kTaps; ++t) {
        __builtin_memcpy(&in, from + x + offsets[t], sizeof(in));
        totals[t] += grad * in;
      }
    }
    if (whole < width) {
      if (end - d >= whole + kLanes) {
        __builtin_memcpy(&grad, d + whole, sizeof(grad));
      } else {
        T last[kLanes] = {};
        std::copy_n(d + whole, width - whole, last);
        __builtin_memcpy(&grad, last, sizeof(grad));
      }
      for (int64_t t = 0; t < kTaps; ++t) {
        __builtin_memcpy(&in, from + whole + offsets[t], sizeof(in));
        totals[t] += reinterpret_cast<Vector>(reinterpret_cast<Mask>(grad * in) & mask);
      }
    }
  }
#pragma GCC unroll 16
  for (int64_t t = 0; t < kTaps; ++t) {
    __builtin_memcpy(sums + t * kLanes, &totals[t], sizeof(Vector));
  }
}

constexpr int64_t kMaxTaps = 9;  // at a time: registers for sums

template <typename T, size_t... kTaps>
constexpr auto TapGradFunctions(std::index_sequence<kTaps...> /*taps*/) {
  return std::array{AddTapGrads<T, kTaps + 1>...};
}

// As AddTapGrads, for any number of taps.
template <typename T>
void AddAllTapGrads(const int64_t* offsets, int64_t taps, const T* d, const T* end, int64_t width, int64_t rows,
                    const T* from, int64_t pitch, T* sums) {
  static constexpr auto kFunctions = TapGradFunctions<T>(std::make_index_sequence<kMaxTaps>());
  const int64_t parts = (taps + kMaxTaps - 1) / kMaxTaps;
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t t = taps * p / parts;
    const int64_t size = taps * (p + 1) / parts - t;
    kFunctions[static_cast<size_t>(size - 1)](offsets + t, d, end, width, rows, from, pitch, sums + t * kPlaneLanes<T>);
  }
}

// Calls visit(task, memory) for each of `tasks`, from several threads, with memory for `elements` elements, zeros at
// first, which the tasks of a thread use one after the other. `work`: multiplications of a task.
template <typename T, typename Visit>
void ForEachPlane(int64_t tasks, int64_t work, int64_t elements, const Visit& visit) {
  constexpr int64_t kWorkPerElement = 4;  // of a loop that does little with each
  const int64_t blocks = std::min(FreePieces::kMax, (tasks - 1) / RowsPerBlock(work / kWorkPerElement) + 1);
  Tensor memory;
  elements += kPlaneSlack;
  T* pieces = Scratch<T>(&memory, std::min<int64_t>(blocks, PoolThreads()) * elements);
  FreePieces free;
  ParallelFor(blocks, 1, [&](int64_t first, int64_t end) {
    const int64_t piece = free.Take();
    std::fill_n(pieces + piece * elements, elements, T(0));
    for (int64_t i = tasks * first / blocks; i < tasks * end / blocks; ++i) {
      visit(i, pieces + piece * elements);
    }
    free.Return(piece);
  });
}

constexpr int64_t kPaddedBytes = 64 * 1024;

// The input, as the taps of a window meet it from a band of `band` rows of the output.
template <typename T>
struct InputBands {
  explicit InputBands(const ConvShape& s)
      : padded{s.cols.stride, s.cols.padding,
               std::max(s.out.width + (s.cols.size - 1) * s.cols.dilation / s.cols.stride,
                        (s.cols.padding + s.in.width - 1) / s.cols.stride + 1),
               0} {
    const int64_t extent = (s.rows.size - 1) * s.rows.dilation + 1;
    const int64_t fitting = kPaddedBytes / static_cast<int64_t>(sizeof(T)) / padded.Pitch();
    // At least half of the rows should be of this band alone.
    band = std::clamp<int64_t>((std::max(fitting, 2 * extent) - extent) / s.rows.stride + 1, 1, s.out.height);
    count = (s.out.height - 1) / band + 1;
    padded.rows = (band - 1) * s.rows.stride + extent;
  }

  int64_t Size() const { return padded.rows * padded.Pitch(); }

  void ListOffsets(const ConvShape& s, int64_t* offsets) const {
    for (int64_t i = 0; i < s.rows.size; ++i) {
      for (int64_t j = 0; j < s.cols.size; ++j) {
        *offsets++ = i * s.rows.dilation * padded.Pitch() + padded.At(j * s.cols.dilation);
      }
    }
  }

  // For output rows [begin, begin + n).
  void Read(const ConvShape& s, const T* plane, int64_t begin, int64_t n, T* rows) const {
    PadRows(padded, plane, s.in.height, s.in.width, s.rows.InputAt(begin, 0),
            (n - 1) * s.rows.stride + (s.rows.size - 1) * s.rows.dilation + 1, rows);
  }

  PaddedRows padded;
  int64_t band;
  int64_t count;
};

template <typename T>
void DepthwiseForward(const ConvShape& s, const T* input, const T* filter, T* out) {
  const InputBands<T> bands(s);
  Tensor offsets_memory;
  int64_t* offsets = Scratch<int64_t>(&offsets_memory, s.PatchSize());
  bands.ListOffsets(s, offsets);
  const int64_t pitch = bands.padded.Pitch();
  const int64_t work = s.FilterSize() * bands.band * s.out.width;
  ForEachPlane<T>(s.images * s.groups * bands.count, work, bands.Size(), [&](int64_t task, T* rows) {
    const int64_t plane = task / bands.count;
    const int64_t begin = task % bands.count * bands.band;
    const int64_t count = std::min(bands.band, s.out.height - begin);
    bands.Read(s, input + plane * s.in.Volume(), begin, count, rows);
    for (int64_t m = 0; m < s.maps; ++m) {
      const T* weights = filter + (plane % s.groups * s.maps + m) * s.PatchSize();
      T* to = out + (plane * s.maps + m) * s.Pixels() + begin * s.out.width;
      Correlate<T>({offsets, weights, s.PatchSize()}, rows, s.rows.stride * pitch, count,
                   {to, to + count * s.out.width, s.out.width});
    }
  });
}

// The gradient by the input is a correlation again, of the output's gradient: an input is met by those taps whose
// phase, by the strides, is its own.
template <typename T>
class DepthwiseInputGrad {
 public:
  explicit DepthwiseInputGrad(const ConvShape& s)
      : s_(s),
        reach_(Reach(s.rows)),
        padded_{1, Reach(s.cols),
                Reach(s.cols) + std::max(s.out.width, (s.in.width - 1 + s.cols.padding) / s.cols.stride + 1), 0} {
    const int64_t stride = s.rows.stride;
    const int64_t fitting = kPaddedBytes / static_cast<int64_t>(sizeof(T)) / padded_.Pitch() / s.maps;
    band_ = std::clamp<int64_t>((std::max(fitting, 2 * reach_ + 2) - reach_ - 1) * stride, 1, s.in.height);
    bands_ = (s.in.height - 1) / band_ + 1;
    padded_.rows = reach_ + (band_ - 1) / stride + 2;
  }

  void Run(const T* out_grad, const T* filter, T* input_grad) {
    Tensor offsets_memory;
    Tensor order_memory;
    offsets_ = Scratch<int64_t>(&offsets_memory, s_.FilterSize());
    order_ = Scratch<int64_t>(&order_memory, s_.FilterSize());
    ListTaps();
    const int64_t work = s_.FilterSize() * band_ * s_.in.width / (s_.rows.stride * s_.cols.stride);
    const int64_t size = s_.maps * MapSize() + s_.FilterSize() + s_.cols.stride * PhaseSize();
    ForEachPlane<T>(s_.images * s_.groups * bands_, work, size, [&](int64_t task, T* memory) {
      const int64_t plane = task / bands_;
      RunBand(task % bands_ * band_, out_grad + plane * s_.OutputSizeOfGroup(),
              filter + plane % s_.groups * s_.FilterSize(), input_grad + plane * s_.in.Volume(), memory);
    });
  }

 private:
  // How many outputs before the one that meets an input with its first tap may meet it with another.
  static int64_t Reach(const Window& w) { return (w.size - 1) * w.dilation / w.stride; }

  int64_t MapSize() const { return padded_.rows * padded_.Pitch(); }
  // Room for the results of the rows and columns of a phase.
  int64_t PhaseSize() const { return (band_ / s_.rows.stride + 1) * (s_.in.width / s_.cols.stride + 1); }

  // Lists the taps phase by phase, each with its place in the filter of a group.
  void ListTaps() {
    int64_t n = 0;
    for (int64_t phase = 0; phase < s_.rows.stride * s_.cols.stride; ++phase) {
      first_tap_[static_cast<size_t>(phase)] = n;
      for (int64_t tap = 0; tap < s_.FilterSize(); ++tap) {
        const int64_t row = tap / s_.cols.size % s_.rows.size * s_.rows.dilation;
        const int64_t col = tap % s_.cols.size * s_.cols.dilation;
        if (row % s_.rows.stride * s_.cols.stride + col % s_.cols.stride == phase) {
          order_[n] = tap;
          offsets_[n++] =
              tap / s_.PatchSize() * MapSize() - row / s_.rows.stride * padded_.Pitch() - col / s_.cols.stride;
        }
      }
      first_tap_[static_cast<size_t>(phase + 1)] = n;
    }
  }

  // Rows [begin, begin + band_) of a plane of the input.
  void RunBand(int64_t begin, const T* out_grad, const T* filter, T* input_grad, T* maps) const {
    const int64_t end = std::min(begin + band_, s_.in.height);
    const int64_t stride = s_.rows.stride;
    const int64_t first = (begin + s_.rows.padding) / stride - reach_;
    for (int64_t m = 0; m < s_.maps; ++m) {
      PadRows(padded_, out_grad + m * s_.Pixels(), s_.out.height, s_.out.width, first,
              (end - 1 + s_.rows.padding) / stride - first + 1, maps + m * MapSize());
    }
    T* weights = maps + s_.maps * MapSize();
    for (int64_t t = 0; t < s_.FilterSize(); ++t) {
      weights[t] = filter[order_[t]];
    }
    for (int64_t y = begin; y < std::min(begin + stride, end); ++y) {
      RunPhase(y, (end - 1 - y) / stride + 1, maps + ((y + s_.rows.padding) / stride - first) * padded_.Pitch(),
               weights, weights + s_.FilterSize(), input_grad);
    }
  }

  // The rows of one phase: `count` from row `y` on.
  void RunPhase(int64_t y, int64_t count, const T* from, const T* weights, T* results, T* input_grad) const {
    const int64_t stride = s_.cols.stride;
    const bool in_place = s_.rows.stride == 1 && stride == 1;
    std::array<ResultRows<T>, kMaxPhases> phases{};
    for (int64_t x = 0; x < std::min(stride, s_.in.width); ++x, results += PhaseSize()) {
      const int64_t row_phase = (y + s_.rows.padding) % s_.rows.stride;
      const int64_t col_phase = (x + s_.cols.padding) % stride;
      const auto phase = static_cast<size_t>(row_phase * stride + col_phase);
      const int64_t tap = first_tap_[phase];
      T* to = in_place ? input_grad + y * s_.in.width : results;
      const int64_t width = (s_.in.width - 1 - x) / stride + 1;
      phases[static_cast<size_t>(x)] = {to, to + count * width, width};
      Correlate<T>({offsets_ + tap, weights + tap, first_tap_[phase + 1] - tap},
                   from + padded_.before + (x + s_.cols.padding) / stride, padded_.Pitch(), count,
                   phases[static_cast<size_t>(x)]);
    }
    for (int64_t r = 0; r < count && !in_place; ++r) {
      MergeRow(phases.data(), r, input_grad + (y + r * s_.rows.stride) * s_.in.width);
    }
  }

  // The other way round than SplitRow.
  void MergeRow(const ResultRows<T>* phases, int64_t r, T* to) const {
    const int64_t stride = s_.cols.stride;
    if (stride == 2 && s_.in.width % 2 == 0) {  // which the compiler vectorises
      const T* even = phases[0].to + r * phases[0].width;
      const T* odd = phases[1].to + r * phases[1].width;
      HEADRACE_INDEPENDENT_ITERATIONS
      for (int64_t q = 0; q < s_.in.width / 2; ++q) {
        to[2 * q] = even[q];
        to[2 * q + 1] = odd[q];
      }
      return;
    }
    for (int64_t first = 0; first < std::min(s_.in.width, stride); ++first) {
      const T* from = phases[first].to + r * phases[first].width;
      for (int64_t x = first; x < s_.in.width; x += stride) {
        to[x] = *from++;
      }
    }
  }

  const ConvShape& s_;
  int64_t reach_;
  PaddedRows padded_;
  int64_t band_;
  int64_t bands_;
  std::array<int64_t, kMaxPhases * kMaxPhases + 1> first_tap_{};  // by phase
  int64_t* offsets_ = nullptr;
  int64_t* order_ = nullptr;
};

// Threads share the channels, and blocks of images if these are few. Each block has sums of its own, added in order.
template <typename T>
void DepthwiseFilterGrad(const ConvShape& s, const T* out_grad, const T* input, T* filter_grad) {
  constexpr int64_t kMinTasks = 16;
  const InputBands<T> bands(s);
  const int64_t blocks = std::clamp<int64_t>(kMinTasks / s.groups, 1, s.images);
  Tensor offsets_memory;
  Tensor sums_memory;
  int64_t* offsets = Scratch<int64_t>(&offsets_memory, s.PatchSize());
  double* sums = Scratch<double>(&sums_memory, blocks * s.groups * s.FilterSize());
  bands.ListOffsets(s, offsets);
  const int64_t pitch = bands.padded.Pitch();
  const int64_t work = s.FilterSize() * s.Pixels() * s.images / blocks;
  // How many elements a sum may have before it is added to one of doubles, and how many rows have half as many.
  constexpr int64_t kMaxVectors = 512;
  const int64_t vectors = (s.out.width - 1) / kPlaneLanes<T> + 1;
  const int64_t step = std::max<int64_t>(1, kMaxVectors / 2 / vectors);
  const int64_t lanes_size = s.FilterSize() * kPlaneLanes<T>;
  ForEachPlane<T>(blocks * s.groups, work, bands.Size() + lanes_size, [&](int64_t task, T* rows) {
    const int64_t block = task / s.groups;
    T* lanes = rows + bands.Size();
    double* totals = sums + task * s.FilterSize();
    std::fill_n(lanes, lanes_size, T(0));
    std::fill_n(totals, s.FilterSize(), 0.0);
    int64_t added = 0;
    const auto flush = [&] {
      for (int64_t i = 0; i < lanes_size; ++i) {
        totals[i / kPlaneLanes<T>] += static_cast<double>(std::exchange(lanes[i], T(0)));
      }
      added = 0;
    };
    for (int64_t i = s.images * block / blocks; i < s.images * (block + 1) / blocks; ++i) {
      const int64_t plane = i * s.groups + task % s.groups;
      for (int64_t begin = 0; begin < s.out.height; begin += bands.band) {
        const int64_t end = std::min(begin + bands.band, s.out.height);
        bands.Read(s, input + plane * s.in.Volume(), begin, end - begin, rows);
        for (int64_t y = begin; y < end; y += step) {
          const int64_t count = std::min(step, end - y);
          for (int64_t m = 0; m < s.maps; ++m) {
            const T* map = out_grad + (plane * s.maps + m) * s.Pixels();
            AddAllTapGrads(offsets, s.PatchSize(), map + y * s.out.width, map + s.Pixels(), s.out.width, count,
                           rows + (y - begin) * s.rows.stride * pitch, s.rows.stride * pitch,
                           lanes + m * s.PatchSize() * kPlaneLanes<T>);
          }
          added += count * vectors;
          if (added > kMaxVectors / 2) {
            flush();
          }
        }
      }
    }
    flush();
  });
  const int64_t size = s.groups * s.FilterSize();
  for (int64_t w = 0; w < size; ++w) {
    double total = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      total += sums[b * size + w];
    }
    filter_grad[w] = static_cast<T>(total);
  }
}

}  // namespace

bool IsDepthwise(const ConvShape& s) {
  constexpr int64_t kMaxMaps = 4;        // else a product pays
  constexpr double kMaxPadding = 4;      // how many times as much as the input and output may be padded
  constexpr double kFewElements = 4096;  // that may be in any case
  const auto padded = [](int64_t extent, const Window& w) {
    return static_cast<double>(extent) + static_cast<double>(w.Paddings());
  };
  return s.dimensions == 2 && s.channels == 1 && s.maps <= kMaxMaps && !s.IsPointwise() &&
         s.rows.stride <= kMaxPhases && s.cols.stride <= kMaxPhases &&
         padded(s.in.height, s.rows) * padded(s.in.width, s.cols) <=
             kFewElements + kMaxPadding * (static_cast<double>(s.in.Volume()) + static_cast<double>(s.Pixels()));
}

template <typename T>
void ConvolveDepthwise(const ConvShape& s, const T* input, const T* filter, T* out) {
  if (s.images > 0) {
    DepthwiseForward(s, input, filter, out);
  }
}

template <typename T>
void ConvolveDepthwiseBackward(const ConvShape& s, const T* out_grad, const T* input, const T* filter, T* input_grad,
                               T* filter_grad) {
  if (s.images == 0) {
    std::fill_n(filter_grad, filter_grad == nullptr ? 0 : s.groups * s.FilterSize(), T(0));
    return;
  }
  if (input_grad != nullptr) {
    DepthwiseInputGrad<T>(s).Run(out_grad, filter, input_grad);
  }
  if (filter_grad != nullptr) {
    DepthwiseFilterGrad(s, out_grad, input, filter_grad);
  }
}

#define HEADRACE_INSTANTIATE(T)                                                 \
  template void ConvolveDepthwise<T>(const ConvShape&, const T*, const T*, T*); \
  template void ConvolveDepthwiseBackward<T>(const ConvShape&, const T*, const T*, const T*, T*, T*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
