// Softmax over the rows of a matrix, for the operators that contain it. T is float or double. As an expression of
// Eigen's it takes 1.4 × as long (kernel_benchmark).
#pragma once

#include <cstdint>
#include <limits>

namespace headrace::ops {

// out[r, c] = x[r, c] − max over c of x[r, c], but at least `lowest`, unless it is −∞. `out` may be `x`.
template <typename T>
void SubtractRowMaximum(int64_t rows, int64_t cols, const T* x, T* out, T lowest = -std::numeric_limits<T>::infinity());

// `out` may be `x`. A row with a NaN, or with nothing but −∞, becomes NaN. What is finite, but less than the row's
// maximum by more than −`lowest`, counts as less by that.
template <typename T>
void Softmax(int64_t rows, int64_t cols, const T* x, T* out, T lowest = -std::numeric_limits<T>::infinity());

// From the result of Softmax and its gradient to the gradient of its input, which may be `out_grad`.
template <typename T>
void SoftmaxGrad(int64_t rows, int64_t cols, const T* out, const T* out_grad, T* x_grad);

}  // namespace headrace::ops
