// Convolution of images whose channels are groups of their own, plane by plane: their products would be with so few
// filters that building the matrices for them takes most of the time.
#pragma once

#include "operators/convolution/conv_shape.h"

namespace headrace::ops {

// Whether the functions below can compute it, without much memory, and are the faster ones.
bool IsDepthwise(const ConvShape& s);

// As Convolve, if IsDepthwise.
template <typename T>
void ConvolveDepthwise(const ConvShape& s, const T* input, const T* filter, T* out);

// As ConvolveBackward, if IsDepthwise.
template <typename T>
void ConvolveDepthwiseBackward(const ConvShape& s, const T* out_grad, const T* input, const T* filter, T* input_grad,
                               T* filter_grad);

}  // namespace headrace::ops
