// Softmax over the rows of a matrix, for the operators that contain it. T is float or double. As an expression of
// Eigen's it takes longer (kernel_benchmark).
#pragma once

#include <cstdint>
#include <limits>

namespace headrace::ops {

// The greatest of the elements that are numbers; −∞ if there are none.
template <typename T>
T Maximum(int64_t n, const T* x);

// Σ exp(x[c] − max). Differences are raised to `lowest`, except −∞. `exp`: where the summands go, unless it is nullptr;
// it may be `x`.
template <typename T>
T SumOfExp(int64_t n, const T* x, T max, T* exp, T lowest = -std::numeric_limits<T>::infinity());

// `out` may be `x`. A row with a NaN, or with nothing but −∞, becomes NaN. Differences from the row's maximum are
// raised to `lowest`, except −∞.
template <typename T>
void Softmax(int64_t rows, int64_t cols, const T* x, T* out, T lowest = -std::numeric_limits<T>::infinity());

// Softmax of a row of which `max` is the maximum. Returns Σ exp(x[c] − max).
template <typename T>
T SoftmaxOfRow(int64_t cols, const T* x, T max, T* out);

// From the result of Softmax and its gradient to the gradient of its input, which may be `out_grad`.
template <typename T>
void SoftmaxGrad(int64_t rows, int64_t cols, const T* out, const T* out_grad, T* x_grad);

}  // namespace headrace::ops
