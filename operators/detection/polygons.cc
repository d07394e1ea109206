#include "operators/detection/polygons.h"

#include <array>
#include <cmath>
#include <cstddef>

namespace headrace::ops {
namespace {

struct PlanePoint {
  double x;
  double y;
};

// Twice the area of a triangle, negative if its corners go clockwise.
double Turn(const PlanePoint& a, const PlanePoint& b, const PlanePoint& c) {
  return (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
}

using Triangle = std::array<PlanePoint, 3>;

// What half-planes leave of a triangle: each of three cuts off a part, and adds one corner at most.
struct ConvexPart {
  std::array<PlanePoint, 6> corners;
  size_t size;

  // Keeps what lies to the left of the line from `from` to `to`.
  void Cut(const PlanePoint& from, const PlanePoint& to) {
    const ConvexPart whole = *this;
    size = 0;
    for (size_t i = 0; i < whole.size; ++i) {
      const PlanePoint& p = whole.corners[i];
      const PlanePoint& q = whole.corners[(i + 1) % whole.size];
      const double p_side = Turn(from, to, p);
      const double q_side = Turn(from, to, q);
      if (p_side >= 0 && size < corners.size()) {
        corners[size++] = p;
      }
      if (((p_side > 0 && q_side < 0) || (p_side < 0 && q_side > 0)) && size < corners.size()) {
        const double t = p_side / (p_side - q_side);
        corners[size++] = {p.x + t * (q.x - p.x), p.y + t * (q.y - p.y)};
      }
    }
  }

  double Area() const {
    double twice = 0;
    for (size_t i = 2; i < size; ++i) {
      twice += Turn(corners[0], corners[i - 1], corners[i]);
    }
    return twice / 2;
  }
};

// Both counter-clockwise.
double SharedArea(const Triangle& a, const Triangle& b) {
  ConvexPart part{{a[0], a[1], a[2]}, 3};
  for (size_t i = 0; i < 3; ++i) {
    part.Cut(b[i], b[(i + 1) % 3]);
  }
  return part.Area();
}

// A polygon is a sum of triangles with its first corner in common, those that go clockwise taken away.
template <typename T, typename Visit>
void ForEachTriangle(const T* polygon, int64_t corners, const Visit& visit) {
  const auto corner = [polygon](int64_t i) {
    return PlanePoint{static_cast<double>(polygon[2 * i]), static_cast<double>(polygon[2 * i + 1])};
  };
  for (int64_t i = 2; i < corners; ++i) {
    const Triangle triangle = {corner(0), corner(i - 1), corner(i)};
    const double turn = Turn(triangle[0], triangle[1], triangle[2]);
    if (turn > 0) {
      visit(triangle, 1.0, turn / 2);
    } else if (turn < 0) {
      visit(Triangle{triangle[0], triangle[2], triangle[1]}, -1.0, -turn / 2);
    }
  }
}

}  // namespace

template <typename T>
double PolygonArea(const T* polygon, int64_t corners) {
  double area = 0;
  ForEachTriangle(polygon, corners, [&](const Triangle&, double sign, double part) { area += sign * part; });
  return std::abs(area);
}

template <typename T>
T PolygonOverlap(const T* a, const T* b, int64_t corners) {
  double shared = 0;
  ForEachTriangle(a, corners, [&](const Triangle& one, double sign, double) {
    ForEachTriangle(b, corners, [&](const Triangle& other, double other_sign, double) {
      shared += sign * other_sign * SharedArea(one, other);
    });
  });
  shared = std::abs(shared);
  const double united = PolygonArea(a, corners) + PolygonArea(b, corners) - shared;
  return shared > 0 && united > 0 ? static_cast<T>(shared / united) : T(0);
}

template double PolygonArea(const float*, int64_t);
template double PolygonArea(const double*, int64_t);
template float PolygonOverlap(const float*, const float*, int64_t);
template double PolygonOverlap(const double*, const double*, int64_t);

}  // namespace headrace::ops
