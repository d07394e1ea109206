// generate_proposal_labels: which regions a detector learns from, and what.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/detection/ground_truth.h"
#include "operators/random/random_stream.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

struct RegionRules {
  explicit RegionRules(const AttributeIndex& op)
      : examples(op.Attr<int32_t>("batch_size_per_im")),
        positives(static_cast<int64_t>(std::floor(examples * op.Attr<double>("fg_fraction")))),
        classes(op.Attr<int32_t>("class_nums")),
        positive_overlap(op.Attr<double>("fg_thresh")),
        high(op.Attr<double>("bg_thresh_hi")),
        low(op.Attr<double>("bg_thresh_lo")),
        one_code(op.Attr<bool>("is_cls_agnostic")),
        cascade(op.Attr<bool>("is_cascade_rcnn")) {}

  int64_t examples;   // of an image
  int64_t positives;  // the most among them
  int64_t classes;
  double positive_overlap;
  double high;
  double low;
  bool one_code;  // for all classes
  bool cascade;
};

// What one batch gets, row by row.
template <typename T>
struct RegionTargets {
  PoolVector<T> rois;
  PoolVector<int32_t> labels;
  PoolVector<T> codes;
  PoolVector<T> weights;
  LoDOffsets offsets = {0};
};

// The objects of an image and the regions that were found in it, in its size before it was scaled. A detector of a
// cascade gets the regions of the one before, of which the first ones are the objects again.
template <typename T>
PoolVector<T> RegionsOf(const T* objects, int64_t object_count, const T* rois, int64_t roi_count, T scale,
                        bool cascade) {
  PoolVector<T> boxes(objects, objects + object_count * kBoxSize);
  for (int64_t r = cascade ? object_count : 0; r < roi_count; ++r) {
    const T* roi = rois + r * kBoxSize;
    const bool has_pixels = roi[2] - roi[0] + scale > 0 && roi[3] - roi[1] + scale > 0;
    if (has_pixels || !cascade) {
      for (int64_t i = 0; i < kBoxSize; ++i) {
        boxes.push_back(roi[i] / scale);
      }
    }
  }
  return boxes;
}

template <typename T>
void TargetsOfImage(const RegionRules& rules, const GroundTruth& truth, int64_t image, const PoolVector<T>& boxes,
                    const T* objects, const std::vector<float>& variances, T scale, Chooser* chooser,
                    RegionTargets<T>* to) {
  const int64_t first = truth.Begin(image);
  const int64_t object_count = truth.End(image) - first;
  const auto box_count = static_cast<int64_t>(boxes.size()) / kBoxSize;
  PoolVector<int64_t> positives;
  PoolVector<int64_t> negatives;
  PoolVector<int64_t> object_of(static_cast<size_t>(box_count), 0);
  for (int64_t i = 0; i < box_count; ++i) {
    T best = 0;
    for (int64_t j = 0; j < object_count; ++j) {
      const T overlap = BoxOverlap(boxes.data() + i * kBoxSize, objects + j * kBoxSize, T(1));
      if (overlap > best) {
        best = overlap;
        object_of[static_cast<size_t>(i)] = j;
      }
    }
    if (i < object_count && truth.IsCrowd(first + i)) {
      continue;  // many objects are neither one nor none
    }
    if (object_count > 0 && best >= static_cast<T>(rules.positive_overlap)) {
      positives.push_back(i);
    } else if (best >= static_cast<T>(rules.low) && best < static_cast<T>(rules.high)) {
      negatives.push_back(i);
    }
  }
  if (!rules.cascade) {
    chooser->Keep(rules.positives, &positives);
    chooser->Keep(rules.examples - static_cast<int64_t>(positives.size()), &negatives);
  }
  const T divisors[kBoxSize] = {static_cast<T>(variances[0]), static_cast<T>(variances[1]),
                                static_cast<T>(variances[2]), static_cast<T>(variances[3])};
  const auto width = static_cast<size_t>(rules.classes * kBoxSize);
  const auto add = [&](int64_t i, int32_t label) {
    for (int64_t k = 0; k < kBoxSize; ++k) {
      to->rois.push_back(boxes[static_cast<size_t>(i * kBoxSize + k)] * scale);
    }
    to->labels.push_back(label);
    to->codes.resize(to->codes.size() + width, T(0));
    to->weights.resize(to->weights.size() + width, T(0));
    if (label > 0) {
      const size_t at = to->codes.size() - width + static_cast<size_t>(rules.one_code ? 1 : label) * kBoxSize;
      EncodeBox(CenteredBox<T>(objects + object_of[static_cast<size_t>(i)] * kBoxSize, T(1)),
                CenteredBox<T>(boxes.data() + i * kBoxSize, T(1)), divisors, to->codes.data() + at);
      std::fill_n(to->weights.begin() + static_cast<int64_t>(at), kBoxSize, T(1));
    }
  };
  for (const int64_t i : positives) {
    const int64_t object = first + object_of[static_cast<size_t>(i)];
    const int32_t label = truth.labels[object];
    // With one code for all classes, class_nums counts codes.
    HR_ENFORCE(0 <= label && (rules.one_code || label < rules.classes), OutOfRange, "input GtClasses: object ", object,
               " has class ", label, ", expected one in [0, ", rules.classes, ")");
    add(i, label);
  }
  for (const int64_t i : negatives) {
    add(i, 0);
  }
  to->offsets.push_back(to->labels.size());
}

template <typename T, typename Element>
void WriteRegionRows(const ExecutionContext& ctx, HashedName slot, const PoolVector<Element>& rows, int64_t width,
                     const LoDOffsets& offsets) {
  LoDTensor* out = ctx.Output(slot);
  out->Resize({static_cast<int64_t>(offsets.back()), width});
  std::copy(rows.begin(), rows.end(), out->mutable_data<Element>());
  out->set_lod({offsets});
}

template <typename T>
void GenerateProposalLabelsKernel(const ExecutionContext& ctx) {
  const RegionRules rules(ctx.attrs());
  const GroundTruth truth(ctx, "GtClasses");
  const LoDOffsets& rois = SequencesOf(ctx, "RpnRois");
  HR_ENFORCE(SequenceCount(rois) == truth.images, InvalidArgument,
             "input RpnRois: expected a sequence of regions for each of the ", truth.images,
             " images of input ImInfo, got ", SequenceCount(rois));
  const auto& variances = ctx.Attr<std::vector<float>>("bbox_reg_weights");
  Chooser chooser(ctx);
  RegionTargets<T> targets;
  for (int64_t n = 0; n < truth.images; ++n) {
    const T scale = ImageInfoOf<T>(ctx, n)[2];
    const T* objects = ctx.Input("GtBoxes").data<T>() + truth.Begin(n) * kBoxSize;
    const auto begin = static_cast<int64_t>(rois[static_cast<size_t>(n)]);
    const auto end = static_cast<int64_t>(rois[static_cast<size_t>(n) + 1]);
    const PoolVector<T> boxes =
        RegionsOf(objects, truth.End(n) - truth.Begin(n), ctx.Input("RpnRois").data<T>() + begin * kBoxSize,
                  end - begin, scale, rules.cascade);
    TargetsOfImage(rules, truth, n, boxes, objects, variances, scale, &chooser, &targets);
  }
  WriteRegionRows<T>(ctx, "Rois", targets.rois, kBoxSize, targets.offsets);
  WriteRegionRows<T>(ctx, "LabelsInt32", targets.labels, 1, targets.offsets);
  WriteRegionRows<T>(ctx, "BboxTargets", targets.codes, rules.classes * kBoxSize, targets.offsets);
  WriteRegionRows<T>(ctx, "BboxInsideWeights", targets.weights, rules.classes * kBoxSize, targets.offsets);
  WriteRegionRows<T>(ctx, "BboxOutsideWeights", targets.weights, rules.classes * kBoxSize, targets.offsets);
}

void InferProposalLabels(InferShapeContext& ctx) {
  CheckSeed(ctx);
  EnforceDims(ctx, "RpnRois", {-1, kBoxSize});
  EnforceSequences(ctx, "RpnRois", 2);
  CheckGroundTruth(ctx, "RpnRois", "GtClasses");
  const int32_t classes = ctx.Attr<int32_t>("class_nums");
  const int32_t least = ctx.Attr<bool>("is_cls_agnostic") ? 2 : 1;
  HR_ENFORCE(classes >= least, InvalidArgument, "attribute class_nums: expected ", least, " or more, got ", classes);
  const auto& weights = ctx.Attr<std::vector<float>>("bbox_reg_weights");
  HR_ENFORCE(weights.size() == 4 && std::all_of(weights.begin(), weights.end(), [](float w) { return w > 0; }),
             InvalidArgument, "attribute bbox_reg_weights: expected 4 positive numbers, got ", weights.size());
  if (ctx.IsRuntime()) {
    return;  // the kernel knows how many are chosen
  }
  const DataType type = ctx.InputType("RpnRois");
  const int64_t width = int64_t{classes} * kBoxSize;
  SetOutput(ctx, "Rois", {-1, kBoxSize}, type);
  SetOutput(ctx, "LabelsInt32", {-1, 1}, DataType::kInt32);
  for (const HashedName slot :
       {HashedName("BboxTargets"), HashedName("BboxInsideWeights"), HashedName("BboxOutsideWeights")}) {
    SetOutput(ctx, slot, {-1, width}, type);
    ctx.SetOutputLoDLevel(slot, 1);
  }
  ctx.SetOutputLoDLevel("Rois", 1);
  ctx.SetOutputLoDLevel("LabelsInt32", 1);
}

}  // namespace

HEADRACE_REGISTER_OP(generate_proposal_labels)
    .Comment("Which regions a detector learns from, and what (S. Ren et al., Faster R-CNN, 2015).")
    .Input("RpnRois", "[R, 4] (left, upper, right, lower), with a LoD: the regions of each image")
    .With(GroundTruthInputs, HashedName("GtClasses"))
    .Output("Rois", "[P, 4], with a LoD: the regions that were chosen, those of objects first")
    .Output("LabelsInt32", "int32 [P, 1], the LoD of Rois: the classes of their objects, 0 for none")
    .Output("BboxTargets",
            "[P, 4 class_nums], the LoD of Rois: where the object lies as seen from the region, in the"
            " columns of its class")
    .Output("BboxInsideWeights", "dims and LoD of BboxTargets: 1 in these columns")
    .Output("BboxOutsideWeights", "the same")
    .Attr<int32_t>("batch_size_per_im", "how many regions of an image are chosen", 256)
    .Attr<double>("fg_fraction", "the greatest part of them that has objects", 0.25)
    .Attr<double>("fg_thresh", "regions that overlap an object so much have it", 0.25)
    .Attr<double>("bg_thresh_hi", "regions whose greatest overlap lies below, ", 0.5)
    .Attr<double>("bg_thresh_lo", "and here or above, have none", 0.0)
    .Attr<std::vector<float>>("bbox_reg_weights", "four numbers: the variances", {0.1F, 0.1F, 0.2F, 0.2F})
    .Attr<int32_t>("class_nums", "how many classes there are, 0 for no object; with is_cls_agnostic, 2", 81)
    .Attr<bool>("is_cls_agnostic", "whether the columns of class 1 are those of all classes", false)
    .Attr<bool>("is_cascade_rcnn",
                "whether the regions are those of a detector before: all that fit are chosen, without the first ones,"
                " which are the objects",
                false)
    .With(ChooserSlots)
    .InferShape(InferProposalLabels)
    .Kernel<float>(GenerateProposalLabelsKernel<float>)
    .Kernel<double>(GenerateProposalLabelsKernel<double>);

}  // namespace headrace::ops
