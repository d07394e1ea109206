// Areas of polygons, and of what two of them share.
#pragma once

#include <cstdint>

namespace headrace::ops {

// How many corners a polygon may have.
inline constexpr int64_t kMaxCorners = 16;

// `polygon`: x and y of each corner. Its edges must not cross each other.
template <typename T>
double PolygonArea(const T* polygon, int64_t corners);

// The area that two polygons share over the one that they cover together, 0 if they share none.
template <typename T>
T PolygonOverlap(const T* a, const T* b, int64_t corners);

}  // namespace headrace::ops
