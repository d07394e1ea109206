// positive_negative_pair: how many pairs of a query a ranking has in the right order.
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"

namespace headrace::ops {
namespace {

constexpr HashedName kSoFar[] = {"AccumulatePositivePair", "AccumulateNegativePair", "AccumulateNeutralPair"};

// A pair of equal scores is neutral only; Fluid's kernel counts it as negative, too, which its documentation does not
// say.
template <typename T>
void PairKernel(const ExecutionContext& ctx) {
  const LoDTensor& scores = ctx.Input("Score");
  const int64_t rows = scores.dims()[0];
  const int64_t width = scores.dims()[1];
  const int32_t column = ctx.Attr<int32_t>("column");
  const T* score = scores.data<T>() + (column < 0 ? column + width : column);
  const T* label = ctx.Input("Label").data<T>();
  const T* weight = ElementsOrNull<T>(ctx, "Weight");
  const int64_t* query = ctx.Input("QueryID").data<int64_t>();
  double positive = 0;
  double negative = 0;
  double neutral = 0;
  std::unordered_map<int64_t, std::vector<int64_t>> rows_of;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<int64_t>& others = rows_of[query[r]];
    for (const int64_t o : others) {
      if (label[o] == label[r]) {
        continue;
      }
      const double w = weight == nullptr ? 1 : (static_cast<double>(weight[o]) + static_cast<double>(weight[r])) / 2;
      const T s = score[o * width];
      const T t = score[r * width];
      (s == t ? neutral : (s > t) == (label[o] > label[r]) ? positive : negative) += w;
    }
    others.push_back(r);
  }
  const auto write = [&](HashedName slot, HashedName before, double count) {
    if (T* to = MutableOrNull<T>(ctx, slot)) {
      const T* so_far = ElementsOrNull<T>(ctx, before);
      *to = static_cast<T>(count + (so_far == nullptr ? 0 : static_cast<double>(*so_far)));
    }
  };
  write("PositivePair", kSoFar[0], positive);
  write("NegativePair", kSoFar[1], negative);
  write("NeutralPair", kSoFar[2], neutral);
}

void InferPairs(InferShapeContext& ctx) {
  EnforceRank(ctx, "Score", 2);
  const DDim score = ctx.InputDim("Score");
  for (const HashedName slot : HashedNames{"Label", "QueryID", "Weight"}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, {score[0], 1});
    }
  }
  EnforceSameType(ctx, "Label", "Score");
  EnforceType(ctx, "QueryID", DataType::kInt64);
  if (ctx.HasInput("Weight")) {
    EnforceSameType(ctx, "Weight", "Score");
  }
  const int32_t column = ctx.Attr<int32_t>("column");
  HR_ENFORCE(score[1] < 0 || (-score[1] <= column && column < score[1]), InvalidArgument,
             "attribute column: expected a column of Score of dims ", ToString(score), ", got ", column);
  for (const HashedName slot : kSoFar) {
    HR_ENFORCE(ctx.HasInput(slot) == ctx.HasInput(kSoFar[0]), InvalidArgument, "input ", slot,
               ": expected all of AccumulatePositivePair, AccumulateNegativePair and AccumulateNeutralPair or none");
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, {1});
      EnforceSameType(ctx, slot, "Score");
    }
  }
  for (const HashedName slot : HashedNames{"PositivePair", "NegativePair", "NeutralPair"}) {
    SetOutput(ctx, slot, {1}, ctx.InputType("Score"));
  }
}

}  // namespace

HEADRACE_REGISTER_OP(positive_negative_pair)
    .Comment(
        "Counts the pairs of rows of the same query with different labels: positive if their scores are in the order "
        "of their labels, neutral if they are equal, negative otherwise.")
    .Input("Score", "[N, width]")
    .Input("Label", "[N, 1], dtype of Score")
    .Input("QueryID", "int64 [N, 1]: the query that each row belongs to")
    .Input("AccumulatePositivePair", "[1]: PositivePair of the batches before", kDispensable)
    .Input("AccumulateNegativePair", "[1]: NegativePair of the batches before", kDispensable)
    .Input("AccumulateNeutralPair", "[1]: NeutralPair of the batches before", kDispensable)
    .Input("Weight", "[N, 1]: a pair counts as much as the mean of its weights; 1 if absent", kDispensable)
    .Output("PositivePair", "[1], dtype of Score; may be AccumulatePositivePair")
    .Output("NegativePair", "[1]; may be AccumulateNegativePair")
    .Output("NeutralPair", "[1]; may be AccumulateNeutralPair", kDispensable)
    .InPlace("PositivePair", "AccumulatePositivePair")
    .InPlace("NegativePair", "AccumulateNegativePair")
    .InPlace("NeutralPair", "AccumulateNeutralPair")
    .Attr<int32_t>("column", "the column of Score that holds the scores; negative: counted from the end", 0)
    .InferShape(InferPairs)
    .KernelTypeFrom("Score")
    .Kernel<float>(PairKernel<float>)
    .Kernel<double>(PairKernel<double>);

}  // namespace headrace::ops
