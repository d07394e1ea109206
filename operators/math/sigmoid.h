// The logistic function and its relatives, for arguments of any size.
#pragma once

#include <algorithm>
#include <cmath>

namespace headrace::ops {

// 1 / (1 + exp(-x)). No intermediate result overflows.
template <typename T>
T Sigmoid(T x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

// log(1 + exp(x)). No intermediate result overflows.
template <typename T>
T Softplus(T x) {
  return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
}

}  // namespace headrace::ops
