// generate_proposals: where a region proposal network sees objects.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/detection/ground_truth.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// The boxes of one image, best first, and their scores.
template <typename T>
struct Proposals {
  PoolVector<T> boxes;
  PoolVector<T> scores;
};

// What one image is seen by: [A, H, W] scores and [4 A, H, W] codes, and [H, W, A, 4] anchors and variances.
template <typename T>
struct ProposalMaps {
  const T* scores;
  const T* codes;
  const T* anchors;
  const T* variances;
  int64_t places;  // H W
  int64_t shapes;  // A

  T Score(int64_t anchor) const { return scores[anchor % shapes * places + anchor / shapes]; }
  void Decode(int64_t anchor, T* box) const {
    // Boxes grow to 1000 / 16 times their anchors at most.
    const T max_log = std::log(T(1000) / 16);
    T code[kBoxSize];
    for (int64_t i = 0; i < kBoxSize; ++i) {
      code[i] = codes[(anchor % shapes * kBoxSize + i) * places + anchor / shapes];
    }
    DecodeBox(code, CenteredBox<T>(anchors + anchor * kBoxSize, T(1)), variances + anchor * kBoxSize, T(1), max_log,
              box);
  }
};

// Whether a box is as large as objects may be, in pixels of the image before it was scaled, and not beside the image.
template <typename T>
bool IsLikeAnObject(const T* box, const T* info, T min_size) {
  const T width = box[2] - box[0];
  const T height = box[3] - box[1];
  return width / info[2] + 1 >= min_size && height / info[2] + 1 >= min_size && box[0] + (width + 1) / 2 <= info[1] &&
         box[1] + (height + 1) / 2 <= info[0];
}

template <typename T>
Proposals<T> ProposalsOf(const AttributeIndex& op, const ProposalMaps<T>& maps, const T* info) {
  const int64_t anchors = maps.places * maps.shapes;
  PoolVector<T> scores(static_cast<size_t>(anchors));
  for (int64_t i = 0; i < anchors; ++i) {
    scores[static_cast<size_t>(i)] = maps.Score(i);
  }
  const int64_t most = op.Attr<int32_t>("pre_nms_topN");
  const T everything = -std::numeric_limits<T>::infinity();
  const T min_size = std::max(static_cast<T>(op.Attr<double>("min_size")), T(1));
  Proposals<T> found;
  for (const int64_t anchor : BestScores(scores.data(), anchors, 1, everything, most > 0 ? most : -1)) {
    T box[kBoxSize];
    maps.Decode(anchor, box);
    ClipBox(box, info[1] - 1, info[0] - 1, box);
    if (IsLikeAnObject(box, info, min_size)) {
      found.boxes.insert(found.boxes.end(), box, box + kBoxSize);
      found.scores.push_back(scores[static_cast<size_t>(anchor)]);
    }
  }
  if (found.scores.empty()) {  // Fluid's: an image has one region at least
    return {PoolVector<T>(kBoxSize, T(0)), PoolVector<T>(1, T(0))};
  }
  const auto threshold = static_cast<T>(op.Attr<double>("nms_thresh"));
  if (threshold <= 0) {
    return found;
  }
  PoolVector<int64_t> order(found.scores.size());
  std::iota(order.begin(), order.end(), 0);
  const int64_t post = op.Attr<int32_t>("post_nms_topN");
  const auto overlap = [&found](int64_t a, int64_t b) {
    return TouchingOverlap(found.boxes.data() + a * kBoxSize, found.boxes.data() + b * kBoxSize, T(1));
  };
  Proposals<T> kept;
  for (const int64_t i :
       SuppressOverlaps(order, threshold, static_cast<T>(op.Attr<double>("eta")), post > 0 ? post : -1, overlap)) {
    const auto box = found.boxes.begin() + i * kBoxSize;
    kept.boxes.insert(kept.boxes.end(), box, box + kBoxSize);
    kept.scores.push_back(found.scores[static_cast<size_t>(i)]);
  }
  return kept;
}

template <typename T>
void GenerateProposalsKernel(const ExecutionContext& ctx) {
  const DDim& dims = ctx.Input("Scores").dims();
  const ProposalMaps<T> maps = {ctx.Input("Scores").data<T>(),
                                ctx.Input("BboxDeltas").data<T>(),
                                ctx.Input("Anchors").data<T>(),
                                ctx.Input("Variances").data<T>(),
                                dims[2] * dims[3],
                                dims[1]};
  PoolVector<Proposals<T>> of_images(static_cast<size_t>(dims[0]));
  const int64_t anchors = maps.shapes * maps.places;
  const auto propose = [=, &ctx, &of_images](int64_t n) {
    ProposalMaps<T> of_image = maps;
    of_image.scores += n * anchors;
    of_image.codes += n * anchors * kBoxSize;
    of_images[static_cast<size_t>(n)] = ProposalsOf(ctx.attrs(), of_image, ImageInfoOf<T>(ctx, n));
  };
  ParallelForEach(dims[0], propose, 16 * anchors);
  Proposals<T> all;
  LoDOffsets offsets = {0};
  for (const Proposals<T>& found : of_images) {
    all.boxes.insert(all.boxes.end(), found.boxes.begin(), found.boxes.end());
    all.scores.insert(all.scores.end(), found.scores.begin(), found.scores.end());
    offsets.push_back(all.scores.size());
  }
  const auto count = static_cast<int64_t>(all.scores.size());
  LoDTensor* rois = ctx.Output("RpnRois");
  std::copy(all.boxes.begin(), all.boxes.end(), rois->Resize({count, kBoxSize}).template mutable_data<T>());
  rois->set_lod({offsets});
  LoDTensor* scores = ctx.Output("RpnRoiProbs");
  std::copy(all.scores.begin(), all.scores.end(), scores->Resize({count, 1}).template mutable_data<T>());
  scores->set_lod({std::move(offsets)});
}

}  // namespace

HEADRACE_REGISTER_OP(generate_proposals)
    .Comment(
        "The regions that a region proposal network finds best, of those that overlap much the best one (S. Ren et "
        "al., Faster R-CNN, 2015).")
    .Input("Scores", "[N, A, H, W]: how much each anchor looks like an object")
    .Input("BboxDeltas", "[N, 4 A, H, W]: where the object lies as seen from each anchor")
    .Input("ImInfo", "[N, 3]: height and width of each image, and by how much it was scaled")
    .Input("Anchors", "[H, W, A, 4]")
    .Input("Variances", "[H, W, A, 4]")
    .Output("RpnRois",
            "[R, 4] (left, upper, right, lower), with a LoD: those of each image, best first; if there are"
            " none, a box of zeros")
    .Output("RpnRoiProbs", "[R, 1], the LoD of RpnRois: their scores")
    .Attr<int32_t>("pre_nms_topN", "how many anchors of an image are looked at; 0 or less: all")
    .Attr<int32_t>("post_nms_topN", "how many regions an image has at most; 0 or less: any number")
    .Attr<double>("nms_thresh", "by how much regions may overlap better ones; 0 or less: all are kept")
    .Attr<double>("min_size", "the least width and height, before the image was scaled; 1 at least")
    .Attr<double>("eta", "if below 1, what multiplies a nms_thresh above 1/2 with each region that is kept", 1.0)
    .InferShape([](InferShapeContext& ctx) {
      if (ctx.IsRuntime()) {
        EnforceRank(ctx, "Scores", 4);
        const DDim s = ctx.InputDim("Scores");
        EnforceDims(ctx, "BboxDeltas", {s[0], s[1] < 0 ? -1 : s[1] * kBoxSize, s[2], s[3]});
        EnforceSameType(ctx, "BboxDeltas", "Scores");
        CheckImageInfo(ctx, "Scores");
        EnforceDims(ctx, "ImInfo", {s[0], 3});
        for (const HashedName slot : {HashedName("Anchors"), HashedName("Variances")}) {
          EnforceDims(ctx, slot, {s[2], s[3], s[1], kBoxSize});
          EnforceSameType(ctx, slot, "Scores");
        }
        return;  // the kernel knows how many there are
      }
      // Programs declare maps with an extent for the batch twice: what they feed is compared.
      SetOutput(ctx, "RpnRois", {-1, kBoxSize}, ctx.InputType("Scores"));
      SetOutput(ctx, "RpnRoiProbs", {-1, 1}, ctx.InputType("Scores"));
      ctx.SetOutputLoDLevel("RpnRois", 1);
      ctx.SetOutputLoDLevel("RpnRoiProbs", 1);
    })
    .Kernel<float>(GenerateProposalsKernel<float>)
    .Kernel<double>(GenerateProposalsKernel<double>);

}  // namespace headrace::ops
