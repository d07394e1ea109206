// The inner loop of a matrix product, for one instruction set. gemm.cc includes this file once for each, inside a
// namespace that has
//
//   FloatVector, DoubleVector   types of the vector extension
//   kMaxRows                    the height of a tile that its registers can hold, with kTileVectors vectors per row
//   kDepth                      how deep a block is at most
//   MultiplyAdd(a, b, &sum)     sum += a · b, rounded once if the instruction set can
//   LoadPart(from, n, &v)       the first n elements of a vector, 0 to all; the others become 0
//   StorePart(v, n, to)
//   StoreChosen(v, chosen, to)  the elements whose bits are set, one behind the other
//
// No include guard, therefore, and no includes.

template <typename T>
struct VectorOf {
  using Type = FloatVector;
};
template <>
struct VectorOf<double> {
  using Type = DoubleVector;
};

// c[kRows, tile.columns] (+)= alpha · sums.
template <typename T, int kVectors, typename Tile, size_t kRows>
__attribute__((always_inline)) inline void StoreTile(const Tile& tile,
                                                     const typename VectorOf<T>::Type (&sums)[kRows][kVectors]) {
  using Vector = typename VectorOf<T>::Type;
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(T);
  const Vector alpha = tile.alpha - Vector{};
  T* c = tile.c;
  const int64_t c_row = tile.c_row;
  const auto store_whole = [&](bool add) __attribute__((always_inline)) {
    for (size_t r = 0; r < kRows; ++r, c += c_row) {
      for (int v = 0; v < kVectors; ++v) {
        Vector value = alpha * sums[r][v];
        if (add) {
          __builtin_memcpy(&value, c + v * kLanes, sizeof(value));
          MultiplyAdd(alpha, sums[r][v], &value);
        }
        __builtin_memcpy(c + v * kLanes, &value, sizeof(value));
      }
    }
  };
  if (tile.columns == kVectors * kLanes) {
    tile.add ? store_whole(true) : store_whole(false);
    return;
  }
  if constexpr (std::is_same_v<Tile, LineTile<T>>) {
    for (size_t r = 0; r < kRows; ++r, c += c_row) {
      T* to = c;
      for (int v = 0; v < kVectors; ++v) {
        const uint32_t chosen = tile.chosen >> (v * kLanes) & ((uint64_t{1} << kLanes) - 1);
        StoreChosen(alpha * sums[r][v], chosen, to);
        to += std::popcount(chosen);
      }
    }
    return;
  }
  for (size_t r = 0; r < kRows; ++r, c += c_row) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t n = std::clamp<int64_t>(tile.columns - v * kLanes, 0, kLanes);
      Vector value = alpha * sums[r][v];
      if (tile.add) {
        LoadPart(c + v * kLanes, n, &value);
        MultiplyAdd(alpha, sums[r][v], &value);
      }
      StorePart(value, n, c + v * kLanes);
    }
  }
}

// c[kRows, kVectors · lanes] (+)= alpha · a · b. All loops over rows and vectors are unrolled by way of index
// sequences, so that each sum is a variable of its own, in a register.
template <typename T, int kVectors, typename Tile, size_t... kRow>
void RunTile(const Tile& tile, std::index_sequence<kRow...>) {
  constexpr bool kInLines = std::is_same_v<Tile, LineTile<T>>;
  using Vector = typename VectorOf<T>::Type;
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(T);
  constexpr size_t kRows = sizeof...(kRow);
  Vector sums[kRows][kVectors] = {};
  const auto for_each_sum = [](auto&& function) __attribute__((always_inline)) {
    [&]<size_t... kSum>(std::index_sequence<kSum...>) __attribute__((always_inline)) {
      (function(kSum / kVectors, kSum % kVectors), ...);
    }(std::make_index_sequence<kRows * kVectors>());
  };
  if (!tile.is_first) {
    for_each_sum([&](size_t r, size_t v) __attribute__((always_inline)) {
      __builtin_memcpy(&sums[r][v], tile.sums + (r * kVectors + v) * kLanes, sizeof(Vector));
    });
  }
  // Every third row has a pointer; the addressing modes reach the two below it.
  const T* a[(kRows + 2) / 3] = {};
  ((kRow % 3 == 0 ? void(a[kRow / 3] = tile.a + static_cast<int64_t>(kRow) * tile.a_row) : void()), ...);
  // Rows of c lie far apart, where no hardware looks ahead.
  (__builtin_prefetch(tile.c + static_cast<int64_t>(kRow) * tile.c_row, 1), ...);
  const T* b = tile.b;
  const int64_t a_row = tile.a_row;
  for (int64_t l = 0; l < tile.depth; ++l) {
    Vector columns[kVectors];
    const auto row = [&]<size_t kIndex>(std::integral_constant<size_t, kIndex>) __attribute__((always_inline)) {
      const Vector value = a[kIndex / 3][static_cast<int64_t>(kIndex % 3) * a_row] - Vector{};
      [&]<size_t... kVector>(std::index_sequence<kVector...>) __attribute__((always_inline)) {
        (MultiplyAdd(value, columns[kVector], &sums[kIndex][kVector]), ...);
      }(std::make_index_sequence<kVectors>());
    };
    [&]<size_t... kVector>(std::index_sequence<kVector...>) __attribute__((always_inline)) {
      const T* from = b;
      if constexpr (kInLines) {
        from += tile.offsets[l];
      }
      (__builtin_memcpy(&columns[kVector], from + kVector * kLanes, sizeof(Vector)), ...);
    }(std::make_index_sequence<kVectors>());
    (row(std::integral_constant<size_t, kRow>()), ...);
    ((kRow % 3 == 0 ? void(a[kRow / 3] += tile.a_col) : void()), ...);
    if constexpr (!kInLines) {
      b += tile.b_row;
    }
  }
  // As rows of an array, in which they can be stored in a loop. If they are many, they have to lie in memory by then:
  // GCC 12 would not find registers for all of them in this loop as well as in that one, and keep some in memory here.
  Vector finished[kRows][kVectors];
  for_each_sum([&](size_t r, size_t v) __attribute__((always_inline)) { finished[r][v] = sums[r][v]; });
  if constexpr (kRows * kVectors > 16) {
    __asm__ volatile("" : "+m"(finished));
  }
  if (!tile.is_last) {
    __builtin_memcpy(tile.sums, finished, sizeof(finished));
    return;
  }
  StoreTile<T, kVectors>(tile, finished);
}

// c[1, tile.columns] (+)= alpha · a · b, for whole vectors of columns, at most kRowColumns. Some rows of b at a time
// are read from end to end: it is memory that limits such a product.
template <typename T>
void RunRow(const GemmTile<T>& tile) {
  using Vector = typename VectorOf<T>::Type;
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(T);
  alignas(64) T sums[kRowColumns];
  std::fill_n(sums, tile.columns, T(0));
  const auto add_rows = [&]<size_t... kRow>(int64_t first,
                                            std::index_sequence<kRow...>) __attribute__((always_inline)) {
    const Vector a[] = {tile.a[(first + static_cast<int64_t>(kRow)) * tile.a_col] - Vector{}...};
    const T* b = tile.b + first * tile.b_row;
    for (int64_t column = 0; column < tile.columns; column += kLanes) {
      Vector sum;
      __builtin_memcpy(&sum, sums + column, sizeof(sum));
      const auto add = [&](size_t row) __attribute__((always_inline)) {
        Vector value;
        __builtin_memcpy(&value, b + static_cast<int64_t>(row) * tile.b_row + column, sizeof(value));
        MultiplyAdd(a[row], value, &sum);
      };
      (add(kRow), ...);
      __builtin_memcpy(sums + column, &sum, sizeof(sum));
    }
  };
  constexpr int64_t kTogether = 8;
  int64_t row = 0;
  for (; row + kTogether <= tile.depth; row += kTogether) {
    add_rows(row, std::make_index_sequence<kTogether>());
  }
  for (; row < tile.depth; ++row) {
    add_rows(row, std::make_index_sequence<1>());
  }
  for (int64_t column = 0; column < tile.columns; column += kLanes) {
    Vector sum[1][1];
    __builtin_memcpy(&sum, sums + column, sizeof(sum));
    GemmTile<T> part = tile;
    part.c += column;
    part.columns = kLanes;
    StoreTile<T, 1>(part, sum);
  }
}

template <typename T, int kVectors, typename Tile, size_t... kRows>
constexpr auto TilesOf(std::index_sequence<kRows...>) {
  return std::array<void (*)(const Tile&), sizeof...(kRows)>{
      +[](const Tile& tile) { RunTile<T, kVectors>(tile, std::make_index_sequence<kRows + 1>()); }...};
}

template <typename T>
GemmIsa<T> Isa() {
  static constexpr auto kOne = TilesOf<T, 1, GemmTile<T>>(std::make_index_sequence<kMaxRows>());
  static constexpr auto kTwo = TilesOf<T, 2, GemmTile<T>>(std::make_index_sequence<kMaxRows>());
  static constexpr auto kFour = TilesOf<T, 4, GemmTile<T>>(std::make_index_sequence<kMaxRows / 2>());
  static constexpr auto kLines = TilesOf<T, 2, LineTile<T>>(std::make_index_sequence<kMaxRows>());
  return {sizeof(FloatVector) / sizeof(T),
          kMaxRows,
          kDepth,
          kOne.data(),
          kTwo.data(),
          kFour.data(),
          kLines.data(),
          RunRow<T>};
}
