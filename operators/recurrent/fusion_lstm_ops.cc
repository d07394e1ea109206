// fusion_lstm, fused_embedding_fc_lstm: lstm and the product, or the embedding, that makes its input, as one operator,
// to which Fluid's inference passes join them.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm.h"
#include "operators/math/scratch.h"
#include "operators/recurrent/fusion.h"
#include "operators/recurrent/lstm_cell.h"
#include "operators/recurrent/recurrent.h"

namespace headrace::ops {
namespace {

// From `x`, the sums of input and bias in the order of the sequences: [rows, 4 D].
template <typename T>
void RunLstm(const ExecutionContext& ctx, HashedName input, const T* x) {
  EnforceStateRows(ctx, "H0", input);
  EnforceStateRows(ctx, "C0", input);
  const StepBatches batches(SequencesOf(ctx, input), ctx.Attr<bool>("is_reverse"));
  const LstmCell<T> cell(ctx, 0, "WeightH");
  LoDTensor* hidden = ctx.Output("Hidden");
  const int64_t size = hidden->numel();
  Tensor gates_memory;
  Tensor activated_memory;
  T* gates = Scratch<T>(&gates_memory, 4 * size);
  batches.ToBatches(x, 4 * cell.width, gates);
  LstmSteps(cell, batches, ctx.Input("WeightH").data<T>(), InitialStates<T>(ctx, "H0", batches),
            InitialStates<T>(ctx, "C0", batches), gates, Scratch<T>(&activated_memory, size), hidden->mutable_data<T>(),
            ctx.Output("Cell")->mutable_data<T>());
}

template <typename T>
void FusionLstmKernel(const ExecutionContext& ctx) {
  Tensor product_memory;
  RunLstm(ctx, "X", ProductAndBias<T>(ctx, &product_memory));
}

template <typename T>
void EmbeddingLstmKernel(const ExecutionContext& ctx) {
  const LoDTensor& ids_tensor = ctx.Input("Ids");
  const DDim& table = ctx.Input("Embeddings").dims();
  const int64_t* ids = ids_tensor.data<int64_t>();
  const T* rows = ctx.Input("Embeddings").data<T>();
  Tensor memory;
  T* x = Scratch<T>(&memory, MultiplyExtents(ids_tensor.numel(), table[1]));
  ParallelFor(ids_tensor.numel(), RowsPerBlock(table[1]), [=, &table](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      HR_ENFORCE(0 <= ids[i] && ids[i] < table[0], OutOfRange, "input Ids: row ", i, " has id ", ids[i],
                 ", expected one in [0, ", table[0], ")");
      std::copy_n(rows + ids[i] * table[1], table[1], x + i * table[1]);
    }
  });
  RunLstm(ctx, "Ids", static_cast<const T*>(x));
}

// Checks what both have; `like`: the input with the dtype of all others.
void InferLstm(InferShapeContext& ctx, HashedName input, HashedName like) {
  EnforceRank(ctx, "WeightH", 2);
  const int64_t width = ctx.InputDim("WeightH")[0];
  HR_ENFORCE(width > 0, InvalidArgument, "input WeightH: expected dims [D, 4 D], got ",
             ToString(ctx.InputDim("WeightH")));
  EnforceDims(ctx, "WeightH", {width, MultiplyExtents(width, 4)});
  EnforceDims(ctx, "Bias", {1, MultiplyExtents(width, ctx.Attr<bool>("use_peepholes") ? 7 : 4)});
  HR_ENFORCE(ctx.HasInput("H0") == ctx.HasInput("C0"), InvalidArgument,
             "inputs H0 and C0: expected both or none of them");
  for (const HashedName slot : HashedNames{"H0", "C0"}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, {-1, width});
    }
  }
  for (const HashedName slot : HashedNames{"WeightH", "Bias", "H0", "C0"}) {
    if (ctx.HasInput(slot)) {
      EnforceSameType(ctx, slot, like);
    }
  }
  for (const HashedName slot : HashedNames{"Hidden", "Cell"}) {
    SetOutput(ctx, slot, {ctx.InputDim(input)[0], width}, ctx.InputType(like));
    ctx.ShareLoD(input, slot);
  }
}

OpRegistrar&& LstmSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("WeightH", "[D, 4 D]")
      .Input("H0", "[number of sequences, D]: the first h; zeros if absent", kDispensable)
      .Input("C0", "[number of sequences, D]: the first c; zeros if absent", kDispensable)
      .Output("Hidden", "[rows, D]: h of lstm; LoD of the sequences")
      .Output("Cell", "[rows, D]: c of lstm; LoD of the sequences")
      .With(UnusedOutputs, std::vector<std::string>{"XX", "BatchedInput", "BatchedHidden", "BatchedCell", "ReorderedH0",
                                                    "ReorderedC0", "CheckedCell"})
      .With(LstmAttrs)
      .With(UseSeqAttr);
}

}  // namespace

HEADRACE_REGISTER_OP(fusion_lstm)
    .Comment("lstm of X WeightX, with the biases of both. For inference: it has no gradient, nor has it in Fluid.")
    .Input("X", "[rows, M] with LoD")
    .Input("WeightX", "[M, 4 D]")
    .Input("Bias", "[1, 4 D]; with peepholes [1, 7 D], the last three parts being theirs")
    .With(LstmSlots)
    .InferShape([](InferShapeContext& ctx) {
      InferLstm(ctx, "X", "X");
      CheckProduct(ctx, ctx.InputDim("WeightH")[1]);
    })
    .KernelTypeFrom("X")
    .Kernel<float>(FusionLstmKernel<float>)
    .Kernel<double>(FusionLstmKernel<double>);

HEADRACE_REGISTER_OP(fused_embedding_fc_lstm)
    .Comment(
        "lstm of the rows of Embeddings with the numbers Ids: a table that has been multiplied by the weights of the "
        "input, and has its bias added. For inference: it has no gradient, nor has it in Fluid.")
    .Input("Ids", "int64 [rows, 1] with LoD")
    .Input("Embeddings", "[number of ids, 4 D]")
    .Input("Bias", "[1, 4 D], not used; with peepholes [1, 7 D], the last three parts being theirs")
    .With(LstmSlots)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Ids", {-1, 1});
      EnforceNumbers(ctx, "Ids");
      EnforceSequences(ctx, "Ids", 2);
      InferLstm(ctx, "Ids", "Embeddings");
      EnforceDims(ctx, "Embeddings", {-1, ctx.InputDim("WeightH")[1]});
    })
    .KernelTypeFrom("Embeddings")
    .Kernel<float>(EmbeddingLstmKernel<float>)
    .Kernel<double>(EmbeddingLstmKernel<double>);

}  // namespace headrace::ops
