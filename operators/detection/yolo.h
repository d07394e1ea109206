// The maps that a YOLO detector predicts (J. Redmon and A. Farhadi, YOLOv3: an incremental improvement, 2018).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/math/sigmoid.h"

namespace headrace::ops {

// The maps of an anchor: those of a box (centre, logarithms of the extents), of whether there is anything, and one for
// each class.
inline constexpr int64_t kYoloObject = 4;
inline constexpr int64_t kYoloClasses = 5;

// Throws InvalidArgument unless X is [N, anchors (5 + class_num), H, W].
inline void CheckYoloMaps(const InferShapeContext& ctx, int64_t anchors) {
  EnforceRank(ctx, "X", 4);
  HR_ENFORCE(!ctx.Attr<std::vector<int32_t>>("anchors").empty(), InvalidArgument,
             "attribute anchors: expected at least one width and height, got none");
  const int64_t channels = anchors * (kYoloClasses + ctx.Attr<int32_t>("class_num"));
  EnforceDims(ctx, "X", {-1, channels, -1, -1});
}

struct YoloMaps {
  YoloMaps(const ExecutionContext& ctx, int64_t anchor_count)
      : images(ctx.Input("X").dims()[0]),
        anchors(anchor_count),
        classes(ctx.Attr<int32_t>("class_num")),
        height(ctx.Input("X").dims()[2]),
        width(ctx.Input("X").dims()[3]),
        ratio(ctx.Attr<int32_t>("downsample_ratio")),
        sizes(ctx.Attr<std::vector<int32_t>>("anchors")) {}

  int64_t Cells() const { return height * width; }
  // The place in X of `map` of an anchor at a cell.
  int64_t At(int64_t image, int64_t anchor, int64_t map, int64_t cell) const {
    return ((image * anchors + anchor) * (kYoloClasses + classes) + map) * Cells() + cell;
  }
  // The extents of an anchor in parts of the image. `a`: of all anchors, not only of those that are predicted.
  template <typename T>
  T AnchorWidth(int64_t a) const {
    return static_cast<T>(sizes[static_cast<size_t>(2 * a)]) / static_cast<T>(ratio * width);
  }
  template <typename T>
  T AnchorHeight(int64_t a) const {
    return static_cast<T>(sizes[static_cast<size_t>(2 * a + 1)]) / static_cast<T>(ratio * height);
  }

  // The box that is predicted at a cell, in parts of the image.
  template <typename T>
  void Predict(const T* x, int64_t image, int64_t anchor, int64_t a, int64_t cell, T* box) const {
    const auto at = [&](int64_t map) { return x[At(image, anchor, map, cell)]; };
    const T center_x = (static_cast<T>(cell % width) + Sigmoid(at(0))) / static_cast<T>(width);
    const T center_y = (static_cast<T>(cell / width) + Sigmoid(at(1))) / static_cast<T>(height);
    const T half_width = std::exp(at(2)) * AnchorWidth<T>(a) / 2;
    const T half_height = std::exp(at(3)) * AnchorHeight<T>(a) / 2;
    box[0] = center_x - half_width;
    box[1] = center_y - half_height;
    box[2] = center_x + half_width;
    box[3] = center_y + half_height;
  }

  int64_t images;
  int64_t anchors;
  int64_t classes;
  int64_t height;
  int64_t width;
  int64_t ratio;
  const std::vector<int32_t>& sizes;
};

inline OpRegistrar&& YoloAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::vector<int32_t>>(
          "anchors", "width and height of each anchor, in pixels of the network's input", std::vector<int32_t>{},
          [](const std::vector<int32_t>& anchors) {
            HR_ENFORCE(anchors.size() % 2 == 0, InvalidArgument, "attribute anchors: expected widths and heights, got ",
                       anchors.size(), " numbers");
            for (const int32_t size : anchors) {
              HR_ENFORCE(size > 0, InvalidArgument, "attribute anchors: expected positive numbers, got ", size);
            }
          })
      .Attr<int32_t>("class_num", "number of classes", 1,
                     [](const int32_t& classes) {
                       HR_ENFORCE(0 < classes && classes <= 1 << 24, InvalidArgument,
                                  "attribute class_num: expected a number in [1, 2^24], got ", classes);
                     })
      .Attr<int32_t>("downsample_ratio", "number of pixels of the network's input that a cell stands for", 32,
                     [](const int32_t& ratio) {
                       HR_ENFORCE(ratio > 0, InvalidArgument, "attribute downsample_ratio: expected 1 or more, got ",
                                  ratio);
                     });
}

}  // namespace headrace::ops
