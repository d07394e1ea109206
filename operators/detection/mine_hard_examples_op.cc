// mine_hard_examples: of the prior boxes that match nothing, those that the loss is to count (W. Liu et al., SSD:
// single shot multibox detector, 2016; A. Shrivastava et al., Training region-based object detectors with online hard
// example mining, 2016).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/ranking.h"

namespace headrace::ops {
namespace {

template <typename T>
void MineHardExamplesKernel(const ExecutionContext& ctx) {
  const LoDTensor& match_tensor = ctx.Input("MatchIndices");
  const int64_t batch = match_tensor.dims()[0];
  const int64_t m = match_tensor.dims()[1];
  const bool hard = ctx.Text("mining_type") == "hard_example";
  const T* loss = ctx.Input("ClsLoss").data<T>();
  const T* more_loss = hard ? ElementsOrNull<T>(ctx, "LocLoss") : nullptr;
  const T* dist = ctx.Input("MatchDist").data<T>();
  const int32_t* match = match_tensor.data<int32_t>();
  const double ratio = ctx.Attr<double>("neg_pos_ratio");
  const T threshold = static_cast<T>(ctx.Attr<double>("neg_dist_threshold"));
  int32_t* updated = ctx.Output("UpdatedMatchIndices")->mutable_data<int32_t>();
  PoolVector<int32_t> negatives;
  LoDOffsets offsets = {0};
  PoolVector<int64_t> chosen;
  for (int64_t n = 0; n < batch; ++n, match += m, dist += m, updated += m) {
    chosen.clear();
    int64_t matches = 0;
    for (int64_t i = 0; i < m; ++i) {
      updated[i] = match[i];
      matches += match[i] < 0 ? 0 : 1;
      if (hard || (match[i] < 0 && dist[i] < threshold)) {
        chosen.push_back(i);
      }
    }
    const auto loss_of = [&](int64_t i) {
      return loss[n * m + i] + (more_loss == nullptr ? T(0) : more_loss[n * m + i]);
    };
    std::sort(chosen.begin(), chosen.end(), [&](int64_t a, int64_t b) {
      return Before(loss_of(a), loss_of(b)) || (!Before(loss_of(b), loss_of(a)) && a < b);
    });
    const double most =
        hard ? static_cast<double>(ctx.Attr<int32_t>("sample_size")) : std::trunc(static_cast<double>(matches) * ratio);
    if (static_cast<double>(chosen.size()) > most) {
      chosen.resize(static_cast<size_t>(most));
    }
    std::sort(chosen.begin(), chosen.end());
    auto next = chosen.begin();
    for (int64_t i = 0; i < m; ++i) {
      const bool is_chosen = next != chosen.end() && *next == i;
      next += is_chosen ? 1 : 0;
      if (is_chosen && match[i] < 0) {
        negatives.push_back(static_cast<int32_t>(i));
      } else if (hard && !is_chosen) {
        updated[i] = -1;
      }
    }
    offsets.push_back(negatives.size());
  }
  LoDTensor* out = ctx.Output("NegIndices");
  std::copy(negatives.begin(), negatives.end(),
            out->Resize({static_cast<int64_t>(negatives.size()), 1}).template mutable_data<int32_t>());
  out->set_lod({std::move(offsets)});
}

void InferMineHardExamples(InferShapeContext& ctx) {
  EnforceRank(ctx, "MatchIndices", 2);
  EnforceType(ctx, "MatchIndices", DataType::kInt32);
  const DDim dims = ctx.InputDim("MatchIndices");
  HR_ENFORCE(dims[1] <= INT32_MAX, InvalidArgument, "input MatchIndices: expected at most 2^31 - 1 columns, got dims ",
             ToString(dims));
  for (const HashedName slot : HashedNames{"ClsLoss", "LocLoss", "MatchDist"}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, dims);
      EnforceSameType(ctx, slot, "ClsLoss");
    }
  }
  if (ctx.Text("mining_type") == "hard_example") {
    HR_ENFORCE(ctx.Attr<int32_t>("sample_size") > 0, InvalidArgument,
               "attribute sample_size: expected 1 or more to mine hard examples, got ",
               ctx.Attr<int32_t>("sample_size"));
  } else {
    HR_ENFORCE(ctx.Attr<double>("neg_pos_ratio") > 0, InvalidArgument,
               "attribute neg_pos_ratio: expected a positive number, got ", ctx.Attr<double>("neg_pos_ratio"));
    const double threshold = ctx.Attr<double>("neg_dist_threshold");
    HR_ENFORCE(0 < threshold && threshold < 1, InvalidArgument,
               "attribute neg_dist_threshold: expected a number between 0 and 1, got ", threshold);
  }
  SetOutput(ctx, "UpdatedMatchIndices", dims, DataType::kInt32);
  if (!ctx.IsRuntime()) {  // the kernel knows how many there are
    SetOutput(ctx, "NegIndices", {-1, 1}, DataType::kInt32);
    ctx.SetOutputLoDLevel("NegIndices", 1);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(mine_hard_examples)
    .Comment(
        "Chooses, of each image, the prior boxes with the greatest losses. max_negative: of those that match nothing, "
        "neg_pos_ratio for each that does. hard_example: sample_size of all; the others match nothing any more.")
    .Input("ClsLoss", "[N, M]: losses of classification")
    .Input("LocLoss", "dims and dtype of ClsLoss: losses of localization, which hard_example adds", kDispensable)
    .Input("MatchIndices", "int32 [N, M]: what each box matches; -1: nothing")
    .Input("MatchDist", "dims and dtype of ClsLoss: how well")
    .Output("NegIndices", "int32 [negatives, 1] with LoD, a sequence for each image: the chosen boxes without a match")
    .Output("UpdatedMatchIndices", "int32 [N, M]: the final matches")
    .Attr<double>("neg_pos_ratio", "max_negative: how many to choose for each match", 1.0)
    .Attr<double>("neg_dist_threshold", "max_negative: boxes that match this well or better are not chosen", 0.5)
    .Attr<int32_t>("sample_size", "hard_example: how many to choose", 0)
    .Attr<std::string>("mining_type", "'max_negative' or 'hard_example'", "max_negative",
                       [](const std::string& type) {
                         HR_ENFORCE(type == "max_negative" || type == "hard_example", InvalidArgument,
                                    "attribute mining_type: expected 'max_negative' or 'hard_example', got '", type,
                                    "'");
                       })
    .InferShape(InferMineHardExamples)
    .KernelTypeFrom("ClsLoss")
    .Kernel<float>(MineHardExamplesKernel<float>)
    .Kernel<double>(MineHardExamplesKernel<double>);

}  // namespace headrace::ops
