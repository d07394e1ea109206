// yolov3_loss: how wrong the boxes are that a YOLO detector predicts.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/detection/yolo.h"
#include "operators/math/element_loop.h"
#include "operators/math/sigmoid.h"

namespace headrace::ops {
namespace {

// A box less wide or high than that is none: it fills up the list of an image.
constexpr double kLeastExtent = 1e-6;

// Cross entropy of the logistic function of x, and its derivative.
template <typename T>
T LogitLoss(T x, T label) {
  return Softplus(x) - x * label;
}
template <typename T>
T LogitSlope(T x, T label) {
  return Sigmoid(x) - label;
}

// What is predicted, and what should be.
template <typename T>
struct YoloTargets {
  explicit YoloTargets(const ExecutionContext& ctx)
      : predicted(ctx.Attr<std::vector<int32_t>>("anchor_mask")),
        maps(ctx, static_cast<int64_t>(predicted.size())),
        x(ctx.Input("X").data<T>()),
        boxes(ctx.Input("GTBox").data<T>()),
        labels(IntegerInput(ctx, "GTLabel")),
        scores(ElementsOrNull<T>(ctx, "GTScore")),
        count(ctx.Input("GTBox").dims()[1]) {
    if (ctx.Attr<bool>("use_label_smooth")) {
      smooth = std::min(T(1) / static_cast<T>(maps.classes), T(1) / T(40));
    }
  }

  const T* Box(int64_t image, int64_t t) const { return boxes + (image * count + t) * kBoxSize; }
  T Score(int64_t image, int64_t t) const { return scores == nullptr ? T(1) : scores[image * count + t]; }
  bool IsBox(int64_t image, int64_t t) const {
    const T* box = Box(image, t);
    return !(box[2] < static_cast<T>(kLeastExtent) || box[3] < static_cast<T>(kLeastExtent));
  }
  int64_t Cell(const T* box) const {
    return static_cast<int64_t>(box[1] * static_cast<T>(maps.height)) * maps.width +
           static_cast<int64_t>(box[0] * static_cast<T>(maps.width));
  }

  void Check(int64_t image, int64_t t) const {
    const T* box = Box(image, t);
    HR_ENFORCE(0 <= box[0] && box[0] < 1 && 0 <= box[1] && box[1] < 1, OutOfRange, "input GTBox: box ", t, " of image ",
               image, " has its centre at (", box[0], ", ", box[1],
               "), expected parts of the image, from 0 to less than 1");
    const int64_t label = labels[static_cast<size_t>(image * count + t)];
    HR_ENFORCE(0 <= label && label < maps.classes, OutOfRange, "input GTLabel: box ", t, " of image ", image,
               " has class ", label, ", expected one in [0, ", maps.classes, ")");
  }

  // Of all anchors the one whose shape is most like that of a box, as a place in `predicted`; -1: it is not there.
  int32_t BestAnchor(const T* box) const {
    const T shape[kBoxSize] = {0, 0, box[2], box[3]};
    T most = 0;
    int64_t best = 0;
    for (int64_t a = 0; a < static_cast<int64_t>(maps.sizes.size()) / 2; ++a) {
      const T anchor[kBoxSize] = {0, 0, maps.AnchorWidth<T>(a), maps.AnchorHeight<T>(a)};
      const T overlap = BoxOverlap(shape, anchor, T(0));
      if (overlap > most) {
        most = overlap;
        best = a;
      }
    }
    const auto at = std::find(predicted.begin(), predicted.end(), best);
    return at == predicted.end() ? -1 : static_cast<int32_t>(at - predicted.begin());
  }

  // Calls visit(place in X, weight, what should be there, whether that is compared by its distance, not as a
  // probability) for each map of a box but that of the confidence.
  template <typename Visit>
  void ForEachTarget(int64_t image, int64_t t, int32_t anchor, const Visit& visit) const {
    const T* box = Box(image, t);
    const T score = Score(image, t);
    const int64_t cell = Cell(box);
    const int64_t a = predicted[static_cast<size_t>(anchor)];
    const auto at = [&](int64_t map) { return maps.At(image, anchor, map, cell); };
    const T weight = (2 - box[2] * box[3]) * score;
    visit(at(0), weight, box[0] * static_cast<T>(maps.width) - static_cast<T>(cell % maps.width), false);
    visit(at(1), weight, box[1] * static_cast<T>(maps.height) - static_cast<T>(cell / maps.width), false);
    visit(at(2), weight, std::log(box[2] / maps.AnchorWidth<T>(a)), true);
    visit(at(3), weight, std::log(box[3] / maps.AnchorHeight<T>(a)), true);
    const int64_t label = labels[static_cast<size_t>(image * count + t)];
    for (int64_t c = 0; c < maps.classes; ++c) {
      visit(at(kYoloClasses + c), score, c == label ? 1 - smooth : smooth, false);
    }
  }

  // Calls visit(place in X, weight, what should be there) for each confidence that counts. `mask`: of the image.
  template <typename Visit>
  void ForEachConfidence(int64_t image, const T* mask, const Visit& visit) const {
    for (int64_t i = 0; i < maps.anchors * maps.Cells(); ++i) {
      const int64_t at = maps.At(image, i / maps.Cells(), kYoloObject, i % maps.Cells());
      if (mask[i] > static_cast<T>(1e-5)) {
        visit(at, mask[i], T(1));
      } else if (mask[i] > static_cast<T>(-0.5)) {
        visit(at, T(1), T(0));
      }
    }
  }

  const std::vector<int32_t>& predicted;  // which of all anchors
  YoloMaps maps;
  const T* x;
  const T* boxes;
  PoolVector<int64_t> labels;
  const T* scores;
  int64_t count;  // of the boxes of an image
  T smooth = 0;
};

// Marks with -1 what predicts a box that is almost right, elsewhere than where it should: that is no mistake.
template <typename T>
void MarkAlmostRight(const YoloTargets<T>& targets, int64_t image, T threshold, T* mask) {
  PoolVector<T> corners;
  for (int64_t t = 0; t < targets.count; ++t) {
    if (targets.IsBox(image, t)) {
      const T* box = targets.Box(image, t);
      corners.insert(corners.end(),
                     {box[0] - box[2] / 2, box[1] - box[3] / 2, box[0] + box[2] / 2, box[1] + box[3] / 2});
    }
  }
  const YoloMaps& maps = targets.maps;
  for (int64_t i = 0; i < maps.anchors * maps.Cells(); ++i) {
    const int64_t anchor = i / maps.Cells();
    T box[kBoxSize];
    maps.Predict(targets.x, image, anchor, targets.predicted[static_cast<size_t>(anchor)], i % maps.Cells(), box);
    mask[i] = 0;
    for (size_t k = 0; k < corners.size(); k += kBoxSize) {
      if (BoxOverlap(box, corners.data() + k, T(0)) > threshold) {
        mask[i] = -1;
      }
    }
  }
}

template <typename T>
int64_t ImagesPerBlock(const YoloTargets<T>& targets) {
  return RowsPerBlock(targets.maps.anchors * targets.maps.Cells() * (64 + 8 * targets.count));
}

template <typename T>
void Yolov3LossKernel(const ExecutionContext& ctx) {
  const YoloTargets<T> targets(ctx);
  T* loss = ctx.Output("Loss")->mutable_data<T>();
  T* mask = ctx.Output("ObjectnessMask")->mutable_data<T>();
  int32_t* match = ctx.Output("GTMatchMask")->mutable_data<int32_t>();
  const T threshold = static_cast<T>(ctx.Attr<double>("ignore_thresh"));
  const YoloMaps& maps = targets.maps;
  ParallelFor(maps.images, ImagesPerBlock(targets), [&](int64_t begin, int64_t end) {
    for (int64_t image = begin; image < end; ++image) {
      T* image_mask = mask + image * maps.anchors * maps.Cells();
      MarkAlmostRight(targets, image, threshold, image_mask);
      double total = 0;
      for (int64_t t = 0; t < targets.count; ++t) {
        int32_t& anchor = match[image * targets.count + t];
        anchor = -1;
        if (!targets.IsBox(image, t)) {
          continue;
        }
        targets.Check(image, t);
        anchor = targets.BestAnchor(targets.Box(image, t));
        if (anchor < 0) {
          continue;
        }
        image_mask[anchor * maps.Cells() + targets.Cell(targets.Box(image, t))] = targets.Score(image, t);
        targets.ForEachTarget(image, t, anchor, [&](int64_t at, T weight, T target, bool by_distance) {
          const T x = targets.x[at];
          total += static_cast<double>((by_distance ? std::abs(x - target) : LogitLoss(x, target)) * weight);
        });
      }
      targets.ForEachConfidence(image, image_mask, [&](int64_t at, T weight, T target) {
        total += static_cast<double>(LogitLoss(targets.x[at], target) * weight);
      });
      loss[image] = static_cast<T>(total);
    }
  });
}

template <typename T>
void Yolov3LossGradKernel(const ExecutionContext& ctx) {
  const YoloTargets<T> targets(ctx);
  const T* d = ctx.Input("Loss@GRAD").data<T>();
  const T* mask = ctx.Input("ObjectnessMask").data<T>();
  const int32_t* match = ctx.Input("GTMatchMask").data<int32_t>();
  T* dx = ZerosOrNull<T>(ctx, "X@GRAD");
  const YoloMaps& maps = targets.maps;
  ParallelFor(maps.images, ImagesPerBlock(targets), [&](int64_t begin, int64_t end) {
    for (int64_t image = begin; image < end; ++image) {
      for (int64_t t = 0; t < targets.count; ++t) {
        const int32_t anchor = match[image * targets.count + t];
        if (anchor < 0) {
          continue;
        }
        HR_ENFORCE(anchor < maps.anchors, OutOfRange, "input GTMatchMask: box ", t, " of image ", image,
                   " matches anchor ", anchor, ", expected one in [0, ", maps.anchors, ")");
        targets.Check(image, t);
        targets.ForEachTarget(image, t, anchor, [&](int64_t at, T weight, T target, bool by_distance) {
          const T x = targets.x[at];
          const T slope = by_distance ? static_cast<T>((x > target) - (x < target)) : LogitSlope(x, target);
          dx[at] += slope * weight * d[image];
        });
      }
      targets.ForEachConfidence(image, mask + image * maps.anchors * maps.Cells(), [&](int64_t at, T weight, T target) {
        dx[at] = LogitSlope(targets.x[at], target) * weight * d[image];
      });
    }
  });
}

// Checks the inputs that the operator and its gradient share.
void CheckYolov3Loss(const InferShapeContext& ctx) {
  const auto anchors = static_cast<int32_t>(ctx.Attr<std::vector<int32_t>>("anchors").size() / 2);
  const auto& mask = ctx.Attr<std::vector<int32_t>>("anchor_mask");
  HR_ENFORCE(!mask.empty(), InvalidArgument, "attribute anchor_mask: expected at least one anchor");
  for (size_t i = 0; i < mask.size(); ++i) {
    HR_ENFORCE(0 <= mask[i] && mask[i] < anchors, InvalidArgument, "attribute anchor_mask: expected numbers in [0, ",
               anchors, "), got ", mask[i]);
    HR_ENFORCE(std::count(mask.begin(), mask.end(), mask[i]) == 1, InvalidArgument,
               "attribute anchor_mask: expected each anchor once, got ", mask[i], " again");
  }
  CheckYoloMaps(ctx, static_cast<int64_t>(mask.size()));
  const DDim x = ctx.InputDim("X");
  HR_ENFORCE(x[2] != 0 && x[3] != 0, InvalidArgument, "input X: expected maps that are not empty, got dims ",
             ToString(x));
  EnforceDims(ctx, "GTBox", {x[0], -1, kBoxSize});
  EnforceSameType(ctx, "GTBox", "X");
  const DDim boxes = {x[0], ctx.InputDim("GTBox")[1]};
  EnforceDims(ctx, "GTLabel", boxes);
  if (ctx.HasInput("GTScore")) {
    EnforceDims(ctx, "GTScore", boxes);
    EnforceSameType(ctx, "GTScore", "X");
  }
}

OpRegistrar&& Yolov3Slots(OpRegistrar&& op) {
  return std::move(op)
      .Input("X",
             "[N, predicted anchors (5 + class_num), H, W]: of each x, y, logarithms of width and height, confidence, "
             "classes")
      .Input(
          "GTBox",
          "[N, B, 4], dtype of X: the true boxes of each image, x, y, width and height in parts of it; those without "
          "extent are none")
      .Input("GTLabel", "int32 or int64 [N, B]: their classes")
      .Input("GTScore", "[N, B], dtype of X: how much each counts; 1 if absent", kDispensable)
      .With(YoloAttrs)
      .Attr<std::vector<int32_t>>("anchor_mask", "which of the anchors are predicted", std::vector<int32_t>{})
      .Attr<double>("ignore_thresh",
                    "what predicts a box that overlaps a true one by more need not say that there is nothing", 0.7)
      .Attr<bool>("use_label_smooth",
                  "whether a class should have probability 1 - s, and others s: the less of 1 / class_num and 1 / 40",
                  true)
      .KernelTypeFrom("X");
}

}  // namespace

HEADRACE_REGISTER_OP(yolov3_loss)
    .Comment(
        "The loss of each image. Each true box is to be predicted by the anchor whose shape is most like its own, if "
        "that is among the predicted ones, at the cell of its centre: cross entropy of x, y and classes, distance of "
        "the logarithms of the extents. Everything else is to say that there is nothing.")
    .With(Yolov3Slots)
    .Output("Loss", "[N]")
    .Output(
        "ObjectnessMask",
        "[N, predicted anchors, H, W]: the score of the true box that is to be predicted there, 0 if there is none, "
        "-1 where the confidence does not count")
    .Output("GTMatchMask", "int32 [N, B]: by which of the predicted anchors each true box is to be predicted; -1: none")
    .InferShape([](InferShapeContext& ctx) {
      CheckYolov3Loss(ctx);
      const DDim x = ctx.InputDim("X");
      const auto predicted = static_cast<int64_t>(ctx.Attr<std::vector<int32_t>>("anchor_mask").size());
      SetOutput(ctx, "Loss", {x[0]}, ctx.InputType("X"));
      SetOutput(ctx, "ObjectnessMask", {x[0], predicted, x[2], x[3]}, ctx.InputType("X"));
      SetOutput(ctx, "GTMatchMask", {x[0], ctx.InputDim("GTBox")[1]}, DataType::kInt32);
    })
    .Kernel<float>(Yolov3LossKernel<float>)
    .Kernel<double>(Yolov3LossKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "GTBox", "GTLabel", "GTScore"},
                               .outputs = {"ObjectnessMask", "GTMatchMask"},
                               .no_gradient = {"GTBox", "GTLabel", "GTScore"}}));

HEADRACE_REGISTER_OP(yolov3_loss_grad)
    .Comment("Gradient of yolov3_loss.")
    .With(Yolov3Slots)
    .Input("ObjectnessMask", "as in the operator")
    .Input("GTMatchMask", "as in the operator")
    .Input("Loss@GRAD", "gradient of Loss")
    .Input("ObjectnessMask@GRAD", "not used", kDispensable)
    .Input("GTMatchMask@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) {
      CheckYolov3Loss(ctx);
      const DDim x = ctx.InputDim("X");
      EnforceDims(ctx, "ObjectnessMask",
                  {x[0], static_cast<int64_t>(ctx.Attr<std::vector<int32_t>>("anchor_mask").size()), x[2], x[3]});
      EnforceDims(ctx, "GTMatchMask", {x[0], ctx.InputDim("GTBox")[1]});
      EnforceDims(ctx, "Loss@GRAD", {x[0]});
      EnforceSameType(ctx, "Loss@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(Yolov3LossGradKernel<float>)
    .Kernel<double>(Yolov3LossGradKernel<double>);

}  // namespace headrace::ops
