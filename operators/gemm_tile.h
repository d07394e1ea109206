// The inner loop of a matrix product, for one instruction set. gemm.cc includes this file once for each, inside a
// namespace that has
//
//   FloatVector, DoubleVector   types of the vector extension
//   kMaxRows                    the height of a tile that its registers can hold, with kTileVectors vectors per row
//   MultiplyAdd(a, b, &sum)     sum += a · b, rounded once if the instruction set can
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

// c[kRows, kVectors · lanes] (+)= alpha · a · b. All loops over rows and vectors are unrolled by way of index
// sequences, so that each sum is a variable of its own, in a register.
template <typename T, int kVectors, size_t... kRow>
void RunTile(const GemmTile<T>& tile, std::index_sequence<kRow...>) {
  using Vector = typename VectorOf<T>::Type;
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(T);
  constexpr size_t kRows = sizeof...(kRow);
  Vector sums[kRows][kVectors] = {};
  // Every third row has a pointer; the addressing modes reach the two below it.
  const T* a[(kRows + 2) / 3] = {};
  ((kRow % 3 == 0 ? void(a[kRow / 3] = tile.a + static_cast<int64_t>(kRow) * tile.a_row) : void()), ...);
  const T* b = tile.b;
  const int64_t a_row = tile.a_row;
  for (int64_t l = 0; l < tile.depth; ++l) {
    Vector b0;
    __builtin_memcpy(&b0, b, sizeof(b0));
    [[maybe_unused]] Vector b1 = b0;
    if constexpr (kVectors == 2) {
      __builtin_memcpy(&b1, b + kLanes, sizeof(b1));
    }
    const auto row = [&]<size_t kIndex>(std::integral_constant<size_t, kIndex>) __attribute__((always_inline)) {
      const Vector value = a[kIndex / 3][static_cast<int64_t>(kIndex % 3) * a_row] - Vector{};
      MultiplyAdd(value, b0, &sums[kIndex][0]);
      if constexpr (kVectors == 2) {
        MultiplyAdd(value, b1, &sums[kIndex][1]);
      }
    };
    (row(std::integral_constant<size_t, kRow>()), ...);
    ((kRow % 3 == 0 ? void(a[kRow / 3] += tile.a_col) : void()), ...);
    b += tile.b_row;
  }
  const Vector alpha = tile.alpha - Vector{};
  const auto result = [&](const Vector& sum, const T* before) __attribute__((always_inline)) {
    Vector value = alpha * sum;
    if (tile.add) {
      __builtin_memcpy(&value, before, sizeof(value));
      MultiplyAdd(alpha, sum, &value);
    }
    return value;
  };
  const auto store = [&](const Vector& sum, int v, T* c) __attribute__((always_inline)) {
    const Vector value = result(sum, c + v * kLanes);
    __builtin_memcpy(c + v * kLanes, &value, sizeof(value));
  };
  const auto store_part = [&](const Vector& sum, int v, T* c) __attribute__((always_inline)) {
    T part[kLanes] = {};
    const int64_t n = std::min(kLanes, tile.columns - v * kLanes);
    for (int64_t i = 0; i < n && tile.add; ++i) {
      part[i] = c[v * kLanes + i];
    }
    const Vector value = result(sum, part);
    __builtin_memcpy(part, &value, sizeof(value));
    for (int64_t i = 0; i < n; ++i) {
      c[v * kLanes + i] = part[i];
    }
  };
  // Constants say which sum is meant: an index would put all of them into memory.
  const auto for_each = [&](const auto& put) __attribute__((always_inline)) {
    ((put(sums[kRow][0], 0, tile.c + static_cast<int64_t>(kRow) * tile.c_row),
      kVectors == 2 ? put(sums[kRow][kVectors - 1], 1, tile.c + static_cast<int64_t>(kRow) * tile.c_row) : void()),
     ...);
  };
  if (tile.columns == kVectors * kLanes) {
    for_each(store);
  } else {
    for_each(store_part);
  }
}

template <typename T, int kVectors, size_t... kRows>
constexpr auto TilesOf(std::index_sequence<kRows...>) {
  return std::array<void (*)(const GemmTile<T>&), sizeof...(kRows)>{
      +[](const GemmTile<T>& tile) { RunTile<T, kVectors>(tile, std::make_index_sequence<kRows + 1>()); }...};
}

template <typename T>
GemmIsa<T> Isa() {
  static constexpr auto kOne = TilesOf<T, 1>(std::make_index_sequence<kMaxRows>());
  static constexpr auto kTwo = TilesOf<T, 2>(std::make_index_sequence<kMaxRows>());
  return {sizeof(FloatVector) / sizeof(T), kMaxRows, kOne.data(), kTwo.data()};
}
