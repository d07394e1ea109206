#include "operators/interpolation.h"

namespace headrace::ops {
namespace {

// The size `x`, times `scale`; -1 where `x` is not known yet. `name`: of what holds the scale.
ImageSize Scaled(double factor, const char* name, const Extents& x) {
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
  return {scaled(x.height), scaled(x.width)};
}

// The size of the result, by the attributes; 0 or less if they do not tell.
ImageSize SizeByAttrs(const OpArgs& args, const Extents& x) {
  const double scale = args.Attr<double>("scale");
  return static_cast<float>(scale) > 0 ? Scaled(scale, "attribute scale", x)
                                       : ImageSize{args.Attr<int32_t>("out_h"), args.Attr<int32_t>("out_w")};
}

}  // namespace

PixelAlignment::PixelAlignment(const AttributeIndex& op)
    : corners(op.Attr<bool>("align_corners")), centers(!corners && op.Attr<int32_t>("align_mode") == 0) {}

double PixelAlignment::Ratio(int64_t in, int64_t out) const {
  if (out <= 1) {
    return 0;
  }
  const int64_t shared = corners ? 1 : 0;
  return static_cast<double>(in - shared) / static_cast<double>(out - shared);
}

Extents ExtentsOfX(const AttributeIndex& op, const DDim& x) { return ExtentsOf(x, 2, "X", HasChannelsLast(op)); }

DDim ResizedDims(const AttributeIndex& op, const DDim& x, const ImageSize& size) {
  const bool channels_last = HasChannelsLast(op);
  return MapDims(x[0], ChannelsOf(x, channels_last), {1, size.first, size.second}, 2, channels_last);
}

ImageSize ReadOutSize(const ExecutionContext& ctx) {
  const Extents x = ExtentsOfX(ctx.attrs(), ctx.Input("X").dims());
  ImageSize size;
  const char* name = "SizeTensor";
  if (ctx.InputSize("SizeTensor") != 0) {
    size = {OpArgs(ctx).Int("out_h", "SizeTensor", 0), OpArgs(ctx).Int("out_w", "SizeTensor", 1)};
  } else if (const LoDTensor* out_size = ctx.InputOrNull("OutSize")) {
    name = "OutSize";
    size = {out_size->data<int32_t>()[0], out_size->data<int32_t>()[1]};
  } else if (ctx.HasInput("Scale")) {
    const double scale = ScalarInput(ctx, "Scale");
    HR_ENFORCE(scale > 0, InvalidArgument, "input Scale: expected a number above 0, got ", scale);
    return Scaled(scale, "input Scale", x);
  } else {
    return SizeByAttrs(ctx, x);
  }
  HR_ENFORCE(size.first > 0 && size.second > 0, InvalidArgument, "input ", name,
             ": expected numbers of 1 or more (height, width), got ", size.first, " and ", size.second);
  return size;
}

DDim CheckInterpolate(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const Extents in = ExtentsOfX(ctx.attrs(), x);
  DDim unknown = ResizedDims(ctx.attrs(), x, {-1, -1});
  HR_ENFORCE(in.height != 0 && in.width != 0, InvalidArgument, "input X: expected images that are not empty, got dims ",
             ToString(x));
  if (ctx.InputSize("SizeTensor") != 0) {
    HR_ENFORCE(ctx.InputSize("SizeTensor") == 2, InvalidArgument,
               "input SizeTensor: expected 2 variables, height and width, got ", ctx.InputSize("SizeTensor"));
    for (const size_t i : {0, 1}) {
      (void)OpArgs(ctx).Int("out_h", "SizeTensor", i);  // checks it
    }
    return unknown;
  }
  if (ctx.HasInput("OutSize")) {
    EnforceDims(ctx, "OutSize", {2});
    EnforceType(ctx, "OutSize", DataType::kInt32);
    return unknown;
  }
  if (ctx.HasInput("Scale")) {
    EnforceScalar(ctx, "Scale");
    return unknown;
  }
  const auto [height, width] = SizeByAttrs(ctx, in);
  HR_ENFORCE(ctx.Attr<double>("scale") > 0 || (height > 0 && width > 0), InvalidArgument,
             "attributes out_h and out_w: expected numbers of 1 or more, got ", height, " and ", width);
  return ResizedDims(ctx.attrs(), x, {height, width});
}

OpRegistrar&& InterpolateAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Input("SizeTensor", "int32 or int64 [1] each: height and width of Out; before all others",
             kDuplicable | kDispensable)
      .Input("OutSize", "int32 [2]: height and width of Out, instead of the attributes", kDispensable)
      .Input("Scale", "float32 or float64 [1]: the scale, instead of the attributes", kDispensable)
      .Attr<int32_t>("out_h", "height of Out", 0)
      .Attr<int32_t>("out_w", "width of Out", 0)
      .Attr<double>("scale", "above 0: Out has this times the height and width of X, rounded down, instead", 0.0)
      .Attr<bool>("align_corners", "whether the corner pixels of X and Out coincide", true)
      .Attr<int32_t>(
          "align_mode", "without align_corners, for bilinear_interp: 0: centers of pixels coincide, 1: edges", 1,
          [](const int32_t& mode) {
            HR_ENFORCE(mode == 0 || mode == 1, InvalidArgument, "attribute align_mode: expected 0 or 1, got ", mode);
          })
      .With(LayoutAttr, "data_layout", "NCHW")
      .KernelTypeFrom("X");
}

}  // namespace headrace::ops
