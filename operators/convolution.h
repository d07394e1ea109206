// Convolution of images with filters, and its gradients, which are what a transposed convolution computes.
#pragma once

#include <cstdint>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/window.h"

namespace headrace::ops {

// The sizes of a convolution. At compile time those of the input may be -1.
struct ConvShape {
  ConvShape(const OpDesc& op, const DDim& input, const DDim& filter) {
    HR_ENFORCE(input.size() == 4, InvalidArgument, "input Input: expected dims [N, C, H, W], got ", ToString(input));
    HR_ENFORCE(filter.size() == 4, InvalidArgument, "input Filter: expected dims [M, C / groups, KH, KW], got ",
               ToString(filter));
    groups = op.Attr<int32_t>("groups");
    HR_ENFORCE(groups > 0, InvalidArgument, "attribute groups: expected 1 or more, got ", groups);
    for (const int64_t dim : filter) {
      HR_ENFORCE(dim > 0, InvalidArgument, "input Filter: expected dims of 1 or more, got ", ToString(filter));
    }
    images = input[0];
    channels = filter[1];
    const int64_t all_channels = MultiplyExtents(channels, groups);
    HR_ENFORCE(Fits(input[1], all_channels), InvalidArgument, "input Input: expected ", all_channels,
               " channels, those of the filter of dims ", ToString(filter), " times ", groups, " groups, got dims ",
               ToString(input));
    HR_ENFORCE(filter[0] % groups == 0, InvalidArgument, "input Filter: expected a multiple of ", groups,
               " (attribute groups) for dimension 0, got dims ", ToString(filter));
    maps = filter[0] / groups;
    height = input[2];
    width = input[3];
    const Pair strides = PairAttr(op, "strides", 1);
    const Pair paddings = PairAttr(op, "paddings", 0);
    const Pair dilations = PairAttr(op, "dilations", 1);
    rows = {filter[2], strides.height, paddings.height, dilations.height};
    cols = {filter[3], strides.width, paddings.width, dilations.width};
    out_height = OutputSize(rows, height, false, "Input", "height");
    out_width = OutputSize(cols, width, false, "Input", "width");
  }

  DDim OutputDims() const { return {images, maps * groups, out_height, out_width}; }
  int64_t Pixels() const { return out_height * out_width; }               // of an output map
  int64_t PatchSize() const { return channels * rows.size * cols.size; }  // of a group
  int64_t InputSize() const { return channels * height * width; }         // of a group of an image
  int64_t OutputSizeOfGroup() const { return maps * Pixels(); }
  int64_t FilterSize() const { return maps * PatchSize(); }
  // The columns of an image are the image itself.
  bool IsPointwise() const {
    const auto plain = [](const Window& w) { return w.size == 1 && w.stride == 1 && w.padding == 0; };
    return plain(rows) && plain(cols);
  }

  int64_t images;
  int64_t groups;
  int64_t channels;  // of a group
  int64_t maps;      // output channels of a group
  int64_t height;
  int64_t width;
  int64_t out_height;
  int64_t out_width;
  Window rows{};
  Window cols{};
};

// `input`, [images, groups · channels, height, width], convolved with `filter`, [groups · maps, channels, KH, KW], into
// `out`, which has OutputDims. T is float or double.
template <typename T>
void Convolve(const ConvShape& s, const T* input, const T* filter, T* out);

// From the gradient of `out` to those of `input` and of `filter`; either may be nullptr. `input` is read for the latter
// only, and may be nullptr without it.
template <typename T>
void ConvolveBackward(const ConvShape& s, const T* out_grad, const T* input, const T* filter, T* input_grad,
                      T* filter_grad);

// The attributes of convolutions.
OpRegistrar&& ConvAttrs(OpRegistrar&& op);

}  // namespace headrace::ops
