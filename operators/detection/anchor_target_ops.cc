// rpn_target_assign, retinanet_target_assign: what the anchors of images should say that objects are known of.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/detection/ground_truth.h"
#include "operators/random/random_stream.h"

namespace headrace::ops {
namespace {

// Overlaps that differ by less count as equal: Fluid's.
constexpr double kSameOverlap = 1e-5;

using Places = PoolVector<int64_t>;

struct AnchorRules {
  double positive_overlap;
  double negative_overlap;
  // How many anchors of an image are chosen, and how many objects among them; negative: all.
  int64_t examples;
  int64_t positives;
};

// The anchors of one image that may be chosen, and how they overlap its objects.
template <typename T>
class AnchorOverlaps {
 public:
  AnchorOverlaps(const T* anchors, const Places& inside, const PoolVector<T>& objects)
      : anchors_(inside.size()),
        objects_(objects.size() / kBoxSize),
        overlaps_(anchors_ * objects_),
        best_object_(anchors_, 0),
        best_of_anchor_(anchors_, T(0)),
        best_of_object_(objects_, T(0)) {
    for (size_t i = 0; i < anchors_; ++i) {
      const T* anchor = anchors + inside[i] * kBoxSize;
      for (size_t j = 0; j < objects_; ++j) {
        const T overlap = BoxOverlap(anchor, objects.data() + j * kBoxSize, T(1));
        overlaps_[i * objects_ + j] = overlap;
        best_of_object_[j] = std::max(best_of_object_[j], overlap);
        if (overlap > best_of_anchor_[i]) {
          best_of_anchor_[i] = overlap;
          best_object_[i] = j;
        }
      }
    }
  }

  // The anchors that overlap an object much, or as much as any anchor does.
  Places Positives(double least) const {
    Places found;
    for (size_t i = 0; i < anchors_; ++i) {
      bool is_best = false;
      for (size_t j = 0; j < objects_ && !is_best; ++j) {
        is_best = std::abs(overlaps_[i * objects_ + j] - best_of_object_[j]) < static_cast<T>(kSameOverlap);
      }
      if (is_best || (objects_ > 0 && best_of_anchor_[i] >= static_cast<T>(least))) {
        found.push_back(static_cast<int64_t>(i));
      }
    }
    return found;
  }
  // Those that overlap every object little.
  Places Negatives(double below) const {
    Places found;
    for (size_t i = 0; i < anchors_; ++i) {
      if (best_of_anchor_[i] < static_cast<T>(below)) {
        found.push_back(static_cast<int64_t>(i));
      }
    }
    return found;
  }
  size_t BestObject(int64_t anchor) const { return best_object_[static_cast<size_t>(anchor)]; }
  size_t anchors() const { return anchors_; }

 private:
  size_t anchors_;
  size_t objects_;
  PoolVector<T> overlaps_;
  PoolVector<size_t> best_object_;
  PoolVector<T> best_of_anchor_;
  PoolVector<T> best_of_object_;
};

// What is chosen of one image. An anchor may be the best one for an object and yet overlap it little: if it is chosen
// as a negative, too, it is one. Then there is a place in `located` that does not count, so that their number stays.
struct AnchorChoice {
  Places positives;
  Places negatives;
  Places located;  // `uncounted` places that do not count, then the positives
  size_t uncounted = 0;
};

template <typename T>
AnchorChoice ChooseAnchors(const AnchorOverlaps<T>& overlaps, const AnchorRules& rules, Chooser* chooser) {
  Places positives = overlaps.Positives(rules.positive_overlap);
  Places negatives = overlaps.Negatives(rules.negative_overlap);
  if (rules.examples >= 0) {
    chooser->Keep(rules.positives, &positives);
    chooser->Keep(rules.examples - static_cast<int64_t>(positives.size()), &negatives);
  }
  PoolVector<char> is_negative(overlaps.anchors(), 0);
  for (const int64_t anchor : negatives) {
    is_negative[static_cast<size_t>(anchor)] = 1;
  }
  AnchorChoice choice;
  for (const int64_t anchor : positives) {
    if (is_negative[static_cast<size_t>(anchor)] != 0) {
      choice.located.push_back(positives[0]);
      ++choice.uncounted;
    } else {
      choice.positives.push_back(anchor);
    }
  }
  choice.located.insert(choice.located.end(), choice.positives.begin(), choice.positives.end());
  choice.negatives = std::move(negatives);
  return choice;
}

// The anchors that lie within an image but for `margin` pixels; all if that is negative.
template <typename T>
Places AnchorsInside(const T* anchors, int64_t count, T margin, const T* info) {
  Places inside;
  for (int64_t i = 0; i < count; ++i) {
    const T* anchor = anchors + i * kBoxSize;
    const bool fits =
        anchor[0] >= -margin && anchor[1] >= -margin && anchor[2] < info[1] + margin && anchor[3] < info[0] + margin;
    if (margin < 0 || fits) {
      inside.push_back(i);
    }
  }
  return inside;
}

template <typename T>
void WriteColumn(const ExecutionContext& ctx, HashedName slot, const PoolVector<T>& values, DDim dims,
                 const LoDOffsets& offsets) {
  LoDTensor* out = ctx.Output(slot);
  dims[0] = dims.size() == 2 ? static_cast<int64_t>(values.size()) / dims[1] : static_cast<int64_t>(values.size());
  std::copy(values.begin(), values.end(), out->Resize(std::move(dims)).template mutable_data<T>());
  out->set_lod({offsets});
}

template <typename T>
void AssignAnchors(const ExecutionContext& ctx, const AnchorRules& rules, T margin, Chooser* chooser,
                   HashedName labels) {
  const GroundTruth truth(ctx, labels);
  const T* anchors = ctx.Input("Anchor").data<T>();
  const int64_t count = ctx.Input("Anchor").dims()[0];
  HR_ENFORCE(count == 0 || truth.images <= INT32_MAX / count, InvalidArgument, "input Anchor: ", count, " anchors of ",
             truth.images, " images are more than an int32 counts");
  const T* boxes = ctx.Input("GtBoxes").data<T>();
  PoolVector<int32_t> located;
  PoolVector<int32_t> scored;
  PoolVector<int32_t> targets;
  PoolVector<int32_t> counts;
  PoolVector<T> codes;
  PoolVector<T> weights;
  LoDOffsets located_offsets = {0};
  LoDOffsets scored_offsets = {0};
  LoDOffsets image_offsets = {0};
  const T no_variances[kBoxSize] = {1, 1, 1, 1};
  for (int64_t n = 0; n < truth.images; ++n) {
    const T* info = ImageInfoOf<T>(ctx, n);
    const Places inside = AnchorsInside(anchors, count, margin, info);
    PoolVector<T> objects;
    Places numbers;
    for (int64_t object = truth.Begin(n); object < truth.End(n); ++object) {
      if (!truth.IsCrowd(object)) {
        numbers.push_back(object);
        for (int64_t i = 0; i < kBoxSize; ++i) {
          objects.push_back(boxes[object * kBoxSize + i] * info[2]);
        }
      }
    }
    const AnchorOverlaps<T> overlaps(anchors, inside, objects);
    const AnchorChoice choice = ChooseAnchors(overlaps, rules, chooser);
    const auto number = [&](int64_t place) {
      return static_cast<int32_t>(n * count + inside[static_cast<size_t>(place)]);
    };
    for (size_t i = 0; i < choice.located.size(); ++i) {
      const int64_t place = choice.located[i];
      located.push_back(number(place));
      T code[kBoxSize];
      EncodeBox(CenteredBox<T>(objects.data() + overlaps.BestObject(place) * kBoxSize, T(1)),
                CenteredBox<T>(anchors + inside[static_cast<size_t>(place)] * kBoxSize, T(1)), no_variances, code);
      codes.insert(codes.end(), code, code + kBoxSize);
      weights.insert(weights.end(), kBoxSize, T(i < choice.uncounted ? 0 : 1));
    }
    for (const int64_t place : choice.positives) {
      scored.push_back(number(place));
      targets.push_back(truth.labels == nullptr ? 1 : truth.labels[numbers[overlaps.BestObject(place)]]);
    }
    for (const int64_t place : choice.negatives) {
      scored.push_back(number(place));
      targets.push_back(0);
    }
    counts.push_back(static_cast<int32_t>(choice.located.size()) + 1);
    located_offsets.push_back(located.size());
    scored_offsets.push_back(scored.size());
    image_offsets.push_back(counts.size());
  }
  WriteColumn(ctx, "LocationIndex", located, {-1}, located_offsets);
  WriteColumn(ctx, "ScoreIndex", scored, {-1}, scored_offsets);
  WriteColumn(ctx, "TargetLabel", targets, {-1, 1}, scored_offsets);
  WriteColumn(ctx, "TargetBBox", codes, {-1, kBoxSize}, located_offsets);
  WriteColumn(ctx, "BBoxInsideWeight", weights, {-1, kBoxSize}, located_offsets);
  if (ctx.HasOutput("ForegroundNumber")) {
    WriteColumn(ctx, "ForegroundNumber", counts, {-1, 1}, image_offsets);
  }
}

template <typename T>
void RpnTargetAssignKernel(const ExecutionContext& ctx) {
  const int32_t examples = ctx.Attr<int32_t>("rpn_batch_size_per_im");
  const double fraction = ctx.Attr<double>("rpn_fg_fraction");
  const bool some = examples > 0 && fraction > 0;
  const AnchorRules rules = {ctx.Attr<double>("rpn_positive_overlap"), ctx.Attr<double>("rpn_negative_overlap"),
                             some ? examples : -1, static_cast<int64_t>(fraction * examples)};
  Chooser chooser(ctx);
  AssignAnchors(ctx, rules, static_cast<T>(ctx.Attr<double>("rpn_straddle_thresh")), &chooser, "");
}

template <typename T>
void RetinanetTargetAssignKernel(const ExecutionContext& ctx) {
  const AnchorRules rules = {ctx.Attr<double>("positive_overlap"), ctx.Attr<double>("negative_overlap"), -1, -1};
  Chooser chooser;
  AssignAnchors(ctx, rules, T(-1), &chooser, "GtLabels");
}

void RegisterAnchorTargets(OpRegistrar&& op, HashedName labels) {
  More(op)
      .Input("Anchor", "[M, 4] (left, upper, right, lower): the anchors of each image")
      .With(GroundTruthInputs, labels)
      .Output("LocationIndex",
              "int32 [F], with a LoD: which anchors see objects, of all N M of the batch; those of"
              " weight 0 only fill up")
      .Output("ScoreIndex", "int32 [S], with a LoD: those that see objects, and those that see none")
      .Output("TargetLabel", "int32 [S, 1], the LoD of ScoreIndex: what they see, 0 for nothing")
      .Output("TargetBBox", "[F, 4], the LoD of LocationIndex: where the objects lie as seen from the anchors")
      .Output("BBoxInsideWeight", "[F, 4], the LoD of LocationIndex: 1, or 0 for what does not count")
      .KernelTypeFrom("Anchor")
      .InferShape([labels](InferShapeContext& ctx) {
        CheckSeed(ctx);
        EnforceDims(ctx, "Anchor", {-1, kBoxSize});
        CheckGroundTruth(ctx, "Anchor", labels);
        if (ctx.IsRuntime()) {
          return;  // the kernel knows how many are chosen
        }
        const DataType type = ctx.InputType("Anchor");
        SetOutput(ctx, "LocationIndex", {-1}, DataType::kInt32);
        SetOutput(ctx, "ScoreIndex", {-1}, DataType::kInt32);
        SetOutput(ctx, "TargetLabel", {-1, 1}, DataType::kInt32);
        SetOutput(ctx, "TargetBBox", {-1, kBoxSize}, type);
        SetOutput(ctx, "BBoxInsideWeight", {-1, kBoxSize}, type);
        for (const HashedName slot : {HashedName("LocationIndex"), HashedName("ScoreIndex"), HashedName("TargetLabel"),
                                      HashedName("TargetBBox"), HashedName("BBoxInsideWeight")}) {
          ctx.SetOutputLoDLevel(slot, 1);
        }
        if (!labels.empty()) {
          SetOutput(ctx, "ForegroundNumber", {ctx.InputDim("ImInfo")[0], 1}, DataType::kInt32);
          ctx.SetOutputLoDLevel("ForegroundNumber", 1);
        }
      })
      .Register();
}

HEADRACE_REGISTER_OPS(anchor_target_ops) {
  RegisterAnchorTargets(
      OpRegistrar("rpn_target_assign")
          .Comment("Which anchors a region proposal network learns from, and what (S. Ren et al., Faster R-CNN, 2015).")
          .Kernel<float>(RpnTargetAssignKernel<float>)
          .Kernel<double>(RpnTargetAssignKernel<double>)
          .Attr<int32_t>("rpn_batch_size_per_im", "how many anchors of an image are chosen; 0 or less: all", 256)
          .Attr<double>("rpn_straddle_thresh",
                        "by how many pixels anchors may lie beyond the image; negative: by any number", 0.0)
          .Attr<double>("rpn_positive_overlap", "anchors that overlap an object so much see it", 0.7)
          .Attr<double>("rpn_negative_overlap", "anchors that overlap all objects less see none", 0.3)
          .Attr<double>("rpn_fg_fraction",
                        "the greatest part of those chosen that sees objects; 0 or less: all are"
                        " chosen",
                        0.25)
          .With(ChooserSlots),
      "");
  RegisterAnchorTargets(
      OpRegistrar("retinanet_target_assign")
          .Comment("What the anchors of images should say (T.-Y. Lin et al., Focal loss, 2017).")
          .Kernel<float>(RetinanetTargetAssignKernel<float>)
          .Kernel<double>(RetinanetTargetAssignKernel<double>)
          .Output("ForegroundNumber",
                  "int32 [N, 1], with a LoD: how many anchors of each image see objects, and one more")
          .Attr<double>("positive_overlap", "anchors that overlap an object so much see it", 0.5)
          .Attr<double>("negative_overlap", "anchors that overlap all objects less see none", 0.4),
      "GtLabels");
}

}  // namespace
}  // namespace headrace::ops
