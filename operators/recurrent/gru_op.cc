// gru: gated recurrent units over sequences.
#include <cstdint>
#include <string>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/recurrent/gru_cell.h"
#include "operators/recurrent/recurrent.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

template <typename T>
GruCell<T> GruCellOf(const ExecutionContext& ctx) {
  return {ctx.Input("Weight").dims()[0], ActivationOf(ctx.Text("gate_activation")),
          ActivationOf(ctx.Text("activation")), ctx.Attr<bool>("origin_mode"), ctx.Input("Weight").data<T>()};
}

template <typename T>
void GruKernel(const ExecutionContext& ctx) {
  const StepBatches batches(SequencesOf(ctx, "Input"), ctx.Attr<bool>("is_reverse"));
  GruCell<T> cell = GruCellOf<T>(ctx);
  const int64_t width = cell.width;
  const int64_t rows = ctx.Input("Input").dims()[0];
  T* hidden_out = ctx.Output("Hidden")->mutable_data<T>();
  T* hidden = ctx.Output("BatchHidden")->mutable_data<T>();
  T* gates = ctx.Output("BatchGate")->mutable_data<T>();
  T* reset = ctx.Output("BatchResetHiddenPrev")->mutable_data<T>();
  PoolVector<T> first = FirstStates<T>(ctx, "Input", batches);
  batches.ToBatches(ctx.Input("Input").data<T>(), 3 * width, gates);
  AddBias(ElementsOrNull<T>(ctx, "Bias"), rows, 3 * width, gates);
  GruSteps(&cell, batches, first, gates, reset, hidden);
  batches.FromBatches(hidden, width, hidden_out);
}

template <typename T>
void GruGradKernel(const ExecutionContext& ctx) {
  const StepBatches batches(SequencesOf(ctx, "Input"), ctx.Attr<bool>("is_reverse"));
  GruCell<T> cell = GruCellOf<T>(ctx);
  const int64_t width = cell.width;
  const int64_t rows = ctx.Input("Input").dims()[0];
  T* input_grad = MutableOrNull<T>(ctx, "Input@GRAD");
  T* first_grad = ZerosOrNull<T>(ctx, "H0@GRAD");
  T* weight_grad = ZerosOrNull<T>(ctx, "Weight@GRAD");
  T* bias_grad = ZerosOrNull<T>(ctx, "Bias@GRAD");
  const T* gates = ctx.Input("BatchGate").data<T>();
  const T* reset = ctx.Input("BatchResetHiddenPrev").data<T>();
  const T* hidden = ctx.Input("BatchHidden").data<T>();
  PoolVector<T> first = FirstStates<T>(ctx, "Input", batches);
  PoolVector<T> d_first(first.size(), T(0));
  PoolVector<T> d_hidden(static_cast<size_t>(rows * width));
  PoolVector<T> d_gates(static_cast<size_t>(rows * 3 * width));
  batches.ToBatches(ctx.Input("Hidden@GRAD").data<T>(), width, d_hidden.data());
  for (size_t t = batches.steps(); t-- > 0;) {
    const int64_t at = batches.Begin(t) * width;
    const bool is_first = t == 0;
    const int64_t at_before = is_first ? 0 : batches.Begin(t - 1) * width;
    const T* before = !is_first ? hidden + at_before : first.empty() ? nullptr : first.data();
    T* d_before = !is_first ? d_hidden.data() + at_before : d_first.empty() ? nullptr : d_first.data();
    cell.StepBack(batches.Size(t), gates + 3 * at, before, reset + at, d_hidden.data() + at, d_gates.data() + 3 * at,
                  d_before, weight_grad);
  }
  if (bias_grad != nullptr) {
    AddRows(d_gates.data(), rows, 3 * width, bias_grad);
  }
  if (input_grad != nullptr) {
    batches.FromBatches(d_gates.data(), 3 * width, input_grad);
  }
  if (first_grad != nullptr) {
    batches.UnsortStates(d_first.data(), width, first_grad);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(gru)
    .Comment(
        "With sums x + h' W + b of update gate u and reset gate r, and x + (r h') W + b of candidate c: h = (1 - u) h' "
        "+ "
        "u c, step by step over each sequence.")
    .Input("Input", "[rows, 3 D] with LoD: x of update gate, reset gate and candidate")
    .Input("H0", "[number of sequences, D]: the first h'; zeros if absent", kDispensable)
    .Input("Weight", "[D, 3 D]: a matrix [D, 2 D] for both gates and one [D, D] for the candidate, behind one another")
    .Input("Bias", "[1, 3 D]", kDispensable)
    .Output("Hidden", "[rows, D]: h; LoD of Input")
    .Output("BatchGate", "[rows, 3 D]: gates and candidates, for the gradient")
    .Output("BatchResetHiddenPrev", "[rows, D]: r h', for the gradient")
    .Output("BatchHidden", "[rows, D]: h by steps, for the gradient")
    .With(GruAttrs)
    .KernelTypeFrom("Input")
    .InferShape([](InferShapeContext& ctx) {
      const DDim hidden = CheckGru(ctx, "H0", -1);
      for (const HashedName slot : HashedNames{"Hidden", "BatchResetHiddenPrev", "BatchHidden"}) {
        SetOutput(ctx, slot, hidden, ctx.InputType("Input"));
      }
      SetOutput(ctx, "BatchGate", ctx.InputDim("Input"), ctx.InputType("Input"));
      ctx.ShareLoD("Input", "Hidden");
    })
    .Kernel<float>(GruKernel<float>)
    .Kernel<double>(GruKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Input", "H0", "Weight", "Bias"},
                               .outputs = {"BatchGate", "BatchResetHiddenPrev", "BatchHidden"},
                               .no_gradient = {}}));

HEADRACE_REGISTER_OP(gru_grad)
    .Comment("Gradient of gru.")
    .Input("Input", "as in the operator; only its dims and its LoD are used", kShapeOnly)
    .Input("H0", "as in the operator", kDispensable)
    .Input("Weight", "as in the operator")
    .Input("Bias", "as in the operator; only its dims are used", kDispensable | kShapeOnly)
    .Input("BatchGate", "as in the operator")
    .Input("BatchResetHiddenPrev", "as in the operator")
    .Input("BatchHidden", "as in the operator")
    .Input("Hidden@GRAD", "gradient of Hidden")
    .Input("BatchGate@GRAD", "not used", kDispensable)
    .Input("BatchResetHiddenPrev@GRAD", "not used", kDispensable)
    .Input("BatchHidden@GRAD", "not used", kDispensable)
    .Output("Input@GRAD", "dims and LoD of Input", kDispensable)
    .Output("H0@GRAD", "dims of H0", kDispensable)
    .Output("Weight@GRAD", "dims of Weight", kDispensable)
    .Output("Bias@GRAD", "dims of Bias", kDispensable)
    .With(GruAttrs)
    .KernelTypeFrom("Input")
    .InferShape([](InferShapeContext& ctx) {
      EnforceLikeInput(ctx, {"BatchResetHiddenPrev", "BatchHidden", "Hidden@GRAD"}, CheckGru(ctx, "H0", -1));
      EnforceLikeInput(ctx, {"BatchGate"}, ctx.InputDim("Input"));
      InferGradients(ctx, {"Input", "H0", "Weight", "Bias"});
      ctx.ShareLoD("Input", "Input@GRAD");
    })
    .Kernel<float>(GruGradKernel<float>)
    .Kernel<double>(GruGradKernel<double>);

}  // namespace headrace::ops
