// The logistic function and its relatives, for arguments of any size. Of floats, they are those of branchless.h, so
// that the compiler can vectorise loops that call them.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "operators/math/branchless.h"

namespace headrace::ops {

// 1 / (1 + exp(-x)). No intermediate result overflows.
template <typename T>
T Sigmoid(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return branchless::Sigmoid(x);
  } else {
    return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
  }
}

// log(1 + exp(x)). No intermediate result overflows.
template <typename T>
T Softplus(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return branchless::Softplus(x);
  } else {
    return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
  }
}

// The natural logarithm.
template <typename T>
T Log(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return branchless::Log(x);
  } else {
    return std::log(x);
  }
}

}  // namespace headrace::ops
