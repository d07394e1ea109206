// fusion_gru: gru and the product that makes its input as one operator, to which Fluid's inference passes join them.
#include <cstdint>
#include <string>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/scratch.h"
#include "operators/recurrent/fusion.h"
#include "operators/recurrent/gru_cell.h"
#include "operators/recurrent/recurrent.h"

namespace headrace::ops {
namespace {

template <typename T>
void FusionGruKernel(const ExecutionContext& ctx) {
  const StepBatches batches(SequencesOf(ctx, "X"), ctx.Attr<bool>("is_reverse"));
  GruCell<T> cell(ctx.Input("WeightH").dims()[0], ActivationOf(ctx.Text("gate_activation")),
                  ActivationOf(ctx.Text("activation")), ctx.Attr<bool>("origin_mode"), ctx.Input("WeightH").data<T>());
  const int64_t width = cell.width;
  LoDTensor* hidden_tensor = ctx.Output("Hidden");
  const int64_t size = hidden_tensor->numel();
  T* hidden_out = hidden_tensor->mutable_data<T>();
  Tensor product_memory;
  Tensor gates_memory;
  Tensor reset_memory;
  Tensor hidden_memory;
  T* gates = Scratch<T>(&gates_memory, 3 * size);
  T* reset = Scratch<T>(&reset_memory, size);
  T* hidden = Scratch<T>(&hidden_memory, size);
  PoolVector<T> first = FirstStates<T>(ctx, "X", batches);
  batches.ToBatches(ProductAndBias<T>(ctx, &product_memory), 3 * width, gates);
  GruSteps(&cell, batches, first, gates, reset, hidden);
  batches.FromBatches(hidden, width, hidden_out);
}

}  // namespace

HEADRACE_REGISTER_OP(fusion_gru)
    .Comment("gru of X WeightX + Bias. For inference: it has no gradient, nor has it in Fluid.")
    .Input("X", "[rows, M] with LoD")
    .Input("H0", "[number of sequences, D]: the first h; zeros if absent", kDispensable)
    .Input("WeightX", "[M, 3 D]")
    .Input("WeightH", "[D, 3 D]: Weight of gru")
    .Input("Bias", "[1, 3 D]: the sum of both biases", kDispensable)
    .Output("Hidden", "[rows, D]: h of gru; LoD of X")
    .With(UnusedOutputs, std::vector<std::string>{"ReorderedH0", "XX", "BatchedInput", "BatchedOut"})
    .With(GruAttrs)
    .With(UseSeqAttr)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "WeightH", 2);
      const int64_t width = ctx.InputDim("WeightH")[0];
      HR_ENFORCE(width > 0, InvalidArgument, "input WeightH: expected dims [D, 3 D], got ",
                 ToString(ctx.InputDim("WeightH")));
      const int64_t gates = MultiplyExtents(width, 3);
      EnforceDims(ctx, "WeightH", {width, gates});
      CheckProduct(ctx, gates);
      if (ctx.HasInput("Bias")) {
        EnforceDims(ctx, "Bias", {1, gates});
      }
      if (ctx.HasInput("H0")) {
        EnforceDims(ctx, "H0", {-1, width});
      }
      for (const HashedName slot : HashedNames{"WeightH", "Bias", "H0"}) {
        if (ctx.HasInput(slot)) {
          EnforceSameType(ctx, slot, "X");
        }
      }
      SetOutput(ctx, "Hidden", {ctx.InputDim("X")[0], width}, ctx.InputType("X"));
      ctx.ShareLoD("X", "Hidden");
    })
    .KernelTypeFrom("X")
    .Kernel<float>(FusionGruKernel<float>)
    .Kernel<double>(FusionGruKernel<double>);

}  // namespace headrace::ops
