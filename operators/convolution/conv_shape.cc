#include "operators/convolution/conv_shape.h"

#include <cstddef>
#include <cstdint>

#include "framework/errors.h"
#include "operators/common/shape_inference.h"
#include "operators/math/layout.h"

namespace headrace::ops {

namespace {

Extents FilterExtents(size_t dimensions, const DDim& filter) {
  HR_ENFORCE(filter.size() == 2 + dimensions, InvalidArgument, "input Filter: expected dims ",
             dimensions == 2 ? "[M, C / groups, KH, KW]" : "[M, C / groups, KD, KH, KW]", ", got ", ToString(filter));
  return ExtentsOf(filter, dimensions, "Filter");
}

}  // namespace

ConvShape::ConvShape(const AttributeIndex& op, size_t spatial, const DDim& input, const DDim& filter)
    : ConvShape(op, spatial, input, filter,
                WindowsOf(op, spatial, FilterExtents(spatial, filter),
                          ExtentsOf(input, spatial, "Input", HasChannelsLast(op)))) {}

ConvShape::ConvShape(const AttributeIndex& op, size_t spatial, const DDim& input, const DDim& filter,
                     const Windows& windows)
    : dimensions(spatial), channels_last(HasChannelsLast(op)), in(ExtentsOf(input, spatial, "Input", channels_last)) {
  groups = op.Attr<int32_t>("groups");
  HR_ENFORCE(groups > 0, InvalidArgument, "attribute groups: expected 1 or more, got ", groups);
  for (const int64_t dim : filter) {
    HR_ENFORCE(dim > 0, InvalidArgument, "input Filter: expected dims of 1 or more, got ", ToString(filter));
  }
  images = input[0];
  channels = filter[1];
  const int64_t all_channels = MultiplyExtents(channels, groups);
  HR_ENFORCE(Fits(ChannelsOf(input, channels_last), all_channels), InvalidArgument, "input Input: expected ",
             all_channels, " channels, those of the filter of dims ", ToString(filter), " times ", groups,
             " groups, got dims ", ToString(input));
  HR_ENFORCE(filter[0] % groups == 0, InvalidArgument, "input Filter: expected a multiple of ", groups,
             " (attribute groups) for dimension 0, got dims ", ToString(filter));
  maps = filter[0] / groups;
  planes = windows.planes;
  rows = windows.rows;
  cols = windows.cols;
  out = {OutputSize(planes, in.depth, false, "Input", "depth"), OutputSize(rows, in.height, false, "Input", "height"),
         OutputSize(cols, in.width, false, "Input", "width")};
}

}  // namespace headrace::ops
