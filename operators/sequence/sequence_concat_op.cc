// sequence_concat: sequences of several tensors, one behind the other.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/tensor_size.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// The sequences of each variable of X: as many in each.
LoD SequencesOfAll(const ExecutionContext& ctx) {
  LoD all;
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    const LoDTensor& x = ctx.Input("X", k);
    HR_ENFORCE(!x.lod().empty(), InvalidArgument, "input X: expected a LoD of one level or more, variable '",
               ctx.InputVar("X", k)->name(), "' has none (dims ", ToString(x.dims()), ")");
    CheckLoD(x.lod(), x.dims()[0]);
    all.push_back(x.lod().back());
    HR_ENFORCE(all[k].size() == all[0].size(), InvalidArgument, "input X: expected ", all[0].size() - 1,
               " sequences, as variable 0 has, variable ", k, " has ", all[k].size() - 1);
  }
  return all;
}

// Those of the result: `all`, one behind the other.
LoDOffsets JoinedSequences(const LoD& all) {
  LoDOffsets offsets(all[0].size(), 0);
  for (const auto& sequences : all) {
    for (size_t s = 0; s < offsets.size(); ++s) {
      offsets[s] += sequences[s];
    }
  }
  return offsets;
}

// Calls copy(variable, its first element, first element of the result, elements) for each sequence of each variable,
// from several threads.
template <typename Copy>
void ForEachPart(const LoD& all, const LoDOffsets& joined, int64_t width, const Copy& copy) {
  ForEachSequenceInParallel(joined, width, [=, &all](int64_t sequence, int64_t begin, int64_t) {
    const auto s = static_cast<size_t>(sequence);
    int64_t at = begin * width;
    for (size_t k = 0; k < all.size(); ++k) {
      const auto from = static_cast<int64_t>(all[k][s]) * width;
      const int64_t n = static_cast<int64_t>(all[k][s + 1]) * width - from;
      copy(k, from, at, n);
      at += n;
    }
  });
}

template <typename T>
void SequenceConcatKernel(const ExecutionContext& ctx) {
  const auto all = SequencesOfAll(ctx);
  DDim dims = ctx.Input("X").dims();
  const int64_t width = Numel(dims, 1, dims.size());
  LoDOffsets offsets = JoinedSequences(all);
  LoDTensor* out_tensor = ctx.Output("Out");
  dims[0] = static_cast<int64_t>(offsets.back());
  T* out = out_tensor->Resize(dims).template mutable_data<T>();
  PoolVector<const T*> inputs;
  for (size_t k = 0; k < all.size(); ++k) {
    inputs.push_back(ctx.Input("X", k).data<T>());
  }
  ForEachPart(all, offsets, width, [out, inputs = inputs.data()](size_t k, int64_t from, int64_t to, int64_t n) {
    std::copy_n(inputs[k] + from, n, out + to);
  });
  out_tensor->set_lod({std::move(offsets)});
}

template <typename T>
void SequenceConcatGradKernel(const ExecutionContext& ctx) {
  const auto all = SequencesOfAll(ctx);
  const DDim& dims = ctx.Input("X").dims();
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  const LoDOffsets joined = JoinedSequences(all);
  const auto rows = static_cast<int64_t>(joined.back());
  PoolVector<T*> grads;
  for (size_t k = 0; k < all.size(); ++k) {
    LoDTensor* grad = ctx.OutputOrNull("X@GRAD", k);
    grads.push_back(grad == nullptr ? nullptr : grad->mutable_data<T>());
  }
  HR_ENFORCE(out_grad.dims()[0] == rows, InvalidArgument, "input Out@GRAD: expected ", rows, " rows, got dims ",
             ToString(out_grad.dims()));
  const T* d = out_grad.data<T>();
  ForEachPart(all, joined, Numel(dims, 1, dims.size()),
              [d, grads = grads.data()](size_t k, int64_t to, int64_t from, int64_t n) {
                if (grads[k] != nullptr) {
                  std::copy_n(d + from, n, grads[k] + to);
                }
              });
}

// Checks the inputs that operator and gradient share; returns the dims of Out, of which the rows are not known.
DDim CheckSequenceConcat(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  DDim dims = ctx.InputDim("X");
  dims[0] = -1;
  for (size_t k = 1; k < ctx.InputSize("X"); ++k) {
    EnforceDims(ctx, "X", dims, k);
    EnforceSameType(ctx, "X", "X", k);
  }
  return dims;
}

}  // namespace

HEADRACE_REGISTER_OP(sequence_concat)
    .Comment("Sequence s of Out is sequence s of each variable of X, one behind the other.")
    .Input("X", "tensors [rows, ...] with LoD, of as many sequences and the same dims but the rows", kDuplicable)
    .Output("Out", "[sum of their rows, ...], with a LoD of one level")
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = CheckSequenceConcat(ctx);
      if (!ctx.IsRuntime()) {
        SetOutput(ctx, "Out", dims, ctx.InputType("X"));
        ctx.SetOutputLoDLevel("Out", 1);
      }
    })
    .Kernel<float>(SequenceConcatKernel<float>)
    .Kernel<double>(SequenceConcatKernel<double>)
    .Kernel<int32_t>(SequenceConcatKernel<int32_t>)
    .Kernel<int64_t>(SequenceConcatKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(sequence_concat_grad)
    .Comment("Gradient of sequence_concat.")
    .Input("X", "as in the operator; only dims and LoD are used", kDuplicable | kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims and LoD of X each", kDuplicable)
    .KernelTypeFrom("Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", CheckSequenceConcat(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      for (size_t k = 0; k < ctx.OutputSize("X@GRAD"); ++k) {
        if (ctx.HasInput("X", k)) {
          SetOutput(ctx, "X@GRAD", ctx.InputDim("X", k), ctx.InputType("X", k), k);
          ctx.ShareLoD("X", "X@GRAD", k, k);
        }
      }
    })
    .Kernel<float>(SequenceConcatGradKernel<float>)
    .Kernel<double>(SequenceConcatGradKernel<double>);

}  // namespace headrace::ops
