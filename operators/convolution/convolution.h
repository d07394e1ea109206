// Convolution of images or volumes with filters, and its gradients, which are what a transposed convolution computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "operators/convolution/window.h"

namespace headrace::ops {

// The sizes of a convolution. At compile time those of the input may be -1.
struct ConvShape {
  // `spatial` dimensions: 2 for `input` [N, C, H, W] and `filter` [M, C / groups, KH, KW], 3 for [N, C, D, H, W] and
  // [M, C / groups, KD, KH, KW]. Where attribute data_format says so, `input` has its channels last.
  ConvShape(const AttributeIndex& op, size_t spatial, const DDim& input, const DDim& filter);
  // The same with `windows` in place of what the attributes say.
  ConvShape(const AttributeIndex& op, size_t spatial, const DDim& input, const DDim& filter, const Windows& windows);

  DDim OutputDims() const { return MapDims(images, maps * groups, out, dimensions, channels_last); }
  int64_t Pixels() const { return out.Volume(); }                                       // of an output map
  int64_t OutputRows() const { return out.depth * out.height; }                         // of an output map
  int64_t PatchSize() const { return channels * planes.size * rows.size * cols.size; }  // of a group
  int64_t InputSize() const { return channels * in.Volume(); }                          // of a group of an image
  int64_t OutputSizeOfGroup() const { return maps * Pixels(); }
  int64_t FilterSize() const { return maps * PatchSize(); }
  // The columns of an image are the image itself.
  bool IsPointwise() const {
    const auto plain = [](const Window& w) { return w.size == 1 && w.stride == 1 && w.Paddings() == 0; };
    return plain(planes) && plain(rows) && plain(cols);
  }

  size_t dimensions;
  bool channels_last;  // in the tensors of the operator, not in what Convolve and ConvolveBackward take
  int64_t images;
  int64_t groups;
  int64_t channels;  // of a group
  int64_t maps;      // output channels of a group
  Extents in{};
  Extents out{};
  Window planes{};
  Window rows{};
  Window cols{};
};

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
