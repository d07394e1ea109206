// Convolution of images or volumes with filters, and its gradients, which are what a transposed convolution computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "operators/convolution/conv_shape.h"

namespace headrace::ops {

// `input`, [images, groups · channels, D, H, W], convolved with `filter`, [groups · maps, channels, KD, KH, KW], into
// `out`, which has OutputDims. T is float or double.
template <typename T>
void Convolve(const ConvShape& s, const T* input, const T* filter, T* out);

// From the gradient of `out` to those of `input` and of `filter`; either may be nullptr. `input` is read for the latter
// only, and may be nullptr without it.
template <typename T>
void ConvolveBackward(const ConvShape& s, const T* out_grad, const T* input, const T* filter, T* input_grad,
                      T* filter_grad);

// The attributes of convolutions over `dimensions` dimensions.
OpRegistrar&& ConvAttrs(OpRegistrar&& op, size_t dimensions);

// What tells convolutions from transposed ones. All functions are told how many dimensions there are.
struct ConvKind {
  using Kernel = void (*)(const ExecutionContext&, size_t);

  const char* filter;  // its first two dims
  const char* output;  // how OH follows from H
  OpRegistrar && (*attrs)(OpRegistrar&&, size_t);
  DDim (*infer)(const InferShapeContext&, size_t);  // checks the inputs; the dims of Output
  Kernel kernel_of_float;
  Kernel kernel_of_double;
  Kernel gradient_of_float;
  Kernel gradient_of_double;
};

// Registers an operator over 2 or 3 `dimensions`, and its gradient.
void RegisterConv(const std::string& type, size_t dimensions, const std::string& comment, const ConvKind& kind);

}  // namespace headrace::ops
