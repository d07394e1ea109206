// prior_box, density_prior_box: the boxes that a detector starts from, around each point of a feature map (W. Liu et
// al., SSD: single shot multibox detector, 2016; S. Zhang et al., FaceBoxes, 2017).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// A box around a point of the image, in pixels: where its centre lies from there, and half its extents.
struct PriorShape {
  double x;
  double y;
  double half_width;
  double half_height;
};
using PriorShapes = PoolVector<PriorShape>;

// How many pixels of the image a point of the feature map stands for.
struct PriorSteps {
  explicit PriorSteps(const ExecutionContext& ctx)
      : width(ctx.Attr<double>("step_w")), height(ctx.Attr<double>("step_h")) {
    if (width == 0 || height == 0) {
      const DDim& map = ctx.Input("Input").dims();
      const DDim& image = ctx.Input("Image").dims();
      width = static_cast<double>(image[3]) / static_cast<double>(std::max<int64_t>(map[3], 1));
      height = static_cast<double>(image[2]) / static_cast<double>(std::max<int64_t>(map[2], 1));
    }
  }
  double width;
  double height;
};

// 1 and the others, each once, and after each its inverse if `flip`.
PoolVector<double> AspectRatios(const AttributeIndex& op) {
  PoolVector<double> ratios = {1};
  for (const float given : op.Attr<std::vector<float>>("aspect_ratios")) {
    const double ratio = static_cast<double>(given);
    if (std::any_of(ratios.begin(), ratios.end(), [ratio](double other) { return std::abs(other - ratio) < 1e-6; })) {
      continue;
    }
    ratios.push_back(ratio);
    if (op.Attr<bool>("flip")) {
      ratios.push_back(1 / ratio);
    }
  }
  return ratios;
}

PriorShapes ShapesOfSizes(const ExecutionContext& ctx) {
  const auto& min_sizes = ctx.Attr<std::vector<float>>("min_sizes");
  const auto& max_sizes = ctx.Attr<std::vector<float>>("max_sizes");
  const PoolVector<double> ratios = AspectRatios(ctx.attrs());
  const bool max_second = ctx.Attr<bool>("min_max_aspect_ratios_order");
  PriorShapes shapes;
  for (size_t s = 0; s < min_sizes.size(); ++s) {
    const double size = static_cast<double>(min_sizes[s]);
    const auto add_between = [&] {
      if (!max_sizes.empty()) {
        const double half = std::sqrt(size * static_cast<double>(max_sizes[s])) / 2;
        shapes.push_back({0, 0, half, half});
      }
    };
    for (size_t r = 0; r < ratios.size(); ++r) {
      const double root = std::sqrt(ratios[r]);
      shapes.push_back({0, 0, size * root / 2, size / root / 2});
      if (r == 0 && max_second) {
        add_between();
      }
    }
    if (!max_second) {
      add_between();
    }
  }
  return shapes;
}

PriorShapes ShapesOfDensities(const ExecutionContext& ctx) {
  const auto& sizes = ctx.Attr<std::vector<float>>("fixed_sizes");
  const auto& densities = ctx.Attr<std::vector<int32_t>>("densities");
  const PriorSteps steps(ctx);
  const auto step = static_cast<int64_t>((steps.width + steps.height) / 2);
  PriorShapes shapes;
  for (size_t s = 0; s < sizes.size(); ++s) {
    const int64_t density = densities[s];
    const int64_t shift = step / density;  // whole pixels, as in Fluid
    const double first = static_cast<double>(shift) / 2 - static_cast<double>(step) / 2;
    for (const float ratio : ctx.Attr<std::vector<float>>("fixed_ratios")) {
      const double root = std::sqrt(static_cast<double>(ratio));
      const double size = static_cast<double>(sizes[s]);
      for (int64_t i = 0; i < density * density; ++i) {
        shapes.push_back({first + static_cast<double>(i % density * shift),
                          first + static_cast<double>(i / density * shift), size * root / 2, size / root / 2});
      }
    }
  }
  return shapes;
}

// Writes the boxes of each point, in parts of the image, and their variances. `inside`: whether no box begins before
// the image or ends behind it; clip does more: then no box ends before it, either.
template <typename T>
void WritePriors(const ExecutionContext& ctx, const PriorShapes& shapes, bool inside) {
  const DDim& map = ctx.Input("Input").dims();
  const DDim& image = ctx.Input("Image").dims();
  const double image_width = static_cast<double>(image[3]);
  const double image_height = static_cast<double>(image[2]);
  const PriorSteps steps(ctx);
  const double offset = ctx.Attr<double>("offset");
  const bool clip = ctx.Attr<bool>("clip");
  const auto& variances = ctx.Attr<std::vector<float>>("variances");
  T* boxes = ctx.Output("Boxes")->mutable_data<T>();
  T* box_variances = ctx.Output("Variances")->mutable_data<T>();
  const auto each = static_cast<int64_t>(shapes.size());
  ParallelFor(map[2] * map[3], RowsPerBlock(16 * each), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double x = (static_cast<double>(i % map[3]) + offset) * steps.width;
      const double y = (static_cast<double>(i / map[3]) + offset) * steps.height;
      for (int64_t k = 0; k < each; ++k) {
        const PriorShape& shape = shapes[static_cast<size_t>(k)];
        double box[kBoxSize] = {
            (x + shape.x - shape.half_width) / image_width, (y + shape.y - shape.half_height) / image_height,
            (x + shape.x + shape.half_width) / image_width, (y + shape.y + shape.half_height) / image_height};
        for (int64_t d = 0; d < kBoxSize; ++d) {
          if (clip || (inside && d < 2)) {
            box[d] = std::max(box[d], 0.0);
          }
          if (clip || (inside && d >= 2)) {
            box[d] = std::min(box[d], 1.0);
          }
          boxes[(i * each + k) * kBoxSize + d] = static_cast<T>(box[d]);
          box_variances[(i * each + k) * kBoxSize + d] = static_cast<T>(variances[static_cast<size_t>(d)]);
        }
      }
    }
  });
}

template <typename T>
void PriorBoxKernel(const ExecutionContext& ctx) {
  WritePriors<T>(ctx, ShapesOfSizes(ctx), false);
}

template <typename T>
void DensityPriorBoxKernel(const ExecutionContext& ctx) {
  WritePriors<T>(ctx, ShapesOfDensities(ctx), true);
}

std::function<void(const std::vector<float>&)> EachPositive(const char* attr) {
  return [attr](const std::vector<float>& values) {
    for (const float value : values) {
      HR_ENFORCE(value > 0, InvalidArgument, "attribute ", attr, ": expected positive numbers, got ", value);
    }
  };
}

// `each`: how many boxes a point has.
void InferPriors(InferShapeContext& ctx, int64_t each, bool flatten) {
  EnforceRank(ctx, "Input", 4);
  EnforceRank(ctx, "Image", 4);
  const auto& variances = ctx.Attr<std::vector<float>>("variances");
  HR_ENFORCE(variances.size() == kBoxSize, InvalidArgument, "attribute variances: expected 4 numbers, got ",
             variances.size());
  const DDim map = ctx.InputDim("Input");
  const DDim image = ctx.InputDim("Image");
  HR_ENFORCE(image[2] != 0 && image[3] != 0, InvalidArgument,
             "input Image: expected images that are not empty, got dims ", ToString(image));
  DDim dims = {map[2], map[3], each, kBoxSize};
  if (flatten) {
    dims = {map[2] < 0 || map[3] < 0 ? -1 : MultiplyExtents(MultiplyExtents(map[2], map[3]), each), kBoxSize};
  }
  SetOutput(ctx, "Boxes", dims, ctx.InputType("Input"));
  SetOutput(ctx, "Variances", dims, ctx.InputType("Input"));
}

void InferPriorBox(InferShapeContext& ctx) {
  const auto& min_sizes = ctx.Attr<std::vector<float>>("min_sizes");
  const auto& max_sizes = ctx.Attr<std::vector<float>>("max_sizes");
  HR_ENFORCE(!min_sizes.empty(), InvalidArgument, "attribute min_sizes: expected at least one number");
  HR_ENFORCE(max_sizes.empty() || max_sizes.size() == min_sizes.size(), InvalidArgument,
             "attribute max_sizes: expected one for each of the ", min_sizes.size(), " min_sizes, got ",
             max_sizes.size());
  for (size_t s = 0; s < max_sizes.size(); ++s) {
    HR_ENFORCE(max_sizes[s] > min_sizes[s], InvalidArgument, "attribute max_sizes: expected more than ", min_sizes[s],
               ", which min_sizes has at ", s, ", got ", max_sizes[s]);
  }
  InferPriors(ctx, static_cast<int64_t>(AspectRatios(ctx.attrs()).size() * min_sizes.size() + max_sizes.size()), false);
}

void InferDensityPriorBox(InferShapeContext& ctx) {
  const auto& sizes = ctx.Attr<std::vector<float>>("fixed_sizes");
  const auto& densities = ctx.Attr<std::vector<int32_t>>("densities");
  HR_ENFORCE(sizes.size() == densities.size(), InvalidArgument, "attribute densities: expected one for each of the ",
             sizes.size(), " fixed_sizes, got ", densities.size());
  const auto ratios = static_cast<int64_t>(ctx.Attr<std::vector<float>>("fixed_ratios").size());
  int64_t each = 0;
  for (const int32_t density : densities) {
    HR_ENFORCE(0 < density && density <= 1 << 10, InvalidArgument,
               "attribute densities: expected numbers in [1, 1024], got ", density);
    each += ratios * density * density;
  }
  InferPriors(ctx, each, ctx.Attr<bool>("flatten_to_2d"));
}

OpRegistrar&& PriorSlots(OpRegistrar&& op) {
  const auto not_negative = [](const double& step) {
    HR_ENFORCE(0 <= step && step <= 1 << 30, InvalidArgument, "attribute step: expected a number in [0, 2^30], got ",
               step);
  };
  return std::move(op)
      .Input("Input", "[N, C, H, W]: a feature map; only its dims and dtype are used", kShapeOnly)
      .Input("Image", "[N, C, height, width]: the image it was computed from; only its dims are used", kShapeOnly)
      .Attr<std::vector<float>>("variances", "4 numbers that each box has in addition", {0.1F, 0.1F, 0.2F, 0.2F},
                                EachPositive("variances"))
      .Attr<bool>("clip", "whether to move corners into the image", true)
      .Attr<double>("step_w", "how many columns of the image a column of the map stands for; 0: as many as fit", 0.0,
                    not_negative)
      .Attr<double>("step_h", "the same for rows; if either is 0, both are", 0.0, not_negative)
      .Attr<double>("offset", "where in its step a point lies", 0.5)
      .KernelTypeFrom("Input");
}

}  // namespace

HEADRACE_REGISTER_OP(prior_box)
    .Comment(
        "Boxes around each point of a feature map: for each of min_sizes one of each aspect ratio, and a square "
        "between "
        "it and its max_size. Corners are given in parts of the image: xmin, ymin, xmax, ymax.")
    .With(PriorSlots)
    .Output("Boxes", "[H, W, boxes of a point, 4], dtype of Input")
    .Output("Variances", "the same: variances for each box")
    .Attr<std::vector<float>>("min_sizes", "in pixels of the image", {}, EachPositive("min_sizes"))
    .Attr<std::vector<float>>("max_sizes", "in pixels, one for each of min_sizes, or none", {})
    .Attr<std::vector<float>>("aspect_ratios", "width over height; 1 is always among them", {},
                              EachPositive("aspect_ratios"))
    .Attr<bool>("flip", "whether the inverses of the aspect ratios are among them, too", true)
    .Attr<bool>("min_max_aspect_ratios_order",
                "whether the square between the sizes comes second, as in Caffe, not last", false)
    .InferShape(InferPriorBox)
    .Kernel<float>(PriorBoxKernel<float>)
    .Kernel<double>(PriorBoxKernel<double>);

HEADRACE_REGISTER_OP(density_prior_box)
    .Comment(
        "Boxes around each point of a feature map, density * density of each size and ratio, shifted against each "
        "other. Corners are given in parts of the image: xmin, ymin, xmax, ymax.")
    .With(PriorSlots)
    .Output("Boxes", "[H, W, boxes of a point, 4], or [H W boxes, 4] if flatten_to_2d; dtype of Input")
    .Output("Variances", "the same: variances for each box")
    .Attr<std::vector<float>>("fixed_sizes", "in pixels of the image", {}, EachPositive("fixed_sizes"))
    .Attr<std::vector<float>>("fixed_ratios", "width over height", {}, EachPositive("fixed_ratios"))
    .Attr<std::vector<int32_t>>("densities", "one for each of fixed_sizes", {})
    .Attr<bool>("flatten_to_2d", "whether the boxes are rows of a matrix", false)
    .InferShape(InferDensityPriorBox)
    .Kernel<float>(DensityPriorBoxKernel<float>)
    .Kernel<double>(DensityPriorBoxKernel<double>);

}  // namespace headrace::ops
