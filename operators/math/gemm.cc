// Which kernel makes a product: BestIsa says which instruction set, MaxDirectTiles whether the operands are packed.
#include "operators/math/gemm.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "framework/thread_pool.h"
#include "operators/math/avx512_loop.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm_panels.h"
#include "operators/math/scratch.h"
#include "operators/math/transpose.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define HEADRACE_GEMM_AVX2
#endif

namespace headrace::ops {
namespace {

// The most that a block of depth has, for any instruction set.
constexpr int64_t kMaxDepth = 512;

// What one call of the inner loop computes: c[rows, columns] (+)= alpha · a · b. `b` has whole vectors in each row.
template <typename T>
struct GemmTile {
  int64_t depth;
  const T* a;
  int64_t a_row;
  int64_t a_col;
  const T* b;
  int64_t b_row;
  T alpha;
  bool add;
  T* c;
  int64_t c_row;
  int64_t columns;
  // A block of depth may come in slices: where the sums of this tile are between them, whole vectors of each row.
  T* sums = nullptr;
  bool is_first = true;
  bool is_last = true;
};

// The same in lines: row l of b is at b[offsets[l]], and only chosen columns are stored, one behind the other. Never
// added to c.
template <typename T>
struct LineTile : GemmTile<T> {
  const int64_t* offsets;
  uint32_t chosen;
};

// Where an instruction set has none of its own.
template <typename T, typename Vector>
void StoreChosenOneByOne(const Vector& v, uint32_t chosen, T* to) {
  T elements[sizeof(Vector) / sizeof(T)];
  __builtin_memcpy(elements, &v, sizeof(v));
  for (; chosen != 0; chosen &= chosen - 1) {
    *to++ = elements[std::countr_zero(chosen)];
  }
}

// How many columns of a product of one row are computed at a time: their sums stay in the first-level cache.
constexpr int64_t kRowColumns = 512;

// An instruction set: how deep a block is at most, and functions for 1 to max_rows rows of one vector or two, for 1 to
// max_rows / 2 of four, for 1 to max_rows of two in lines, and for one row of many.
template <typename T>
struct GemmIsa {
  int64_t lanes;
  int64_t max_rows;
  int64_t depth;
  void (*const* one)(const GemmTile<T>&);
  void (*const* two)(const GemmTile<T>&);
  void (*const* four)(const GemmTile<T>&);
  void (*const* lines)(const LineTile<T>&);
  void (*row)(const GemmTile<T>&);
};

#if defined(HEADRACE_AVX512)
#pragma GCC push_options
#pragma GCC target("avx512f,prefer-vector-width=512")
namespace avx512 {
typedef float FloatVector __attribute__((vector_size(64)));
typedef double DoubleVector __attribute__((vector_size(64)));
constexpr int kMaxRows = 14;
// The results are read and written once per block, which costs more than panels that no first-level cache holds.
constexpr int64_t kDepth = 512;
inline void MultiplyAdd(const FloatVector& a, const FloatVector& b, FloatVector* sum) {
  *sum = _mm512_fmadd_ps(a, b, *sum);
}
inline void MultiplyAdd(const DoubleVector& a, const DoubleVector& b, DoubleVector* sum) {
  *sum = _mm512_fmadd_pd(a, b, *sum);
}
inline auto MaskOf(int64_t n) { return static_cast<uint16_t>((1U << n) - 1); }
inline void LoadPart(const float* from, int64_t n, FloatVector* v) { *v = _mm512_maskz_loadu_ps(MaskOf(n), from); }
inline void LoadPart(const double* from, int64_t n, DoubleVector* v) {
  *v = _mm512_maskz_loadu_pd(static_cast<uint8_t>(MaskOf(n)), from);
}
inline void StorePart(const FloatVector& v, int64_t n, float* to) { _mm512_mask_storeu_ps(to, MaskOf(n), v); }
inline void StorePart(const DoubleVector& v, int64_t n, double* to) {
  _mm512_mask_storeu_pd(to, static_cast<uint8_t>(MaskOf(n)), v);
}
inline void StoreChosen(const FloatVector& v, uint32_t chosen, float* to) {
  StorePart(_mm512_maskz_compress_ps(static_cast<uint16_t>(chosen), v), std::popcount(chosen), to);
}
inline void StoreChosen(const DoubleVector& v, uint32_t chosen, double* to) {
  StorePart(_mm512_maskz_compress_pd(static_cast<uint8_t>(chosen), v), std::popcount(chosen), to);
}
#include "operators/math/gemm_tile.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

#if defined(HEADRACE_GEMM_AVX2)
namespace baseline {
typedef float FloatVector __attribute__((vector_size(32)));
typedef double DoubleVector __attribute__((vector_size(32)));
constexpr int kMaxRows = 6;
constexpr int64_t kDepth = 256;
inline void MultiplyAdd(const FloatVector& a, const FloatVector& b, FloatVector* sum) {
  *sum = _mm256_fmadd_ps(a, b, *sum);
}
inline void MultiplyAdd(const DoubleVector& a, const DoubleVector& b, DoubleVector* sum) {
  *sum = _mm256_fmadd_pd(a, b, *sum);
}
// As many times 32 bits as are set.
inline __m256i MaskOf(int64_t n) {
  alignas(64) static constexpr int32_t kMasks[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMasks + 8 - n));
}
inline void LoadPart(const float* from, int64_t n, FloatVector* v) { *v = _mm256_maskload_ps(from, MaskOf(n)); }
inline void LoadPart(const double* from, int64_t n, DoubleVector* v) { *v = _mm256_maskload_pd(from, MaskOf(2 * n)); }
inline void StorePart(const FloatVector& v, int64_t n, float* to) { _mm256_maskstore_ps(to, MaskOf(n), v); }
inline void StorePart(const DoubleVector& v, int64_t n, double* to) { _mm256_maskstore_pd(to, MaskOf(2 * n), v); }
inline void StoreChosen(const FloatVector& v, uint32_t chosen, float* to) { StoreChosenOneByOne(v, chosen, to); }
inline void StoreChosen(const DoubleVector& v, uint32_t chosen, double* to) { StoreChosenOneByOne(v, chosen, to); }
#include "operators/math/gemm_tile.h"
}  // namespace baseline
#else
namespace baseline {
typedef float FloatVector __attribute__((vector_size(16)));
typedef double DoubleVector __attribute__((vector_size(16)));
constexpr int kMaxRows = 4;
constexpr int64_t kDepth = 256;
template <typename Vector>
void MultiplyAdd(const Vector& a, const Vector& b, Vector* sum) {
  *sum += a * b;
}
template <typename T, typename Vector>
void LoadPart(const T* from, int64_t n, Vector* v) {
  *v = Vector{};
  __builtin_memcpy(v, from, static_cast<size_t>(n) * sizeof(T));
}
template <typename T, typename Vector>
void StorePart(const Vector& v, int64_t n, T* to) {
  __builtin_memcpy(to, &v, static_cast<size_t>(n) * sizeof(T));
}
template <typename T, typename Vector>
void StoreChosen(const Vector& v, uint32_t chosen, T* to) {
  StoreChosenOneByOne(v, chosen, to);
}
#include "operators/math/gemm_tile.h"
}  // namespace baseline
#endif

template <typename T>
const GemmIsa<T>& BestIsa() {
  static const GemmIsa<T> isa = [] {
#if defined(HEADRACE_AVX512)
    if (HasAvx512()) {
      return avx512::Isa<T>();
    }
#endif
    return baseline::Isa<T>();
  }();
  return isa;
}

// Enough for the threads to share what they have left at the end.
constexpr int64_t kTasksPerThread = 4;

// As many rows for each thread are worth a task of their own, if the columns are few.
constexpr int64_t kRowsToCut = 128;

// From so many panels on it pays to pack the rows that they are multiplied by; transposed ones sooner, and those that
// no second-level cache holds from the second on.
constexpr int64_t kPanelsToPackFor = 8;
constexpr int64_t kPanelsToPackTransposedFor = 4;
constexpr int64_t kPanelsToPackLargeFor = 2;
constexpr int64_t kLargeBytes = 1 << 22;

// The depth of blocks of transposed rows that may not be packed: they are on as many cache lines, far apart.
constexpr int64_t kDepthWhereTheyLie = 256;

// Between rows that are packed, lest they be a multiple of some large power of two apart.
constexpr int64_t kRowPadding = 8;

// A slice of a block of depth. A panel of more rows, far apart, would be on more pages than the first-level TLB knows.
constexpr int64_t kSliceRows = 64;

// Tiles that take slices, and elements of their sums meanwhile, which stay in the first-level cache.
constexpr int64_t kMaxSlicedTiles = 4;
constexpr int64_t kSlicedSums = 8192;

template <typename T>
bool AreRowsFarApart(const StridedMatrix<T>& b) {
  return b.row * static_cast<int64_t>(sizeof(T)) > 2048;
}

// How many tiles read columns of b where they lie, rather than from a copy: where rows lie close together, the
// second-level cache has them as fast as some more tiles need them.
template <typename T>
int64_t MaxDirectTiles(const StridedMatrix<T>& b) {
  return AreRowsFarApart(b) ? 4 : 10;
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// In bytes, of one core.
int64_t SecondLevelCache() {
  static const int64_t bytes = [] {
    constexpr int64_t kLeast = 1 << 19;
    constexpr int64_t kMost = 1 << 22;
    return std::clamp<int64_t>(::sysconf(_SC_LEVEL2_CACHE_SIZE), kLeast, kMost);  // 0 or −1: unknown
  }();
  return bytes;
}

// Memory of this thread for n elements, aligned to cache lines, which it keeps for its next products: more than a stack
// is sure to have, and for tasks, in which scratch memory is not to be had.
template <typename T>
T* MemoryForRows(int64_t n) {
  struct Memory {
    std::unique_ptr<T, decltype(&std::free)> data{nullptr, &std::free};
    int64_t size = 0;
  };
  thread_local Memory memory;
  if (memory.size < n) {
    constexpr size_t kLine = 64;
    const size_t bytes = (static_cast<size_t>(n) * sizeof(T) + kLine - 1) / kLine * kLine;
    memory.size = 0;
    memory.data.reset();
    memory.data.reset(static_cast<T*>(std::aligned_alloc(kLine, bytes)));
    if (memory.data == nullptr) {
      throw std::bad_alloc();
    }
    memory.size = n;
  }
  return memory.data.get();
}

// [begin, begin + size) for part `i` of `parts` of nearly the same size.
struct Part {
  Part() = default;
  Part(int64_t whole, int64_t parts, int64_t i) : begin(whole * i / parts), size(whole * (i + 1) / parts - begin) {}
  int64_t begin = 0;
  int64_t size = 0;
};

template <typename T, int64_t kCols>
void CopyColumns(const T* from, int64_t stride, int64_t rows, int64_t width, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    __builtin_memcpy(to + r * width, from + r * stride, kCols * sizeof(T));
  }
}

// to[r · width + c] = from[r · stride + c] for `rows` and `cols`, at most 128 bytes. The number of columns is a
// constant of the loop, lest every row cost a call.
template <typename T>
void CopyPanel(const T* from, int64_t stride, int64_t rows, int64_t cols, int64_t width, T* to) {
  static constexpr auto kCopies = []<size_t... kCols>(std::index_sequence<kCols...>) {
    return std::array<void (*)(const T*, int64_t, int64_t, int64_t, T*), sizeof...(kCols)>{
        CopyColumns<T, static_cast<int64_t>(kCols) + 1>...};
  }(std::make_index_sequence<128 / sizeof(T)>());
  kCopies[cols - 1](from, stride, rows, width, to);
}

// These rows in a block of depth, `stride` apart. Where they lie in memory, many may share the same places in a cache.
template <typename T>
void PackRows(const StridedMatrix<T>& a, const Part& rows, const Part& depth, int64_t stride, T* to) {
  for (int64_t r = 0; r < rows.size; ++r) {
    std::copy_n(a.data + (rows.begin + r) * a.row + depth.begin, depth.size, to + r * stride);
  }
}

// Tiles of these rows in a block of depth, one after another: an element of each row, then the next of each. Where they
// lie in memory, they are on as many cache lines as the block is deep, far apart.
template <typename T>
void PackTransposed(const StridedMatrix<T>& a, const Part& rows, int64_t tiles, const Part& depth, T* to) {
  for (int64_t t = 0; t < tiles; ++t) {
    const Part part(rows.size, tiles, t);
    CopyPanel(a.data + rows.begin + part.begin + depth.begin * a.col, a.col, depth.size, part.size, part.size,
              to + part.begin * depth.size);
  }
}

// A panel of columns in a block of depth, where it lies in memory as a part of b.
template <typename T>
struct DirectPanel {
  // Asks for a part of it. Its rows lie far apart, where no hardware looks ahead.
  void Prefetch(int64_t parts, int64_t i) const {
    const Part part(rows, parts, i);
    for (int64_t r = part.begin; r < part.begin + part.size; ++r) {
      for (int64_t c = 0; c < cols; c += 64 / sizeof(T)) {
        __builtin_prefetch(data + r * row + c, 0, 2);
      }
    }
  }

  const T* data = nullptr;
  int64_t row = 0;
  int64_t rows = 0;
  int64_t cols = 0;
};

// The way of a task through the right-hand side: block by block of depth, and in each panel by panel. Where blocks come
// in slices, it goes through some panels slice by slice before it turns to the next ones.
class Walk {
 public:
  Walk(int64_t k, int64_t blocks, const Part& panels, int64_t panels_together, int64_t slice_rows)
      : k_(k),
        blocks_(blocks),
        panels_(panels),
        groups_(CeilDiv(panels.size, panels_together)),
        slice_rows_(slice_rows) {
    BeginBlock();
  }

  bool IsDone() const { return block_ == blocks_; }

  void Advance() {
    if (++index_ < together_.size) {
      return;
    }
    index_ = 0;
    if (++slice_number_ < slices_) {
      slice_ = Part(depth_.size, slices_, slice_number_);
    } else if (++group_ < groups_) {
      BeginGroup();
    } else if (++block_ < blocks_) {
      BeginBlock();
    }
  }

  int64_t block() const { return block_; }
  const Part& depth() const { return depth_; }  // of the block
  const Part& slice() const { return slice_; }  // of that
  int64_t panel() const { return panels_.begin + together_.begin + index_; }
  int64_t index() const { return index_; }  // of the panel among those that it goes through together
  bool IsFirstPanel() const { return group_ == 0 && slice_number_ == 0 && index_ == 0; }
  bool IsFirstSlice() const { return slice_number_ == 0; }
  bool IsLastSlice() const { return slice_number_ + 1 == slices_; }

 private:
  void BeginBlock() {
    depth_ = Part(k_, blocks_, block_);
    slices_ = CeilDiv(depth_.size, slice_rows_);
    group_ = 0;
    BeginGroup();
  }

  void BeginGroup() {
    together_ = Part(panels_.size, groups_, group_);
    slice_number_ = 0;
    slice_ = Part(depth_.size, slices_, 0);
  }

  int64_t k_;
  int64_t blocks_;
  Part panels_;
  int64_t groups_;
  int64_t slice_rows_;
  int64_t block_ = 0;
  Part depth_;
  int64_t group_ = 0;
  Part together_;  // of panels
  int64_t slices_ = 0;
  int64_t slice_number_ = 0;
  Part slice_;
  int64_t index_ = 0;
};

// c (+)= alpha · a · b. Columns of b come as they lie in memory (`direct`) or by panels.
//
// The product is cut into tasks of some rows and some panels of columns, which threads share. A task goes through k
// block by block; in each through its panels, and for each through its rows, whose block takes half a second-level
// cache.
//
// Few rows read columns where they lie, and it is memory that limits them. So where all panels can be twice as wide,
// they are: hardware reads these ahead by itself.
template <typename T>
class Product {
 public:
  Product(int64_t m, int64_t n, int64_t k, T alpha, const StridedMatrix<T>& a, const StridedMatrix<T>* direct,
          const PanelSource<T>& source, bool accumulate, T* c, int64_t c_row)
      : m_(m),
        n_(n),
        k_(k),
        alpha_(alpha),
        a_(a),
        direct_(direct),
        source_(source),
        accumulate_(accumulate),
        c_(c),
        c_row_(c_row),
        is_wide_(IsDirect() && m <= isa_.max_rows / 2 && n % (4 * isa_.lanes) == 0),
        panel_width_((is_wide_ ? 4 : 2) * isa_.lanes),
        panels_(CeilDiv(n, panel_width_)),
        is_transposed_(a.row == 1 && a.col != 1),
        panels_to_pack_for_(!is_transposed_                                          ? kPanelsToPackFor
                            : m * k * static_cast<int64_t>(sizeof(T)) <= kLargeBytes ? kPanelsToPackTransposedFor
                                                                                     : kPanelsToPackLargeFor),
        depth_(is_transposed_ && panels_ < panels_to_pack_for_ ? kDepthWhereTheyLie : isa_.depth),
        blocks_(CeilDiv(k, depth_)),
        row_tasks_(CeilDiv(m * CeilDiv(k, blocks_) * static_cast<int64_t>(sizeof(T)), SecondLevelCache() / 2)) {
    const int64_t threads = PoolThreads();
    if (threads == 1) {
      return;
    }
    constexpr int64_t kLeastDepth = 16;  // below that it is the results that cost
    const int64_t worthwhile = m * CeilDiv(n, isa_.lanes) * isa_.lanes * std::max(k, kLeastDepth) / kGemmWorkPerTask;
    // The same number for each thread, and the more columns the better: rows are read, perhaps packed, once for all.
    const int64_t shared = threads * CeilDiv(kTasksPerThread, row_tasks_);
    // Except of many rows and few columns: then each thread takes and packs some of the rows, and waits for no other.
    const bool cuts_rows = m >= kRowsToCut * threads && panels_ <= 2 * shared;
    if (panels_ >= shared && !cuts_rows) {
      col_tasks_ = std::clamp<int64_t>(worthwhile / row_tasks_, 1, shared);
    } else {
      CutRowsToo(std::clamp<int64_t>(worthwhile, 1, threads));
    }
  }

  void Run() const {
    const int64_t tasks = row_tasks_ * col_tasks_;
    const int64_t at_once = std::min<int64_t>(tasks, PoolThreads());
    const int64_t size = CeilDiv(m_, row_tasks_) * RowSize();
    // Rows that several tasks need are packed once for all of them, unless they are large. Otherwise tasks have memory
    // from here as well: of a thread's own, one that takes part for the first time in a later run would need some then.
    Tensor memory;
    T* shared_rows = nullptr;
    T* own_rows = nullptr;
    if (col_tasks_ > 1 && Packs(panels_) && m_ * k_ * static_cast<int64_t>(sizeof(T)) <= kLargeBytes) {
      shared_rows = Scratch<T>(&memory, m_ * blocks_ * RowSize());
      PackAll(shared_rows);
    } else if (1 < at_once && at_once <= FreePieces::kMax && Packs(CeilDiv(panels_, col_tasks_))) {
      own_rows = Scratch<T>(&memory, at_once * size);
    }
    FreePieces pieces;
    ParallelFor(tasks, 1, [&](int64_t first, int64_t end) {
      const int64_t piece = own_rows != nullptr ? pieces.Take() : 0;
      for (int64_t task = first; task < end; ++task) {
        RunTask(Part(m_, row_tasks_, task / col_tasks_), Part(panels_, col_tasks_, task % col_tasks_), shared_rows,
                own_rows != nullptr ? own_rows + piece * size : nullptr);
      }
      if (own_rows != nullptr) {
        pieces.Return(piece);
      }
    });
  }

 private:
  // Whether it pays to pack rows for so many panels.
  bool Packs(int64_t panels) const { return (is_transposed_ || a_.col == 1) && panels >= panels_to_pack_for_; }

  // What a packed row takes in a block of depth, at most.
  int64_t RowSize() const { return CeilDiv(k_, blocks_) + kRowPadding; }

  // Between the rows of a block. Not a multiple of 1 KiB, as rows of 256 elements would be. A task takes more of the
  // shorter ones, which leaves no room for a padding.
  int64_t StrideOf(const Part& depth) const { return depth.size + (2 * depth.size >= depth_ ? kRowPadding : 0); }

  // The tiles of these rows in a block of depth, in their order.
  void Pack(const Part& rows, int64_t tiles, const Part& depth, T* to) const {
    if (is_transposed_) {
      PackTransposed(a_, rows, tiles, depth, to);
    } else {
      PackRows(a_, rows, depth, StrideOf(depth), to);
    }
  }

  // The rows of all tasks, block behind block of each.
  void PackAll(T* to) const {
    for (int64_t task = 0; task < row_tasks_; ++task) {
      const Part rows(m_, row_tasks_, task);
      const int64_t tiles = CeilDiv(rows.size, isa_.max_rows);
      ParallelFor(blocks_ * tiles, RowsPerBlock(isa_.max_rows * RowSize()), [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) {
          const int64_t block = i / tiles;
          const Part depth(k_, blocks_, block);
          Part tile(rows.size, tiles, i % tiles);
          T* at = BlockOf(to, rows, block) + tile.begin * (is_transposed_ ? depth.size : StrideOf(depth));
          tile.begin += rows.begin;
          Pack(tile, 1, depth, at);
        }
      });
    }
  }

  T* BlockOf(T* shared_rows, const Part& rows, int64_t block) const {
    return shared_rows + (blocks_ * rows.begin + block * rows.size) * RowSize();
  }

  // Where there are too few panels for all threads: a task for each, of the shape that takes least time.
  void CutRowsToo(int64_t threads) {
    constexpr int64_t kCopying = 12;  // of a panel, in rows that it is multiplied by
    const int64_t least = row_tasks_;
    int64_t least_time = std::numeric_limits<int64_t>::max();
    for (int64_t cols = 1; cols <= panels_; ++cols) {
      const int64_t tasks = CeilDiv(std::max(threads, least * cols), threads) * threads;
      const int64_t rows = std::clamp(CeilDiv(tasks, cols), least, std::max(least, CeilDiv(m_, isa_.max_rows)));
      const int64_t rows_of_task = CeilDiv(m_, rows);
      const int64_t multiplying = (rows_of_task + kCopying) * CeilDiv(panels_, cols);
      const int64_t packing = Packs(panels_) ? rows_of_task : 0;  // each row takes as long as a panel of it
      const int64_t time = CeilDiv(rows * cols, threads) * (multiplying + packing);
      if (time < least_time) {
        least_time = time;
        row_tasks_ = rows;
        col_tasks_ = cols;
      }
    }
  }

  // `shared_rows`: all rows, packed. `own_rows`: memory for those of the task, if they are to be packed. Or none.
  void RunTask(const Part& rows, const Part& panels, T* shared_rows, T* own_rows) const {
    // Rows of unaligned panels would lie on two cache lines each.
    alignas(64) T packed[kMaxDepth * 64 / sizeof(T) * 2];
    alignas(64) T sums[kSlicedSums];
    const bool pack_rows = shared_rows != nullptr || Packs(panels.size);
    const int64_t tiles = CeilDiv(rows.size, isa_.max_rows);
    const bool read_direct = IsDirect() && tiles <= MaxDirectTiles(*direct_);
    const bool is_sliced = read_direct && tiles <= kMaxSlicedTiles && AreRowsFarApart(*direct_);
    const int64_t together =
        is_sliced ? std::clamp<int64_t>(kSlicedSums / (rows.size * panel_width_), 1, panels.size) : 1;
    T* packed_rows = own_rows;
    if (pack_rows && shared_rows == nullptr && own_rows == nullptr) {
      packed_rows = MemoryForRows<T>(rows.size * RowSize());
    }
    int64_t stride = 0;
    for (Walk at(k_, blocks_, panels, together, is_sliced ? kSliceRows : depth_); !at.IsDone();) {
      if (at.IsFirstPanel()) {
        stride = StrideOf(at.depth());
        if (shared_rows != nullptr) {
          packed_rows = BlockOf(shared_rows, rows, at.block());
        } else if (pack_rows) {
          Pack(rows, tiles, at.depth(), packed_rows);
        }
      }
      const int64_t depth = at.depth().size;
      const Part slice = at.slice();
      const int64_t first = at.depth().begin + slice.begin;
      const int64_t col = at.panel() * panel_width_;
      const int64_t cols = std::min(panel_width_, n_ - col);
      const int64_t width = cols > isa_.lanes ? panel_width_ : isa_.lanes;
      GemmTile<T> tile{.depth = slice.size,
                       .a = nullptr,
                       .a_row = a_.row,
                       .a_col = a_.col,
                       .b = packed,
                       .b_row = width,
                       .alpha = alpha_,
                       .add = accumulate_ || at.block() > 0,
                       .c = nullptr,
                       .c_row = c_row_,
                       .columns = cols,
                       .is_first = at.IsFirstSlice(),
                       .is_last = at.IsLastSlice()};
      if (read_direct && cols == width) {
        tile.b = direct_->data + first * direct_->row + col;
        tile.b_row = direct_->row;
      } else {
        if (cols < width) {
          std::fill_n(packed, slice.size * width, T(0));
        }
        source_(first, slice.size, col, cols, width, packed);
      }
      T* const panel_sums = sums + at.index() * rows.size * panel_width_;
      at.Advance();
      const DirectPanel<T> next = Ahead(at);
      for (int64_t t = 0; t < tiles; ++t) {
        next.Prefetch(tiles, t);
        const Part part(rows.size, tiles, t);
        const int64_t row = rows.begin + part.begin;
        if (pack_rows && is_transposed_) {
          tile.a = packed_rows + part.begin * depth + slice.begin * part.size;
          tile.a_col = part.size;
        } else if (pack_rows) {
          tile.a = packed_rows + part.begin * stride + slice.begin;
          tile.a_row = stride;
        } else {
          tile.a = a_.data + row * a_.row + first * a_.col;
        }
        tile.c = c_ + row * c_row_ + col;
        tile.sums = panel_sums + part.begin * panel_width_;
        (is_wide_ ? isa_.four : cols > isa_.lanes ? isa_.two : isa_.one)[part.size - 1](tile);
      }
    }
  }

  bool IsDirect() const { return direct_ != nullptr && direct_->col == 1; }

  // What to ask for while what comes before it is multiplied: nothing at the end, nor where b does not lie in memory in
  // rows, nor where hardware is faster.
  DirectPanel<T> Ahead(const Walk& at) const {
    if (!IsDirect() || is_wide_ || at.IsDone()) {
      return {};
    }
    const Part& slice = at.slice();
    const int64_t col = at.panel() * panel_width_;
    return {.data = direct_->data + (at.depth().begin + slice.begin) * direct_->row + col,
            .row = direct_->row,
            .rows = slice.size,
            .cols = std::min(panel_width_, n_ - col)};
  }

  const GemmIsa<T>& isa_ = BestIsa<T>();
  const int64_t m_;
  const int64_t n_;
  const int64_t k_;
  const T alpha_;
  const StridedMatrix<T>& a_;
  const StridedMatrix<T>* const direct_;
  const PanelSource<T>& source_;
  const bool accumulate_;
  T* const c_;
  const int64_t c_row_;
  const bool is_wide_;
  const int64_t panel_width_;
  const int64_t panels_;
  const bool is_transposed_;
  const int64_t panels_to_pack_for_;
  const int64_t depth_;  // of a block, at most
  const int64_t blocks_;
  int64_t row_tasks_;
  int64_t col_tasks_ = 1;
};

template <typename T>
void Multiply(int64_t m, int64_t n, int64_t k, T alpha, const StridedMatrix<T>& a, const StridedMatrix<T>* direct,
              const PanelSource<T>& source, bool accumulate, T* c, int64_t c_row) {
  if (m == 0 || n == 0) {
    return;
  }
  if (k == 0) {
    for (int64_t r = 0; r < m && !accumulate; ++r) {
      std::fill_n(c + r * c_row, n, T(0));
    }
    return;
  }
  Product<T>(m, n, k, alpha, a, direct, source, accumulate, c, c_row).Run();
}

// c (+)= alpha · a · b for one row and whole vectors of columns.
template <typename T>
void MultiplyRow(int64_t n, int64_t k, T alpha, const StridedMatrix<T>& a, const StridedMatrix<T>& b, bool accumulate,
                 T* c) {
  const GemmIsa<T>& isa = BestIsa<T>();
  const int64_t blocks = CeilDiv(k, isa.depth);
  constexpr int64_t kWorkPerTask = kGemmWorkPerTask / 8;  // which memory makes slow
  const int64_t pieces = std::max<int64_t>(1, kWorkPerTask / (kRowColumns * k));
  ParallelFor(CeilDiv(n, kRowColumns), pieces, [&](int64_t first, int64_t end) {
    for (int64_t col = first * kRowColumns; col < std::min(n, end * kRowColumns); col += kRowColumns) {
      for (int64_t block = 0; block < blocks; ++block) {
        const Part depth(k, blocks, block);
        isa.row({.depth = depth.size,
                 .a = a.data + depth.begin * a.col,
                 .a_row = 0,
                 .a_col = a.col,
                 .b = b.data + depth.begin * b.row + col,
                 .b_row = b.row,
                 .alpha = alpha,
                 .add = accumulate || block > 0,
                 .c = c + col,
                 .c_row = 0,
                 .columns = std::min(kRowColumns, n - col)});
      }
    }
  });
}

// Goes through the columns panel by panel. One may begin in a line and end in a later one, with what lies between them,
// which is left out in the end.
template <typename T>
void MultiplyLines(int64_t m, int64_t k, const StridedMatrix<T>& a, const ColumnLines<T>& b, T* c, int64_t c_row) {
  const GemmIsa<T>& isa = BestIsa<T>();
  constexpr int64_t kRowsPerSlice = 512;  // rows that lie side by side share cache lines
  const int64_t width = 2 * isa.lanes;
  const int64_t tiles = CeilDiv(m, isa.max_rows);
  const int64_t slices = CeilDiv(k, kRowsPerSlice);
  const int64_t threads = PoolThreads();
  // Each part leaves some of its last panel empty.
  constexpr int64_t kPanelsPerPart = 8;
  const int64_t most = b.count * b.length / (kPanelsPerPart * width);
  const int64_t parts = threads == 1 ? 1 : threads * std::clamp<int64_t>(most / threads, 1, kTasksPerThread);
  const int64_t grain = std::max(CeilDiv(b.count, parts), kGemmWorkPerTask / std::max<int64_t>(1, m * k * b.length));
  ParallelFor(b.count, grain, [&](int64_t first, int64_t end) {
    alignas(64) T sums[kMaxMapsInLines * 128 / sizeof(T)];
    int64_t x = 0;
    for (int64_t line = first; line < end;) {
      const int64_t start = b.start(line) + x;
      const int64_t column = line * b.length + x;
      int64_t columns = 0;
      uint32_t chosen = 0;
      for (int64_t at = 0; line < end && at < width; at = b.start(line) - start) {
        const int64_t n = std::min(width - at, b.length - x);
        chosen |= static_cast<uint32_t>(((uint64_t{1} << n) - 1) << at);
        columns += n;
        x += n;
        if (x < b.length) {
          break;
        }
        x = 0;
        ++line;
      }
      for (int64_t i = 0; i < slices; ++i) {
        const Part slice(k, slices, i);
        for (int64_t t = 0; t < tiles; ++t) {
          const Part rows(m, tiles, t);
          isa.lines[rows.size - 1]({{.depth = slice.size,
                                     .a = a.data + rows.begin * a.row + slice.begin * a.col,
                                     .a_row = a.row,
                                     .a_col = a.col,
                                     .b = b.data + start,
                                     .b_row = 0,
                                     .alpha = T(1),
                                     .add = false,
                                     .c = c + rows.begin * c_row + column,
                                     .c_row = c_row,
                                     .columns = columns,
                                     .sums = sums + rows.begin * width,
                                     .is_first = i == 0,
                                     .is_last = i + 1 == slices},
                                    b.offsets + slice.begin,
                                    chosen});
        }
      }
    }
  });
}

// Products of a transposed matrix with few columns: how many these are at most, how many rows are computed at a time,
// and the least depth.
constexpr int64_t kTransposedColumns = 24;
constexpr int64_t kTransposedRows = 256;
constexpr int64_t kTransposedDepth = 256;

// c (+)= alpha · a · b, where a is transposed and there are few columns: as the transpose of a product of few rows,
// which reads a in long rows, where it lies.
template <typename T>
void MultiplyTransposed(int64_t m, int64_t n, int64_t k, T alpha, const StridedMatrix<T>& a, const StridedMatrix<T>& b,
                        bool accumulate, T* c, int64_t c_row) {
  const StridedMatrix<T> rows{b.data, b.col, b.row};
  ParallelFor(CeilDiv(m, kTransposedRows), ProductsPerTask(kTransposedRows * n * k), [&](int64_t first, int64_t end) {
    alignas(64) T product[kTransposedColumns * kTransposedRows];
    for (int64_t begin = first * kTransposedRows; begin < std::min(m, end * kTransposedRows);
         begin += kTransposedRows) {
      const int64_t cols = std::min(kTransposedRows, m - begin);
      Gemm<T>(n, cols, k, alpha, rows, {a.data + begin, a.col, 1}, false, product, kTransposedRows);
      for (int64_t r = 0; r < cols; ++r) {
        T* to = c + (begin + r) * c_row;
        for (int64_t i = 0; i < n; ++i) {
          to[i] = product[i * kTransposedRows + r] + (accumulate ? to[i] : T(0));
        }
      }
    }
  });
}

}  // namespace

template <typename T>
void Gemm(int64_t m, int64_t n, int64_t k, T alpha, const StridedMatrix<T>& a, const StridedMatrix<T>& b,
          bool accumulate, T* c, int64_t c_row) {
  const GemmIsa<T>& isa = BestIsa<T>();
  if (a.row == 1 && a.col != 1 && n <= kTransposedColumns && k >= kTransposedDepth && m > 2 * n) {
    MultiplyTransposed(m, n, k, alpha, a, b, accumulate, c, c_row);
    return;
  }
  if (const int64_t whole = n - n % isa.lanes; m == 1 && b.col == 1 && k > 0 && whole > 0) {
    MultiplyRow(whole, k, alpha, a, b, accumulate, c);
    Gemm<T>(1, n - whole, k, alpha, a, {b.data + whole, b.row, 1}, accumulate, c + whole, c_row);
    return;
  }
  if (const int64_t whole = n - n % (4 * isa.lanes); m <= isa.max_rows / 2 && b.col == 1 && 0 < whole && whole < n) {
    Gemm<T>(m, whole, k, alpha, a, b, accumulate, c, c_row);
    Gemm<T>(m, n - whole, k, alpha, a, {b.data + whole, b.row, 1}, accumulate, c + whole, c_row);
    return;
  }
  const auto panel = [&b](int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t width, T* to) {
    const T* from = b.data + row * b.row + col * b.col;
    if (b.col != 1) {
      TransposePanel(from, b.col, rows, cols, width, to);
      return;
    }
    CopyPanel(from, b.row, rows, cols, width, to);
  };
  Multiply<T>(m, n, k, alpha, a, &b, panel, accumulate, c, c_row);
}

template <typename T>
void GemmWithPanels(int64_t m, int64_t n, int64_t k, const StridedMatrix<T>& a, const PanelSource<T>& b,
                    bool accumulate, T* c, int64_t c_row) {
  Multiply<T>(m, n, k, T(1), a, nullptr, b, accumulate, c, c_row);
}

template <typename T>
void GemmOfLines(int64_t m, int64_t k, const StridedMatrix<T>& a, const ColumnLines<T>& b, T* c, int64_t c_row) {
  MultiplyLines(m, k, a, b, c, c_row);
}

template <typename T>
void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, const T* b,
          bool accumulate, T* c) {
  Gemm<T>(m, n, k, alpha, {a, transpose_a ? 1 : k, transpose_a ? m : 1}, {b, transpose_b ? 1 : n, transpose_b ? k : 1},
          accumulate, c, n);
}

#define HEADRACE_INSTANTIATE(T)                                                                                        \
  template void Gemm<T>(bool, bool, int64_t, int64_t, int64_t, T, const T*, const T*, bool, T*);                       \
  template void Gemm<T>(int64_t, int64_t, int64_t, T, const StridedMatrix<T>&, const StridedMatrix<T>&, bool, T*,      \
                        int64_t);                                                                                      \
  template void GemmWithPanels<T>(int64_t, int64_t, int64_t, const StridedMatrix<T>&, const PanelSource<T>&, bool, T*, \
                                  int64_t);                                                                            \
  template void GemmOfLines<T>(int64_t, int64_t, const StridedMatrix<T>&, const ColumnLines<T>&, T*, int64_t)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
