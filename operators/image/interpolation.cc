#include "operators/image/interpolation.h"

#include <array>

#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"

namespace headrace::ops {
namespace {

struct SizeAttr {
  const char* name;
  const char* dimension;
  int64_t Extents::* extent;
};

constexpr std::array<SizeAttr, 3> kSizeAttrs = {
    {{"out_d", "depth", &Extents::depth}, {"out_h", "height", &Extents::height}, {"out_w", "width", &Extents::width}}};

// Calls visit(place in a list of sizes, its attribute) for each dimension, in order.
template <typename Visit>
void ForEachSize(size_t spatial, const Visit& visit) {
  for (size_t i = 0; i < spatial; ++i) {
    visit(i, kSizeAttrs[kSizeAttrs.size() - spatial + i]);
  }
}

// The size `x`, times `scale`; -1 where `x` is not known yet. `name`: of what holds the scale.
Extents Scaled(double factor, const char* name, size_t spatial, const Extents& x) {
  const auto scale = static_cast<float>(factor);
  const auto scaled = [=](int64_t extent) -> int64_t {
    if (extent < 0) {
      return -1;
    }
    const float result = static_cast<float>(extent) * scale;
    HR_ENFORCE(result >= 1 && result < 0x1p31F, InvalidArgument, name,
               ": expected one that gives 1 to 2^31 pixels, got ", scale, " times ", extent);
    return static_cast<int64_t>(result);
  };
  return {spatial == 3 ? scaled(x.depth) : 1, scaled(x.height), scaled(x.width)};
}

// The size of the result, by the attributes; 0 or less if they do not tell.
Extents SizeByAttrs(const OpArgs& args, size_t spatial, const Extents& x) {
  const double scale = args.Attr<double>("scale");
  if (static_cast<float>(scale) > 0) {
    return Scaled(scale, "attribute scale", spatial, x);
  }
  Extents size{1, 1, 1};
  ForEachSize(spatial, [&](size_t, const SizeAttr& attr) { size.*attr.extent = args.Attr<int32_t>(attr.name); });
  return size;
}

Extents ExtentsOfX(const AttributeIndex& op, size_t spatial, const DDim& x) {
  return ExtentsOf(x, spatial, "X", HasChannelsLast(op));
}

bool HasPixels(const Extents& size) { return size.depth > 0 && size.height > 0 && size.width > 0; }

// "2 and 3", of images.
std::string Listed(size_t spatial, const Extents& size) {
  return spatial == 3 ? StrCat(size.depth, ", ", size.height, " and ", size.width)
                      : StrCat(size.height, " and ", size.width);
}

}  // namespace

PixelAlignment::PixelAlignment(const AttributeIndex& op)
    : corners(op.Attr<bool>("align_corners")), centers(!corners && op.Attr<int32_t>("align_mode") == 0) {}

DDim ResizedDims(const AttributeIndex& op, size_t spatial, const DDim& x, const Extents& size) {
  const bool channels_last = HasChannelsLast(op);
  return MapDims(x[0], ChannelsOf(x, channels_last), size, spatial, channels_last);
}

Extents ReadOutSize(const ExecutionContext& ctx, size_t spatial) {
  const Extents x = ExtentsOfX(ctx.attrs(), spatial, ctx.Input("X").dims());
  Extents size{1, 1, 1};
  const char* name = "SizeTensor";
  if (ctx.InputSize("SizeTensor") != 0) {
    ForEachSize(spatial, [&](size_t i, const SizeAttr& attr) {
      size.*attr.extent = OpArgs(ctx).Int(attr.name, "SizeTensor", i);
    });
  } else if (ctx.HasInput("OutSize")) {
    name = "OutSize";
    const PoolVector<int64_t> given = IntegerInput(ctx, name);
    ForEachSize(spatial, [&](size_t i, const SizeAttr& attr) { size.*attr.extent = given[i]; });
  } else if (ctx.HasInput("Scale")) {
    const double scale = ScalarInput(ctx, "Scale");
    HR_ENFORCE(scale > 0, InvalidArgument, "input Scale: expected a number above 0, got ", scale);
    return Scaled(scale, "input Scale", spatial, x);
  } else {
    return SizeByAttrs(ctx, spatial, x);
  }
  HR_ENFORCE(HasPixels(size), InvalidArgument, "input ", name, ": expected numbers of 1 or more (",
             DimensionNames(spatial), "), got ", Listed(spatial, size));
  return size;
}

DDim CheckInterpolate(const InferShapeContext& ctx, size_t spatial) {
  const DDim x = ctx.InputDim("X");
  Extents in = ExtentsOfX(ctx.attrs(), spatial, x);
  DDim unknown = ResizedDims(ctx.attrs(), spatial, x, {-1, -1, -1});
  ForEachSize(spatial, [&](size_t, const SizeAttr& attr) {
    if (in.*attr.extent != 0) return;
    HR_ENFORCE(!ctx.IsRuntime(), InvalidArgument, "input X: expected images that are not empty, got dims ",
               ToString(x));
    in.*attr.extent = -1;  // Fluid's programs declare images of any size so, too
  });
  if (ctx.InputSize("SizeTensor") != 0) {
    HR_ENFORCE(ctx.InputSize("SizeTensor") == spatial, InvalidArgument, "input SizeTensor: expected ", spatial,
               " variables, ", DimensionNames(spatial), ", got ", ctx.InputSize("SizeTensor"));
    ForEachSize(spatial, [&](size_t i, const SizeAttr& attr) {
      (void)OpArgs(ctx).Int(attr.name, "SizeTensor", i);  // checks it
    });
    return unknown;
  }
  if (ctx.HasInput("OutSize")) {
    EnforceDims(ctx, "OutSize", {static_cast<int64_t>(spatial)});
    EnforceIntegers(ctx, "OutSize");
    return unknown;
  }
  if (ctx.HasInput("Scale")) {
    EnforceScalar(ctx, "Scale");
    return unknown;
  }
  const Extents size = SizeByAttrs(ctx, spatial, in);
  HR_ENFORCE(ctx.Attr<double>("scale") > 0 || HasPixels(size), InvalidArgument, "attributes ",
             spatial == 3 ? "out_d, " : "", "out_h and out_w: expected numbers of 1 or more, got ",
             Listed(spatial, size));
  return ResizedDims(ctx.attrs(), spatial, x, size);
}

OpRegistrar&& InterpolateAttrs(OpRegistrar&& op, size_t spatial) {
  const std::string names(DimensionNames(spatial));
  ForEachSize(spatial, [&op](size_t, const SizeAttr& attr) {
    (void)std::move(op).Attr<int32_t>(attr.name, StrCat(attr.dimension, " of Out"), 0);
  });
  return std::move(op)
      .Input("SizeTensor", "int32 or int64 [1] each: " + names + " of Out; before all others",
             kDuplicable | kDispensable)
      .Input("OutSize", StrCat("int32 or int64 [", spatial, "]: ", names, " of Out, instead of the attributes"),
             kDispensable)
      .Input("Scale", "float32 or float64 [1]: the scale, instead of the attributes", kDispensable)
      .Attr<double>("scale", "above 0: Out has this times the extents of X, rounded down, instead", 0.0)
      .Attr<bool>("align_corners", "whether the corner pixels of X and Out coincide", true)
      .Attr<int32_t>("align_mode", "without align_corners, for linear ones: 0: centers of pixels coincide, 1: edges", 1,
                     [](const int32_t& mode) {
                       HR_ENFORCE(mode == 0 || mode == 1, InvalidArgument,
                                  "attribute align_mode: expected 0 or 1, got ", mode);
                     })
      .With(LayoutAttr, "data_layout", spatial == 3 ? "NCDHW" : "NCHW")
      .KernelTypeFrom("X");
}

}  // namespace headrace::ops
