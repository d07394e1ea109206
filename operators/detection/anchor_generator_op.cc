// anchor_generator: boxes of several sizes and shapes around each place of a feature map.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

using Floats = std::vector<float>;

template <typename T>
void AnchorGeneratorKernel(const ExecutionContext& ctx) {
  const DDim& x = ctx.Input("Input").dims();
  const auto& sizes = ctx.Attr<Floats>("anchor_sizes");
  const auto& ratios = ctx.Attr<Floats>("aspect_ratios");
  const auto& variances = ctx.Attr<Floats>("variances");
  const auto step_x = static_cast<T>(ctx.Attr<Floats>("stride")[0]);
  const auto step_y = static_cast<T>(ctx.Attr<Floats>("stride")[1]);
  const auto offset = static_cast<T>(ctx.Attr<double>("offset"));
  T* anchor = ctx.Output("Anchors")->mutable_data<T>();
  T* variance = ctx.Output("Variances")->mutable_data<T>();
  const auto shapes = static_cast<int64_t>(sizes.size() * ratios.size());
  const auto generate = [=, &sizes, &ratios, &variances, cols = x[3]](int64_t row) {
    T* to = anchor + row * cols * shapes * kBoxSize;
    T* to_variance = variance + row * cols * shapes * kBoxSize;
    const T y = static_cast<T>(row) * step_y + offset * (step_y - 1);
    for (int64_t col = 0; col < cols; ++col) {
      const T center = static_cast<T>(col) * step_x + offset * (step_x - 1);
      for (const float ratio : ratios) {
        // Of the area of a step, in whole pixels.
        const T base_width = std::round(std::sqrt(step_x * step_y / static_cast<T>(ratio)));
        const T base_height = std::round(base_width * static_cast<T>(ratio));
        for (const float size : sizes) {
          const T half_width = (static_cast<T>(size) / step_x * base_width - 1) / 2;
          const T half_height = (static_cast<T>(size) / step_y * base_height - 1) / 2;
          *to++ = center - half_width;
          *to++ = y - half_height;
          *to++ = center + half_width;
          *to++ = y + half_height;
          to_variance = std::copy(variances.begin(), variances.end(), to_variance);
        }
      }
    }
  };
  ParallelForEach(x[2], generate, 8 * x[3] * shapes);
}

void EnforcePositive(const AttributeIndex& attrs, HashedName name, size_t count) {
  const auto& values = attrs.Attr<Floats>(name);
  const bool positive =
      std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value) && value > 0; });
  HR_ENFORCE(positive && (count == 0 ? !values.empty() : values.size() == count), InvalidArgument, "attribute ", name,
             ": expected ", count == 0 ? "one positive number or more" : StrCat(count, " positive numbers"), ", got ",
             values.size(), positive ? "" : ", not all positive");
}

}  // namespace

HEADRACE_REGISTER_OP(anchor_generator)
    .Comment(
        "Boxes of several sizes and shapes around each place of a feature map (S. Ren et al., Faster R-CNN, 2015).")
    .Input("Input", "[N, C, H, W]; only its dims are used", kShapeOnly)
    .Output("Anchors", "[H, W, ratios * sizes, 4] (left, upper, right, lower), the ratios first")
    .Output("Variances", "dims of Anchors: the variances, again and again")
    .Attr<Floats>("anchor_sizes", "the square roots of the areas of boxes, in pixels of the image")
    .Attr<Floats>("aspect_ratios", "heights over widths")
    .Attr<Floats>("variances", "four numbers, for the centers and the extents", {0.1F, 0.1F, 0.2F, 0.2F})
    .Attr<Floats>("stride", "width and height of a place of the feature map in pixels of the image")
    .Attr<double>("offset", "where the center lies within such a place", 0.5)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "Input", 4);
      EnforcePositive(ctx.attrs(), "anchor_sizes", 0);
      EnforcePositive(ctx.attrs(), "aspect_ratios", 0);
      EnforcePositive(ctx.attrs(), "variances", 4);
      EnforcePositive(ctx.attrs(), "stride", 2);
      const DDim x = ctx.InputDim("Input");
      const size_t boxes = ctx.Attr<Floats>("anchor_sizes").size() * ctx.Attr<Floats>("aspect_ratios").size();
      const DDim dims = {x[2], x[3], static_cast<int64_t>(boxes), 4};
      SetOutput(ctx, "Anchors", dims, ctx.InputType("Input"));
      SetOutput(ctx, "Variances", dims, ctx.InputType("Input"));
    })
    .Kernel<float>(AnchorGeneratorKernel<float>)
    .Kernel<double>(AnchorGeneratorKernel<double>);

}  // namespace headrace::ops
