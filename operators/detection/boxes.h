// Boxes: areas, overlaps, codes, and which of many to keep.
//
// A box is four numbers: xmin, ymin, xmax, ymax. They are either points of a plane ("normalized": from 0 to 1 in an
// image), or pixels, of which the last one counts: a box from 3 to 5 is 3 wide. `pixel` is what to add to the extents
// for that, 0 or 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "framework/memory_pool.h"

namespace headrace::ops {

inline constexpr int64_t kBoxSize = 4;

template <typename T>
T PixelOf(bool normalized) {
  return normalized ? T(0) : T(1);
}

// 0 if a box ends before it begins.
template <typename T>
T BoxArea(const T* box, T pixel) {
  if (box[2] < box[0] || box[3] < box[1]) {
    return 0;
  }
  return (box[2] - box[0] + pixel) * (box[3] - box[1] + pixel);
}

// The area that two boxes share over the one that they cover together, 0 if they share none.
template <typename T>
T BoxOverlap(const T* a, const T* b, T pixel) {
  const T width = std::min(a[2], b[2]) - std::max(a[0], b[0]) + pixel;
  const T height = std::min(a[3], b[3]) - std::max(a[1], b[1]) + pixel;
  if (width <= 0 || height <= 0) {
    return 0;
  }
  const T shared = width * height;
  if (shared == 0) {
    return 0;  // an area too small for T
  }
  return shared / (BoxArea(a, pixel) + BoxArea(b, pixel) - shared);
}

// The measure of non-maximum suppression in Fluid: 0 of boxes with space between them, even if less than a pixel; 1 of
// boxes without an area that touch.
template <typename T>
T TouchingOverlap(const T* a, const T* b, T pixel) {
  if (b[0] > a[2] || b[2] < a[0] || b[1] > a[3] || b[3] < a[1]) {
    return 0;
  }
  return pixel == 0 && BoxArea(a, pixel) + BoxArea(b, pixel) == 0 ? T(1) : BoxOverlap(a, b, pixel);
}

// A box by its centre and extents.
template <typename T>
struct CenteredBox {
  CenteredBox(const T* box, T pixel)
      : width(box[2] - box[0] + pixel),
        height(box[3] - box[1] + pixel),
        x(box[0] + width / 2),
        y(box[1] + height / 2) {}
  T width;
  T height;
  T x;
  T y;
};

// Where `box` lies as seen from `prior`: the offset of the centre in extents of the prior, and the logarithms of the
// ratios of the extents (R. Girshick et al., Rich feature hierarchies, 2014); over the variances.
template <typename T>
void EncodeBox(const CenteredBox<T>& box, const CenteredBox<T>& prior, const T* variances, T* code) {
  code[0] = (box.x - prior.x) / prior.width / variances[0];
  code[1] = (box.y - prior.y) / prior.height / variances[1];
  code[2] = std::log(std::abs(box.width / prior.width)) / variances[2];
  code[3] = std::log(std::abs(box.height / prior.height)) / variances[3];
}

// The box that has this code. Logarithms of ratios count as `max_log` at most.
template <typename T>
void DecodeBox(const T* code, const CenteredBox<T>& prior, const T* variances, T pixel, T max_log, T* box) {
  const T x = variances[0] * code[0] * prior.width + prior.x;
  const T y = variances[1] * code[1] * prior.height + prior.y;
  const T width = std::exp(std::min(variances[2] * code[2], max_log)) * prior.width;
  const T height = std::exp(std::min(variances[3] * code[3], max_log)) * prior.height;
  box[0] = x - width / 2;
  box[1] = y - height / 2;
  box[2] = x + width / 2 - pixel;
  box[3] = y + height / 2 - pixel;
}

// Moves the corners of a box into [0, right] × [0, bottom]. In place, too.
template <typename T>
void ClipBox(const T* box, T right, T bottom, T* clipped) {
  for (int64_t i = 0; i < kBoxSize; ++i) {
    clipped[i] = std::max(std::min(box[i], i % 2 == 0 ? right : bottom), T(0));
  }
}

// The last column and row of an image that had `info`: height, width, and by how much it was scaled since.
template <typename T>
T LastColumn(const T* info) {
  return std::round(info[1] / info[2]) - 1;
}
template <typename T>
T LastRow(const T* info) {
  return std::round(info[0] / info[2]) - 1;
}

// The places among `count` scores, `stride` apart, of those above `threshold`, the greatest first, of equal ones the
// first; `most` at most, all if that is negative.
template <typename T>
PoolVector<int64_t> BestScores(const T* scores, int64_t count, int64_t stride, T threshold, int64_t most) {
  PoolVector<int64_t> best;
  for (int64_t i = 0; i < count; ++i) {
    if (scores[i * stride] > threshold) {
      best.push_back(i);
    }
  }
  const auto before = [scores, stride](int64_t a, int64_t b) {
    return scores[a * stride] > scores[b * stride] || (scores[a * stride] == scores[b * stride] && a < b);
  };
  const auto size = static_cast<int64_t>(best.size());
  const int64_t kept = most < 0 ? size : std::min(most, size);
  std::partial_sort(best.begin(), best.begin() + kept, best.end(), before);
  best.resize(static_cast<size_t>(kept));
  return best;
}

// Non-maximum suppression: of `candidates`, the best first, those that overlap none that was kept before by more than
// `threshold`, `most` at most, all if that is negative. Each one that is kept multiplies the threshold by `eta`, if
// that is below 1, as long as it is above 1/2. `overlap`: of two candidates.
template <typename T, typename Overlap>
PoolVector<int64_t> SuppressOverlaps(const PoolVector<int64_t>& candidates, T threshold, T eta, int64_t most,
                                     const Overlap& overlap) {
  PoolVector<int64_t> kept;
  for (const int64_t candidate : candidates) {
    if (most >= 0 && static_cast<int64_t>(kept.size()) >= most) {
      break;
    }
    const bool apart =
        std::all_of(kept.begin(), kept.end(), [&](int64_t other) { return overlap(candidate, other) <= threshold; });
    if (apart) {
      kept.push_back(candidate);
      threshold *= eta < 1 && threshold > T(0.5) ? eta : T(1);
    }
  }
  return kept;
}

}  // namespace headrace::ops
