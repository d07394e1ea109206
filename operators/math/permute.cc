#include "operators/math/permute.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "framework/thread_pool.h"
#include "operators/common/kernel_util.h"

namespace headrace::ops {
namespace {

// Elements of kSize bytes: `to` is written in order, `from` read along the strides. Rows of `to` that lie side by side
// in `from` are written together, while what they read is in a cache.
template <size_t kSize>
void CopyStrided(const DDim& extents, const DDim& strides, const std::byte* from, std::byte* to) {
  constexpr int64_t kTogether = 8;
  constexpr auto kBytes = static_cast<int64_t>(kSize);
  const int64_t n = extents.back();
  const int64_t stride = strides.back() * kBytes;
  const size_t outer = extents.size() - 1;
  const bool are_together = outer > 0 && strides[outer - 1] == 1;
  const int64_t rows = Numel(extents, 0, outer);
  ParallelFor(rows, std::max(RowsPerBlock(n), are_together ? kTogether : 1), [&, from, to](int64_t begin, int64_t end) {
    DDim index(outer);
    const std::byte* row = from;
    int64_t rest = begin;
    for (size_t d = outer; d-- > 0; rest /= extents[d]) {
      index[d] = rest % extents[d];
      row += index[d] * strides[d] * kBytes;
    }
    std::byte* at = to + begin * n * kBytes;
    for (int64_t r = begin, count = 1; r < end; r += count, at += count * n * kBytes) {
      if (stride == kBytes) {
        std::memcpy(at, row, static_cast<size_t>(n) * kSize);
      } else if (are_together && end - r >= kTogether && extents[outer - 1] - index[outer - 1] >= kTogether) {
        count = kTogether;
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t k = 0; k < kTogether; ++k) {
            std::memcpy(at + (k * n + i) * kBytes, row + i * stride + k * kBytes, kSize);
          }
        }
      } else {
        count = 1;
        for (int64_t i = 0; i < n; ++i) {
          std::memcpy(at + i * kBytes, row + i * stride, kSize);
        }
      }
      int64_t step = count;
      for (size_t d = outer; d > 0; --d, step = 1) {
        row += step * strides[d - 1] * kBytes;
        index[d - 1] += step;
        if (index[d - 1] < extents[d - 1]) {
          break;
        }
        row -= strides[d - 1] * extents[d - 1] * kBytes;
        index[d - 1] = 0;
      }
    }
  });
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
  const auto* source = static_cast<const std::byte*>(from);
  auto* bytes = static_cast<std::byte*>(to);
  switch (size) {
    case 1:
      return CopyStrided<1>(extents, strides, source, bytes);
    case 2:
      return CopyStrided<2>(extents, strides, source, bytes);
    case 4:
      return CopyStrided<4>(extents, strides, source, bytes);
    default:
      return CopyStrided<8>(extents, strides, source, bytes);
  }
}

}  // namespace headrace::ops
