// accuracy: how many rows have their label among their top k.
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// A row counts as correct if its label is among its indices. The type of Out does not matter.
void AccuracyKernel(const ExecutionContext& ctx) {
  const LoDTensor& indices_tensor = ctx.Input("Indices");
  const int64_t rows = indices_tensor.dims()[0];
  const int64_t k = indices_tensor.dims()[1];
  const int64_t* indices = indices_tensor.data<int64_t>();
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  std::atomic<int32_t> count = 0;  // relaxed: ParallelFor's end orders it
  ParallelFor(rows, RowsPerBlock(k), [=, &count](int64_t begin, int64_t end) {
    int32_t found = 0;
    for (int64_t r = begin; r < end; ++r) {
      HR_ENFORCE(label[r] >= 0, OutOfRange, "input Label: row ", r, " has class ", label[r], ", expected 0 or more");
      const int64_t* row = indices + r * k;
      found += std::find(row, row + k, label[r]) != row + k ? 1 : 0;
    }
    count.fetch_add(found, std::memory_order_relaxed);
  });
  const int32_t correct = count.load(std::memory_order_relaxed);
  *ctx.Output("Accuracy")->mutable_data<float>() = static_cast<float>(correct) / static_cast<float>(rows);
  *ctx.Output("Correct")->mutable_data<int32_t>() = correct;
  *ctx.Output("Total")->mutable_data<int32_t>() = static_cast<int32_t>(rows);
}

void InferAccuracy(InferShapeContext& ctx) {
  EnforceRank(ctx, "Indices", 2);
  EnforceType(ctx, "Indices", DataType::kInt64);
  const DDim indices = ctx.InputDim("Indices");
  EnforceDims(ctx, "Out", indices);
  EnforceDims(ctx, "Label", {indices[0], 1});
  EnforceNumbers(ctx, "Label");
  HR_ENFORCE(indices[0] != 0 && indices[0] <= INT32_MAX, InvalidArgument,
             "input Indices: expected at least one row and at most 2^31 - 1, got dims ", ToString(indices));
  SetOutput(ctx, "Accuracy", {1}, DataType::kFloat32);
  SetOutput(ctx, "Correct", {1}, DataType::kInt32);
  SetOutput(ctx, "Total", {1}, DataType::kInt32);
}

}  // namespace

HEADRACE_REGISTER_OP(accuracy)
    .Comment("How many rows have their label among their top k.")
    .Input("Out", "[N, k], the Out of top_k")
    .Input("Indices", "int64 [N, k], the Indices of top_k")
    .Input("Label", "int64 [N, 1]")
    .Output("Accuracy", "float32 [1], Correct / Total")
    .Output("Correct", "int32 [1]")
    .Output("Total", "int32 [1], N")
    .InferShape(InferAccuracy)
    .Kernel<float>(AccuracyKernel)
    .Kernel<double>(AccuracyKernel);

}  // namespace headrace::ops
