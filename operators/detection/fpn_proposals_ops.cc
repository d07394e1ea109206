// distribute_fpn_proposals, collect_fpn_proposals: regions on the levels of a feature pyramid, and all of them
// together.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/math/element_loop.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

template <typename T>
void DistributeFpnProposalsKernel(const ExecutionContext& ctx) {
  const int64_t lowest = ctx.Attr<int32_t>("min_level");
  const auto levels = static_cast<size_t>(ctx.Attr<int32_t>("max_level") - lowest + 1);
  const auto refer_scale = static_cast<T>(ctx.Attr<int32_t>("refer_scale"));
  const auto refer_level = static_cast<T>(ctx.Attr<int32_t>("refer_level"));
  const T* rois = ctx.Input("FpnRois").data<T>();
  PoolVector<PoolVector<int64_t>> rows(levels);
  PoolVector<LoDOffsets> offsets(levels, LoDOffsets{0});
  ForEachSequence(SequencesOf(ctx, "FpnRois"), [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T scale = std::sqrt(BoxArea(rois + r * kBoxSize, T(1)));
      // A box without an area is on the lowest level.
      const T level = std::floor(std::log2(scale / refer_scale + T(1e-6)) + refer_level) - static_cast<T>(lowest);
      const T last = static_cast<T>(levels - 1);
      rows[static_cast<size_t>(level > 0 ? std::min(level, last) : T(0))].push_back(r);
    }
    for (size_t level = 0; level < levels; ++level) {
      offsets[level].push_back(rows[level].size());
    }
  });
  int32_t* restore = ctx.Output("RestoreIndex")->mutable_data<int32_t>();
  int32_t place = 0;
  for (size_t level = 0; level < levels; ++level) {
    LoDTensor* out = ctx.Output("MultiFpnRois", level);
    T* to = out->Resize({static_cast<int64_t>(rows[level].size()), kBoxSize}).template mutable_data<T>();
    for (const int64_t r : rows[level]) {
      to = std::copy_n(rois + r * kBoxSize, kBoxSize, to);
      restore[r] = place++;
    }
    out->set_lod({std::move(offsets[level])});
  }
}

void InferDistributeFpnProposals(InferShapeContext& ctx) {
  EnforceDims(ctx, "FpnRois", {-1, kBoxSize});
  EnforceSequences(ctx, "FpnRois", 2);
  EnforceLevelsAtMost(ctx, "FpnRois", 1);
  const int64_t levels = int64_t{ctx.Attr<int32_t>("max_level")} - ctx.Attr<int32_t>("min_level") + 1;
  HR_ENFORCE(levels >= 1, InvalidArgument, "attributes min_level and max_level: expected min_level <= max_level, got ",
             ctx.Attr<int32_t>("min_level"), " and ", ctx.Attr<int32_t>("max_level"));
  HR_ENFORCE(static_cast<int64_t>(ctx.OutputSize("MultiFpnRois")) == levels, InvalidArgument,
             "output MultiFpnRois: expected a variable for each of the ", levels, " levels, got ",
             ctx.OutputSize("MultiFpnRois"));
  HR_ENFORCE(ctx.Attr<int32_t>("refer_scale") > 0, InvalidArgument, "attribute refer_scale: expected 1 or more, got ",
             ctx.Attr<int32_t>("refer_scale"));
  SetOutput(ctx, "RestoreIndex", {ctx.InputDim("FpnRois")[0], 1}, DataType::kInt32);
  for (size_t i = 0; !ctx.IsRuntime() && i < ctx.OutputSize("MultiFpnRois"); ++i) {
    SetOutput(ctx, "MultiFpnRois", {-1, kBoxSize}, ctx.InputType("FpnRois"), i);
    ctx.SetOutputLoDLevel("MultiFpnRois", 1, i);
  }
}

template <typename T>
struct ScoredRegion {
  T score;
  size_t level;
  size_t image;
  int64_t row;
  size_t place;  // among all, in the order that equal ones keep
};

template <typename T>
void CollectFpnProposalsKernel(const ExecutionContext& ctx) {
  PoolVector<ScoredRegion<T>> regions;
  const int64_t images = SequenceCount(SequencesOf(ctx, "MultiLevelRois"));
  for (size_t level = 0; level < ctx.InputSize("MultiLevelRois"); ++level) {
    const LoDOffsets& offsets = SequencesOf(ctx, "MultiLevelRois", level);
    HR_ENFORCE(SequenceCount(offsets) == images, InvalidArgument, "input MultiLevelRois: variable ", level, " has ",
               SequenceCount(offsets), " images, the first one ", images);
    HR_ENFORCE(SequencesOf(ctx, "MultiLevelScores", level) == offsets, InvalidArgument,
               "input MultiLevelScores: ", "variable ", level, ": expected the LoD of that of input MultiLevelRois");
    const T* scores = ctx.Input("MultiLevelScores", level).data<T>();
    ForEachSequence(offsets, [&](int64_t image, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        regions.push_back({scores[r], level, static_cast<size_t>(image), r, regions.size()});
      }
    });
  }
  // A NaN is the worst; of equal ones, the first of the lowest level is the best.
  std::sort(regions.begin(), regions.end(), [](const ScoredRegion<T>& a, const ScoredRegion<T>& b) {
    const bool same = a.score == b.score || (IsNaN(a.score) && IsNaN(b.score));
    return same ? a.place < b.place : a.score > b.score || IsNaN(b.score);
  });
  regions.resize(std::min(regions.size(), static_cast<size_t>(ctx.Attr<int32_t>("post_nms_topN"))));
  for (size_t i = 0; i < regions.size(); ++i) {
    regions[i].place = i;
  }
  std::sort(regions.begin(), regions.end(), [](const ScoredRegion<T>& a, const ScoredRegion<T>& b) {
    return a.image < b.image || (a.image == b.image && a.place < b.place);
  });
  LoDTensor* out = ctx.Output("FpnRois");
  T* to = out->Resize({static_cast<int64_t>(regions.size()), kBoxSize}).template mutable_data<T>();
  LoDOffsets offsets(static_cast<size_t>(images) + 1, 0);
  for (const ScoredRegion<T>& region : regions) {
    const T* roi = ctx.Input("MultiLevelRois", region.level).template data<T>() + region.row * kBoxSize;
    to = std::copy_n(roi, kBoxSize, to);
    ++offsets[region.image + 1];
  }
  for (size_t n = 1; n < offsets.size(); ++n) {
    offsets[n] += offsets[n - 1];
  }
  out->set_lod({std::move(offsets)});
}

void InferCollectFpnProposals(InferShapeContext& ctx) {
  const size_t levels = ctx.InputSize("MultiLevelRois");
  HR_ENFORCE(levels > 0 && ctx.InputSize("MultiLevelScores") == levels, InvalidArgument,
             "input MultiLevelScores: expected a variable for each one of input MultiLevelRois, of which there are ",
             levels, ", got ", ctx.InputSize("MultiLevelScores"));
  for (size_t i = 0; i < levels; ++i) {
    EnforceDims(ctx, "MultiLevelRois", {-1, kBoxSize}, i);
    EnforceSameType(ctx, "MultiLevelRois", "MultiLevelRois", i);
    EnforceDims(ctx, "MultiLevelScores", {ctx.InputDim("MultiLevelRois", i)[0], 1}, i);
    EnforceSameType(ctx, "MultiLevelScores", "MultiLevelRois", i);
  }
  HR_ENFORCE(ctx.Attr<int32_t>("post_nms_topN") >= 0, InvalidArgument,
             "attribute post_nms_topN: expected 0 or more, got ", ctx.Attr<int32_t>("post_nms_topN"));
  if (!ctx.IsRuntime()) {
    SetOutput(ctx, "FpnRois", {-1, kBoxSize}, ctx.InputType("MultiLevelRois"));
    ctx.SetOutputLoDLevel("FpnRois", 1);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(distribute_fpn_proposals)
    .Comment(
        "Regions by their sizes on the levels of a feature pyramid (T.-Y. Lin et al., Feature Pyramid Networks,"
        " 2017): floor(refer_level + log2(√area / refer_scale)).")
    .Input("FpnRois", "[R, 4] (left, upper, right, lower), with a LoD: the regions of each image")
    .Output("MultiFpnRois", "[rows, 4] each, with a LoD: the regions of each level, the lowest one first", kDuplicable)
    .Output("RestoreIndex", "int32 [R, 1]: where each region lies among those of all levels")
    .Attr<int32_t>("min_level", "the lowest level")
    .Attr<int32_t>("max_level", "the highest level")
    .Attr<int32_t>("refer_level", "the level of regions of refer_scale")
    .Attr<int32_t>("refer_scale", "the square root of an area, in pixels")
    .InferShape(InferDistributeFpnProposals)
    .Kernel<float>(DistributeFpnProposalsKernel<float>)
    .Kernel<double>(DistributeFpnProposalsKernel<double>);

HEADRACE_REGISTER_OP(collect_fpn_proposals)
    .Comment("The best regions of all levels of a feature pyramid (T.-Y. Lin et al., Feature Pyramid Networks, 2017).")
    .Input("MultiLevelRois", "[rows, 4] each, with a LoD: the regions of each level", kDuplicable)
    .Input("MultiLevelScores", "[rows, 1] each, with the same LoDs", kDuplicable)
    .Output("FpnRois", "[R, 4], with a LoD: those of each image, best first")
    .Attr<int32_t>("post_nms_topN", "how many there are at most, of all images together")
    .InferShape(InferCollectFpnProposals)
    .Kernel<float>(CollectFpnProposalsKernel<float>)
    .Kernel<double>(CollectFpnProposalsKernel<double>);

}  // namespace headrace::ops
