// What the elementwise operators compute: for each operation the value and, if it has them, the derivatives by x and by
// y times the gradient `d` of the result. NaN comes through. Integers wrap around; T is float, double, int32_t or
// int64_t.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "framework/errors.h"
#include "operators/math/element_loop.h"

namespace headrace::ops::elementwise {

template <typename T, typename Operation>
T Wrapped(T x, T y, Operation operation) {
  return static_cast<T>(operation(static_cast<Wrapping<T>>(x), static_cast<Wrapping<T>>(y)));
}

struct Add {
  template <typename T>
  static T Value(T x, T y) {
    return Wrapped(x, y, [](auto a, auto b) { return a + b; });
  }
  template <typename T>
  static T ByX(T, T, T d) {
    return d;
  }
  template <typename T>
  static T ByY(T, T, T d) {
    return d;
  }
};
struct Sub {
  template <typename T>
  static T Value(T x, T y) {
    return Wrapped(x, y, [](auto a, auto b) { return a - b; });
  }
  template <typename T>
  static T ByX(T, T, T d) {
    return d;
  }
  template <typename T>
  static T ByY(T, T, T d) {
    return -d;
  }
};
struct Mul {
  template <typename T>
  static T Value(T x, T y) {
    return Wrapped(x, y, [](auto a, auto b) { return a * b; });
  }
  template <typename T>
  static T ByX(T, T y, T d) {
    return d * y;
  }
  template <typename T>
  static T ByY(T x, T, T d) {
    return d * x;
  }
};
struct Div {
  template <typename T>
  static T Value(T x, T y) {
    if constexpr (std::is_integral_v<T>) {
      HR_ENFORCE(y != 0, InvalidArgument, "input Y: division of ", x, " by zero");
      if (y == T(-1)) {
        return Sub::Value(T(0), x);  // the smallest integer has no positive counterpart
      }
    }
    return x / y;
  }
  template <typename T>
  static T ByX(T, T y, T d) {
    return d / y;
  }
  template <typename T>
  static T ByY(T x, T y, T d) {
    return -d * (x / y) / y;
  }
};
struct Max {
  template <typename T>
  static T Value(T x, T y) {
    return x > y || IsNaN(x) ? x : y;
  }
  template <typename T>
  static T ByX(T x, T y, T d) {
    return x > y ? d : T(0);
  }
  template <typename T>
  static T ByY(T x, T y, T d) {
    return x > y ? T(0) : d;
  }
};
struct Min {
  template <typename T>
  static T Value(T x, T y) {
    return x < y || IsNaN(x) ? x : y;
  }
  template <typename T>
  static T ByX(T x, T y, T d) {
    return x < y ? d : T(0);
  }
  template <typename T>
  static T ByY(T x, T y, T d) {
    return x < y ? T(0) : d;
  }
};

struct Pow {
  template <typename T>
  static T Value(T x, T y) {
    if constexpr (std::is_integral_v<T>) {
      return IntegerPower(x, y);
    } else {
      return std::pow(x, y);
    }
  }
  template <typename T>
  static T ByX(T x, T y, T d) {
    return d * y * std::pow(x, y - 1);
  }
  template <typename T>
  static T ByY(T x, T y, T d) {
    return d * std::log(x) * std::pow(x, y);
  }

 private:
  // By squaring. Negative exponents give what is left of the fraction: 0, or 1 or -1 for x = 1 or -1.
  template <typename T>
  static T IntegerPower(T x, T y) {
    if (y < 0) {
      HR_ENFORCE(x != 0, InvalidArgument, "input Y: 0 to the power of ", y);
      return x == 1 || x == -1 ? IntegerPower(x, static_cast<T>(-(y % 2))) : T(0);
    }
    Wrapping<T> power = 1;
    for (auto base = static_cast<Wrapping<T>>(x); y > 0; y /= 2, base *= base) {
      power *= y % 2 == 0 ? 1 : base;
    }
    return static_cast<T>(power);
  }
};
// Fluid's, from 1.6.2 on: the remainder of integers has the sign of X, that of others the sign of Y.
struct Mod {
  template <typename T>
  static T Value(T x, T y) {
    if constexpr (std::is_integral_v<T>) {
      HR_ENFORCE(y != 0, InvalidArgument, "input Y: remainder of ", x, " by zero");
      return y == T(-1) ? T(0) : static_cast<T>(x % y);  // the smallest integer over -1 would overflow
    } else {
      return std::fmod(y + std::fmod(x, y), y);
    }
  }
};
struct FloorDiv {
  template <typename T>
  static T Value(T x, T y) {
    if constexpr (std::is_integral_v<T>) {
      return Div::Value(x, y);
    } else {
      return std::trunc(x / y);
    }
  }
};

}  // namespace headrace::ops::elementwise
