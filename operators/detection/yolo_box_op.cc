// yolo_box: the boxes that a YOLO detector predicts.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/detection/yolo.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

int64_t YoloAnchors(const AttributeIndex& op) {
  return static_cast<int64_t>(op.Attr<std::vector<int32_t>>("anchors").size()) / 2;
}

template <typename T>
void YoloBoxKernel(const ExecutionContext& ctx) {
  const YoloMaps maps(ctx, YoloAnchors(ctx.attrs()));
  const T* x = ctx.Input("X").data<T>();
  const PoolVector<int64_t> sizes = IntegerInput(ctx, "ImgSize");
  for (size_t i = 0; i < sizes.size(); ++i) {
    HR_ENFORCE(sizes[i] > 0, OutOfRange, "input ImgSize: image ", i / 2, " has extent ", sizes[i],
               ", expected a positive number");
  }
  const T threshold = static_cast<T>(ctx.Attr<double>("conf_thresh"));
  const bool clip = ctx.Attr<bool>("clip_bbox");
  T* boxes = ctx.Output("Boxes")->mutable_data<T>();
  T* scores = ctx.Output("Scores")->mutable_data<T>();
  const int64_t cells = maps.Cells();
  const int64_t cost = 64 + 16 * maps.classes;
  ParallelFor(maps.images * maps.anchors * cells, RowsPerBlock(cost), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / (maps.anchors * cells);
      const int64_t a = i / cells % maps.anchors;
      const int64_t cell = i % cells;
      T* box = boxes + i * kBoxSize;
      T* score = scores + i * maps.classes;
      const T confidence = Sigmoid(x[maps.At(image, a, kYoloObject, cell)]);
      if (confidence < threshold) {
        std::fill_n(box, kBoxSize, T(0));
        std::fill_n(score, maps.classes, T(0));
        continue;
      }
      maps.Predict(x, image, a, a, cell, box);
      for (int64_t d = 0; d < kBoxSize; ++d) {
        const T extent = static_cast<T>(sizes[static_cast<size_t>(2 * image + (d % 2 == 0 ? 1 : 0))]);
        box[d] *= extent;
        if (clip) {
          box[d] = d < 2 ? std::max(box[d], T(0)) : std::min(box[d], extent - 1);
        }
      }
      for (int64_t c = 0; c < maps.classes; ++c) {
        score[c] = confidence * Sigmoid(x[maps.At(image, a, kYoloClasses + c, cell)]);
      }
    }
  });
}

}  // namespace

HEADRACE_REGISTER_OP(yolo_box)
    .Comment(
        "The box that each anchor predicts at each cell, xmin, ymin, xmax, ymax in pixels of the image, and its "
        "scores; "
        "zeros if it is less probable than conf_thresh that there is anything.")
    .Input(
        "X",
        "[N, anchors (5 + class_num), H, W]: of each anchor x, y, logarithms of width and height, confidence, classes")
    .Input("ImgSize", "int32 or int64 [N, 2]: height and width of each image")
    .Output("Boxes", "[N, anchors H W, 4]")
    .Output("Scores", "[N, anchors H W, class_num]: confidence times probability of the class")
    .With(YoloAttrs)
    .Attr<double>("conf_thresh", "the least confidence of a box", 0.0)
    .Attr<bool>("clip_bbox", "whether boxes end at the edges of the image", true)
    .InferShape([](InferShapeContext& ctx) {
      const int64_t anchors = YoloAnchors(ctx.attrs());
      CheckYoloMaps(ctx, anchors);
      const DDim x = ctx.InputDim("X");
      EnforceDims(ctx, "ImgSize", {x[0], 2});
      const int64_t boxes = x[2] < 0 || x[3] < 0 ? -1 : MultiplyExtents(MultiplyExtents(x[2], x[3]), anchors);
      SetOutput(ctx, "Boxes", {x[0], boxes, kBoxSize}, ctx.InputType("X"));
      SetOutput(ctx, "Scores", {x[0], boxes, ctx.Attr<int32_t>("class_num")}, ctx.InputType("X"));
    })
    .KernelTypeFrom("X")
    .Kernel<float>(YoloBoxKernel<float>)
    .Kernel<double>(YoloBoxKernel<double>);

}  // namespace headrace::ops
