#include "operators/math/permute.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "framework/thread_pool.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"
#include "operators/math/transpose.h"

namespace headrace::ops {
namespace {

// `to` is written in order, `from` read along the strides. Rows of `to` that lie side by side in `from` are a matrix
// that is transposed.
template <typename T>
void CopyStrided(const DDim& extents, const DDim& strides, const T* from, T* to) {
  constexpr int64_t kMinTogether = 16;  // so that threads do not share cache lines of `from`
  const int64_t n = extents.back();
  const int64_t stride = strides.back();
  const size_t outer = extents.size() - 1;
  const bool are_together = outer > 0 && strides[outer - 1] == 1;
  const int64_t rows = Numel(extents, 0, outer);
  ParallelFor(rows, std::max(RowsPerBlock(n), are_together ? kMinTogether : 1),
              [&, from, to](int64_t begin, int64_t end) {
                DDim index(outer);
                const T* row = from;
                int64_t rest = begin;
                for (size_t d = outer; d-- > 0; rest /= extents[d]) {
                  index[d] = rest % extents[d];
                  row += index[d] * strides[d];
                }
                T* at = to + begin * n;
                for (int64_t r = begin, count = 1; r < end; r += count, at += count * n) {
                  count = 1;
                  if (stride == 1) {
                    std::memcpy(at, row, static_cast<size_t>(n) * sizeof(T));
                  } else if (are_together) {
                    count = std::min(end - r, extents[outer - 1] - index[outer - 1]);
                    TransposePanel(row, stride, count, n, n, at);
                  } else {
                    for (int64_t i = 0; i < n; ++i) {
                      std::memcpy(at + i, row + i * stride, sizeof(T));
                    }
                  }
                  int64_t step = count;
                  for (size_t d = outer; d > 0; --d, step = 1) {
                    row += step * strides[d - 1];
                    index[d - 1] += step;
                    if (index[d - 1] < extents[d - 1]) {
                      break;
                    }
                    row -= strides[d - 1] * extents[d - 1];
                    index[d - 1] = 0;
                  }
                }
              });
}

// As elements of so many bytes, whatever they stand for.
template <typename T>
void CopyStrided(const DDim& extents, const DDim& strides, const void* from, void* to) {
  CopyStrided(extents, strides, static_cast<const T*>(from), static_cast<T*>(to));
}

}  // namespace

void Permute(const DDim& dims, const PoolVector<size_t>& permutation, size_t size, const void* from, void* to) {
  if (Numel(dims) == 0) {
    return;
  }
  DDim from_strides(dims.size());
  int64_t stride = 1;
  for (size_t d = from_strides.size(); d-- > 0;) {
    from_strides[d] = stride;
    stride *= dims[d];
  }
  // Dimensions that stay neighbours are one.
  DDim extents;
  DDim strides;
  for (const size_t d : permutation) {
    if (!extents.empty() && strides.back() == from_strides[d] * dims[d]) {
      extents.back() *= dims[d];
      strides.back() = from_strides[d];
    } else {
      extents.push_back(dims[d]);
      strides.push_back(from_strides[d]);
    }
  }
  if (extents.empty()) {
    extents.push_back(1);
    strides.push_back(1);
  }
  switch (size) {
    case 1:
      return CopyStrided<uint8_t>(extents, strides, from, to);
    case 2:
      return CopyStrided<uint16_t>(extents, strides, from, to);
    case 4:
      return CopyStrided<uint32_t>(extents, strides, from, to);
    default:
      return CopyStrided<uint64_t>(extents, strides, from, to);
  }
}

}  // namespace headrace::ops
