// fusion_seqexpand_concat_fc: sequence_expand, concat and fc as one operator, to which Fluid's inference passes join
// them.
#include <cstdint>
#include <string>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm.h"
#include "operators/math/scratch.h"
#include "operators/recurrent/fusion.h"
#include "operators/recurrent/recurrent.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// What all rows of a sequence have in common, the products of the inputs that are expanded, is computed once for it.
template <typename T>
void ExpandConcatFcKernel(const ExecutionContext& ctx) {
  const LoDOffsets& offsets = SequencesOf(ctx, "X");
  const int64_t sequences = SequenceCount(offsets);
  const int64_t width = ctx.Input("FCWeight").dims()[1];
  const T* weight = ctx.Input("FCWeight").data<T>();
  const T* bias = ElementsOrNull<T>(ctx, "FCBias");
  Tensor common_memory;
  T* common = Scratch<T>(&common_memory, MultiplyExtents(sequences, width));
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t c = 0; c < width; ++c) {
      common[s * width + c] = bias == nullptr ? T(0) : bias[c];
    }
  }
  const LoDTensor& rows = ctx.Input("X");
  const T* part = weight + rows.dims()[1] * width;
  for (size_t i = 1; i < ctx.InputSize("X"); ++i) {
    const LoDTensor& x = ctx.Input("X", i);
    HR_ENFORCE(x.dims()[0] == sequences, InvalidArgument, "input X: expected ", sequences, " rows in variable ", i,
               ", one for each sequence of the first, got dims ", ToString(x.dims()));
    Gemm<T>(false, false, sequences, width, x.dims()[1], T(1), x.data<T>(), part, true, common);
    part += x.dims()[1] * width;
  }
  T* out = ctx.Output("Out")->mutable_data<T>();
  Gemm<T>(false, false, rows.dims()[0], width, rows.dims()[1], T(1), rows.data<T>(), weight, false, out);
  const Activation activation = ActivationOf(ctx.Text("fc_activation"));
  ParallelFor(sequences, 1, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      const auto begin = static_cast<int64_t>(offsets[static_cast<size_t>(s)]);
      const auto end = static_cast<int64_t>(offsets[static_cast<size_t>(s) + 1]);
      for (int64_t r = begin; r < end; ++r) {
        T* row = out + r * width;
        for (int64_t c = 0; c < width; ++c) {
          row[c] += common[s * width + c];
        }
        Activate(activation, width, row, row);
      }
    }
  });
}

void InferExpandConcatFc(InferShapeContext& ctx) {
  const size_t n = ctx.InputSize("X");
  HR_ENFORCE(n >= 2, InvalidArgument, "input X: expected two variables or more, got ", n);
  EnforceSequences(ctx, "X", 2);
  EnforceRank(ctx, "FCWeight", 2);
  const int64_t width = ctx.InputDim("FCWeight")[1];
  int64_t columns = 0;
  for (size_t i = 0; i < n; ++i) {
    EnforceRank(ctx, "X", 2, i);
    EnforceSameType(ctx, "X", "FCWeight", i);
    const int64_t of_x = ctx.InputDim("X", i)[1];
    columns = columns < 0 || of_x < 0 ? -1 : columns + of_x;
  }
  EnforceDims(ctx, "FCWeight", {columns, width});
  if (ctx.HasInput("FCBias")) {
    EnforceDims(ctx, "FCBias", ctx.InputDim("FCBias").size() == 1 ? DDim{width} : DDim{1, width});
    EnforceSameType(ctx, "FCBias", "FCWeight");
  }
  SetOutput(ctx, "Out", {ctx.InputDim("X")[0], width}, ctx.InputType("FCWeight"));
  ctx.ShareLoD("X", "Out");
}

}  // namespace

HEADRACE_REGISTER_OP(fusion_seqexpand_concat_fc)
    .Comment(
        "fc_activation(Z FCWeight + FCBias), where a row of Z is one of the first X and, behind it, the rows of the "
        "others at the place of its sequence. For inference: it has no gradient, nor has it in Fluid.")
    .Input("X", "[rows, ...] with LoD, then tensors [number of sequences, ...]", kDuplicable)
    .Input("FCWeight", "[sum of the widths of X, D]")
    .Input("FCBias", "[1, D] or [D]", kDispensable)
    .Output("Out", "[rows, D]; LoD of the first X")
    .With(UnusedOutputs, std::vector<std::string>{"FCOut"})
    .With(ActivationAttr, "fc_activation", "of the result", "identity")
    .InferShape(InferExpandConcatFc)
    .KernelTypeFrom("FCWeight")
    .Kernel<float>(ExpandConcatFcKernel<float>)
    .Kernel<double>(ExpandConcatFcKernel<double>);

}  // namespace headrace::ops
