// sequence_scatter: adds the elements of a sequence to a row, each where its index says.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

template <typename Index, typename Visit>
void ForEachUpdate(const ExecutionContext& ctx, const LoDOffsets& offsets, int64_t width, const Visit& visit) {
  const Index* ids = ctx.Input("Ids").data<Index>();
  ForEachSequenceInParallel(offsets, /*work=*/4, [=](int64_t s, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      HR_ENFORCE(0 <= ids[i] && ids[i] < width, OutOfRange, "input Ids: element ", i, " is ", ids[i],
                 ", expected a column in [0, ", width, ")");
      visit(i, s * width + ids[i]);
    }
  });
}

// Calls visit(element of Updates, element of X that it is added to), for X of dims `x`, from several threads, each of
// which has rows of its own.
template <typename Visit>
void ForEachUpdate(const ExecutionContext& ctx, const DDim& x, const Visit& visit) {
  const LoDOffsets& offsets = SequencesOf(ctx, "Ids");
  HR_ENFORCE(SequenceCount(offsets) == x[0], InvalidArgument, "input Ids: expected ", x[0],
             " sequences, one for each row of X, got ", SequenceCount(offsets));
  ctx.Input("Ids").dtype() == DataType::kInt32 ? ForEachUpdate<int32_t>(ctx, offsets, x[1], visit)
                                               : ForEachUpdate<int64_t>(ctx, offsets, x[1], visit);
}

template <typename T>
void SequenceScatterKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  HR_ENFORCE(ctx.Input("Updates").lod() == ctx.Input("Ids").lod(), InvalidArgument,
             "input Updates: expected the LoD of Ids, ", ToString(ctx.Input("Ids").lod()), ", got ",
             ToString(ctx.Input("Updates").lod()));
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  if (out != x.data<T>()) {
    ParallelCopy(x.data<T>(), x.numel(), out);
  }
  const T* updates = ctx.Input("Updates").data<T>();
  ForEachUpdate(ctx, x.dims(), [=](int64_t from, int64_t to) { out[to] += updates[from]; });
}

template <typename T>
void SequenceScatterGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  const T* d = out_grad.data<T>();
  if (T* dx = MutableOrNull<T>(ctx, "X@GRAD")) {
    ParallelCopy(d, out_grad.numel(), dx);
  }
  if (T* updates_grad = MutableOrNull<T>(ctx, "Updates@GRAD")) {
    ForEachUpdate(ctx, out_grad.dims(), [=](int64_t to, int64_t from) { updates_grad[to] = d[from]; });
  }
}

void CheckIds(const InferShapeContext& ctx) {
  EnforceSequences(ctx, "Ids", 2);
  EnforceDims(ctx, "Ids", {-1, 1});
  EnforceIntegers(ctx, "Ids");
}

}  // namespace

HEADRACE_REGISTER_OP(sequence_scatter)
    .Comment("X, with the elements of sequence i of Updates added to row i, in the columns that Ids says.")
    .Input("X", "[number of sequences, D]")
    .Input("Ids", "int32 or int64 [rows, 1] with LoD, in [0, D)")
    .Input("Updates", "dims and LoD of Ids, dtype of X")
    .Output("Out", "dims of X")
    .InPlace("Out", "X")
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      CheckIds(ctx);
      EnforceRank(ctx, "X", 2);
      EnforceDims(ctx, "Updates", ctx.InputDim("Ids"));
      EnforceSameType(ctx, "Updates", "X");
      SetOutput(ctx, "Out", ctx.InputDim("X"), ctx.InputType("X"));
    })
    .Kernel<float>(SequenceScatterKernel<float>)
    .Kernel<double>(SequenceScatterKernel<double>)
    .Kernel<int32_t>(SequenceScatterKernel<int32_t>)
    .Kernel<int64_t>(SequenceScatterKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"Ids"}, .outputs = {}, .no_gradient = {"Ids"}}));

HEADRACE_REGISTER_OP(sequence_scatter_grad)
    .Comment("Gradient of sequence_scatter.")
    .Input("Ids", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of Out", kDispensable)
    .Output("Updates@GRAD", "dims and LoD of Ids", kDispensable)
    .KernelTypeFrom("Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      CheckIds(ctx);
      EnforceRank(ctx, "Out@GRAD", 2);
      SetOutput(ctx, "X@GRAD", ctx.InputDim("Out@GRAD"), ctx.InputType("Out@GRAD"));
      SetOutput(ctx, "Updates@GRAD", ctx.InputDim("Ids"), ctx.InputType("Out@GRAD"));
      if (ctx.HasOutput("Updates@GRAD")) {
        ctx.ShareLoD("Ids", "Updates@GRAD");
      }
    })
    .Kernel<float>(SequenceScatterGradKernel<float>)
    .Kernel<double>(SequenceScatterGradKernel<double>);

}  // namespace headrace::ops
