// target_assign: what each prior box is to predict.
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

void CheckBatch(HashedName slot, const LoDOffsets& sequences, int64_t batch) {
  HR_ENFORCE(SequenceCount(sequences) == batch, InvalidArgument, "input ", slot, ": expected ", batch,
             " sequences, one for each row of MatchIndices, got ", SequenceCount(sequences));
}

template <typename T>
void TargetAssignKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const LoDTensor& match_tensor = ctx.Input("MatchIndices");
  const LoDOffsets& sequences = SequencesOf(ctx, "X");
  const int64_t batch = match_tensor.dims()[0];
  const int64_t m = match_tensor.dims()[1];
  const int64_t p = x_tensor.dims()[1];
  const int64_t k = x_tensor.dims()[2];
  CheckBatch("X", sequences, batch);
  const T* x = x_tensor.data<T>();
  const int32_t* match = match_tensor.data<int32_t>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  float* weight = ctx.Output("OutWeight")->mutable_data<float>();
  const T mismatch = static_cast<T>(ctx.Attr<int32_t>("mismatch_value"));
  const auto assign = [=, &sequences](int64_t s) {
    const auto begin = static_cast<int64_t>(sequences[static_cast<size_t>(s)]);
    const auto end = static_cast<int64_t>(sequences[static_cast<size_t>(s + 1)]);
    for (int64_t i = s * m; i < (s + 1) * m; ++i) {
      weight[i] = match[i] < 0 ? 0.0F : 1.0F;
      if (match[i] < 0) {
        std::fill_n(out + i * k, k, mismatch);
        continue;
      }
      HR_ENFORCE(match[i] < end - begin && p > 0, OutOfRange, "input MatchIndices: row ", s, " matches ", match[i],
                 ", but that sequence of X has ", p > 0 ? end - begin : 0);
      std::copy_n(x + ((begin + match[i]) * p + (i - s * m) % p) * k, k, out + i * k);
    }
  };
  ParallelForEach(batch, assign, m * (k + 8));
  if (!ctx.HasInput("NegIndices")) {
    return;
  }
  const int32_t* negative = ctx.Input("NegIndices").data<int32_t>();
  const LoDOffsets& negatives = SequencesOf(ctx, "NegIndices");
  CheckBatch("NegIndices", negatives, batch);
  ForEachSequence(negatives, [&](int64_t s, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      HR_ENFORCE(0 <= negative[i] && negative[i] < m, OutOfRange, "input NegIndices: row ", i, " is ", negative[i],
                 ", expected one in [0, ", m, ")");
      std::fill_n(out + (s * m + negative[i]) * k, k, mismatch);
      weight[s * m + negative[i]] = 1;
    }
  });
}

}  // namespace

HEADRACE_REGISTER_OP(target_assign)
    .Comment(
        "For each prior box of each image, the row of X that it matches, with weight 1; mismatch_value, with weight 0, "
        "if it matches none, or with weight 1, if it is to be learned that there is nothing.")
    .Input("X", "[rows, P, K] with a LoD of one level, a sequence for each image; of a row, box j gets part j % P")
    .Input("MatchIndices", "int32 [N, M]: which row of its sequence each box matches; -1: none")
    .Input("NegIndices", "int32 [negatives, 1] with LoD, a sequence for each image: boxes with nothing", kDispensable)
    .Output("Out", "[N, M, K], dtype of X")
    .Output("OutWeight", "float32 [N, M, 1]")
    .Attr<int32_t>("mismatch_value", "what stands where nothing matches", 0)
    .InferShape([](InferShapeContext& ctx) {
      EnforceSequences(ctx, "X", 3);
      EnforceRank(ctx, "X", 3);
      EnforceLevelsAtMost(ctx, "X", 1);
      EnforceRank(ctx, "MatchIndices", 2);
      EnforceType(ctx, "MatchIndices", DataType::kInt32);
      if (ctx.HasInput("NegIndices")) {
        EnforceSequences(ctx, "NegIndices", 2);
        EnforceDims(ctx, "NegIndices", {-1, 1});
        EnforceLevelsAtMost(ctx, "NegIndices", 1);
        EnforceType(ctx, "NegIndices", DataType::kInt32);
      }
      const DDim match = ctx.InputDim("MatchIndices");
      SetOutput(ctx, "Out", {match[0], match[1], ctx.InputDim("X")[2]}, ctx.InputType("X"));
      SetOutput(ctx, "OutWeight", {match[0], match[1], 1}, DataType::kFloat32);
    })
    .KernelTypeFrom("X")
    .Kernel<float>(TargetAssignKernel<float>)
    .Kernel<double>(TargetAssignKernel<double>)
    .Kernel<int32_t>(TargetAssignKernel<int32_t>)
    .Kernel<int64_t>(TargetAssignKernel<int64_t>);

}  // namespace headrace::ops
