// Softmax over the rows of a matrix, for the operators that contain it. T is float or double. As an expression of
// Eigen's it takes 1.4 × as long (kernel_benchmark).
#pragma once

#include <cstdint>

namespace headrace::ops {

// out[r, c] = x[r, c] − max over c of x[r, c]. `out` may be `x`.
template <typename T>
void SubtractRowMaximum(int64_t rows, int64_t cols, const T* x, T* out);

// `out` may be `x`. A row with a NaN, or with nothing but −∞, becomes NaN.
template <typename T>
void Softmax(int64_t rows, int64_t cols, const T* x, T* out);

// From the result of Softmax and its gradient to the gradient of its input, which may be `out_grad`.
template <typename T>
void SoftmaxGrad(int64_t rows, int64_t cols, const T* out, const T* out_grad, T* x_grad);

}  // namespace headrace::ops
