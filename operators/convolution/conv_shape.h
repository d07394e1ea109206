// The sizes of a convolution, from an operator's attributes and the dims of its inputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "framework/ddim.h"
#include "framework/operator.h"
#include "operators/convolution/window.h"

namespace headrace::ops {

// At compile time the sizes of the input may be -1.
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

}  // namespace headrace::ops
