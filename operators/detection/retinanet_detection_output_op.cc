// retinanet_detection_output: the objects that the levels of a feature pyramid see.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/detection/ground_truth.h"

namespace headrace::ops {
namespace {

template <typename T>
struct SeenObject {
  int64_t kind;
  T score;
  T box[kBoxSize];
  size_t place;  // among all, in the order that equal ones keep
};

template <typename T>
using SeenObjects = PoolVector<SeenObject<T>>;

// Those that one level sees in image `n`, best first, before the image was scaled.
template <typename T>
void AppendSeen(const ExecutionContext& ctx, size_t level, int64_t n, T threshold, const T* info, SeenObjects<T>* to) {
  const DDim& dims = ctx.Input("Scores", level).dims();
  const int64_t anchors = dims[1];
  const int64_t kinds = dims[2];
  const T* scores = ctx.Input("Scores", level).data<T>() + n * anchors * kinds;
  const T* codes = ctx.Input("BBoxes", level).data<T>() + n * anchors * kBoxSize;
  const T* priors = ctx.Input("Anchors", level).data<T>();
  const T variances[kBoxSize] = {1, 1, 1, 1};
  for (const int64_t i : BestScores(scores, anchors * kinds, 1, threshold, ctx.Attr<int32_t>("nms_top_k"))) {
    const int64_t anchor = i / kinds;
    SeenObject<T> seen{i % kinds, scores[i], {}, to->size()};
    DecodeBox(codes + anchor * kBoxSize, CenteredBox<T>(priors + anchor * kBoxSize, T(1)), variances, T(1),
              std::numeric_limits<T>::infinity(), seen.box);
    std::transform(seen.box, seen.box + kBoxSize, seen.box, [info](T place) { return place / info[2]; });
    ClipBox(seen.box, LastColumn(info), LastRow(info), seen.box);
    to->push_back(seen);
  }
}

// Best first.
template <typename T>
void SortSeen(SeenObjects<T>* seen) {
  std::sort(seen->begin(), seen->end(), [](const SeenObject<T>& a, const SeenObject<T>& b) {
    return a.score > b.score || (a.score == b.score && a.place < b.place);
  });
}

// Those of an image that overlap no better one of their kind much, best first.
template <typename T>
SeenObjects<T> BestSeen(const AttributeIndex& op, SeenObjects<T> seen, int64_t kinds) {
  SortSeen(&seen);
  const auto overlap = [&seen](int64_t a, int64_t b) {
    return TouchingOverlap(seen[static_cast<size_t>(a)].box, seen[static_cast<size_t>(b)].box, T(1));
  };
  SeenObjects<T> kept;
  for (int64_t kind = 0; kind < kinds; ++kind) {
    PoolVector<int64_t> candidates;
    for (size_t i = 0; i < seen.size(); ++i) {
      if (seen[i].kind == kind) {
        candidates.push_back(static_cast<int64_t>(i));
      }
    }
    for (const int64_t i : SuppressOverlaps(candidates, static_cast<T>(op.Attr<double>("nms_threshold")),
                                            static_cast<T>(op.Attr<double>("nms_eta")), -1, overlap)) {
      kept.push_back(seen[static_cast<size_t>(i)]);
      kept.back().place = kept.size();
    }
  }
  SortSeen(&kept);
  const int32_t most = op.Attr<int32_t>("keep_top_k");
  if (most >= 0 && static_cast<size_t>(most) < kept.size()) {
    kept.resize(static_cast<size_t>(most));
  }
  return kept;
}

template <typename T>
void RetinanetDetectionOutputKernel(const ExecutionContext& ctx) {
  const size_t levels = ctx.InputSize("Scores");
  const DDim& dims = ctx.Input("Scores").dims();
  SeenObjects<T> all;
  LoDOffsets offsets = {0};
  for (int64_t n = 0; n < dims[0]; ++n) {
    SeenObjects<T> seen;
    for (size_t level = 0; level < levels; ++level) {
      // The last level has no threshold: Fluid's.
      const T threshold = level + 1 < levels ? static_cast<T>(ctx.Attr<double>("score_threshold")) : T(0);
      AppendSeen(ctx, level, n, threshold, ImageInfoOf<T>(ctx, n), &seen);
    }
    const SeenObjects<T> kept = BestSeen(ctx.attrs(), std::move(seen), dims[2]);
    all.insert(all.end(), kept.begin(), kept.end());
    offsets.push_back(all.size());
  }
  LoDTensor* out = ctx.Output("Out");
  T* to = out->Resize({static_cast<int64_t>(all.size()), 2 + kBoxSize}).template mutable_data<T>();
  for (const SeenObject<T>& object : all) {
    *to++ = static_cast<T>(object.kind + 1);
    *to++ = object.score;
    to = std::copy_n(object.box, kBoxSize, to);
  }
  out->set_lod({std::move(offsets)});
}

void InferRetinanetDetectionOutput(InferShapeContext& ctx) {
  const size_t levels = ctx.InputSize("Scores");
  HR_ENFORCE(levels > 0 && ctx.InputSize("BBoxes") == levels && ctx.InputSize("Anchors") == levels, InvalidArgument,
             "inputs Scores, BBoxes and Anchors: expected a variable for each of some levels, got ", levels, ", ",
             ctx.InputSize("BBoxes"), " and ", ctx.InputSize("Anchors"));
  EnforceRank(ctx, "Scores", 3);
  const DDim first = ctx.InputDim("Scores");
  CheckImageInfo(ctx, "Scores");
  EnforceDims(ctx, "ImInfo", {first[0], 3});
  for (size_t level = 0; level < levels; ++level) {
    EnforceDims(ctx, "Scores", {first[0], -1, first[2]}, level);
    const int64_t anchors = ctx.InputDim("Scores", level)[1];
    EnforceDims(ctx, "BBoxes", {first[0], anchors, kBoxSize}, level);
    EnforceDims(ctx, "Anchors", {anchors, kBoxSize}, level);
    for (const HashedName slot : {HashedName("Scores"), HashedName("BBoxes"), HashedName("Anchors")}) {
      EnforceSameType(ctx, slot, "Scores", level);
    }
  }
  if (!ctx.IsRuntime()) {
    SetOutput(ctx, "Out", {-1, 2 + kBoxSize}, ctx.InputType("Scores"));
    ctx.SetOutputLoDLevel("Out", 1);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(retinanet_detection_output)
    .Comment("The objects that the levels of a feature pyramid see (T.-Y. Lin et al., Focal loss, 2017).")
    .Input("Scores", "[N, M, C] each: how likely each class but 0 is at the anchors of a level", kDuplicable)
    .Input("BBoxes", "[N, M, 4] each: where the object lies as seen from the anchor", kDuplicable)
    .Input("Anchors", "[M, 4] each (left, upper, right, lower)", kDuplicable)
    .Input("ImInfo", "[N, 3]: height and width of each image, and by how much it was scaled")
    .Output("Out",
            "[objects, 6], with a LoD: class, score and box, before the image was scaled, of those of each image,"
            " best first")
    .Attr<double>("score_threshold", "the score that those of all levels but the last exceed", 0.05)
    .Attr<int32_t>("nms_top_k", "how many of a level are looked at; negative: all", 1000)
    .Attr<double>("nms_threshold", "by how much they may overlap better ones of their class", 0.3)
    .Attr<double>("nms_eta", "if below 1, what multiplies a nms_threshold above 1/2 with each one that is kept", 1.0)
    .Attr<int32_t>("keep_top_k", "how many an image has at most; negative: any number", 100)
    .InferShape(InferRetinanetDetectionOutput)
    .Kernel<float>(RetinanetDetectionOutputKernel<float>)
    .Kernel<double>(RetinanetDetectionOutputKernel<double>);

}  // namespace headrace::ops
