// lstm: long short-term memory over sequences.
#include <algorithm>
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
#include "operators/recurrent/lstm_cell.h"
#include "operators/recurrent/recurrent.h"

namespace headrace::ops {
namespace {

template <typename T>
void LstmKernel(const ExecutionContext& ctx) {
  const StepBatches batches(SequencesOf(ctx, "Input"), ctx.Attr<bool>("is_reverse"));
  const LstmCell<T> cell(ctx);
  const int64_t width = cell.width;
  const int64_t rows = ctx.Input("Input").dims()[0];
  T* hidden_out = ctx.Output("Hidden")->mutable_data<T>();
  T* state_out = ctx.Output("Cell")->mutable_data<T>();
  T* gates = ctx.Output("BatchGate")->mutable_data<T>();
  T* activated = ctx.Output("BatchCellPreAct")->mutable_data<T>();
  batches.ToBatches(ctx.Input("Input").data<T>(), 4 * width, gates);
  AddBias(ctx.Input("Bias").data<T>(), rows, 4 * width, gates);
  LstmSteps(cell, batches, ctx.Input("Weight").data<T>(), InitialStates<T>(ctx, "H0", batches),
            InitialStates<T>(ctx, "C0", batches), gates, activated, hidden_out, state_out);
}

// Goes through the steps with what one of them needs at a time.
template <typename T>
void LstmGradKernel(const ExecutionContext& ctx) {
  const StepBatches batches(SequencesOf(ctx, "Input"), ctx.Attr<bool>("is_reverse"));
  const LstmCell<T> cell(ctx);
  const int64_t width = cell.width;
  const int64_t rows = ctx.Input("Input").dims()[0];
  T* weight_grad = MutableOrNull<T>(ctx, "Weight@GRAD");
  T* bias_grad = ZerosOrNull<T>(ctx, "Bias@GRAD");
  T* input_grad = MutableOrNull<T>(ctx, "Input@GRAD");
  T* first_hidden_grad = ZerosOrNull<T>(ctx, "H0@GRAD");
  T* first_state_grad = ZerosOrNull<T>(ctx, "C0@GRAD");
  const T* all_hidden = ctx.Input("Hidden").data<T>();
  const T* all_states = ctx.Input("Cell").data<T>();
  const T* all_hidden_grads = ElementsOrNull<T>(ctx, "Hidden@GRAD");
  const T* all_state_grads = ElementsOrNull<T>(ctx, "Cell@GRAD");
  const auto size = static_cast<size_t>(batches.NumSequences() * width);
  PoolVector<T> first_hidden = InitialStates<T>(ctx, "H0", batches);
  PoolVector<T> first_state = InitialStates<T>(ctx, "C0", batches);
  PoolVector<T> state_memory(size);
  PoolVector<T> state(size);
  PoolVector<T> hidden_grad(size);
  PoolVector<T> state_grad(size);
  PoolVector<T> hidden_grad_before(size);
  PoolVector<T> state_grad_before(size);
  PoolVector<T> gates_grad(4 * size);
  Tensor input_grad_memory;
  if (input_grad == nullptr) {
    input_grad = Scratch<T>(&input_grad_memory, rows * 4 * width);
  }
  // The gradients of a step's results as the steps after it found them, or zeros.
  const auto take_grads = [&](size_t t, const T* from, PoolVector<T>* to) {
    if (from == nullptr) {
      std::fill(to->begin(), to->end(), T(0));
    } else {
      batches.ToStep(t, from, width, to->data());
    }
  };
  // Every step multiplies by the transpose.
  Tensor transposed_memory;
  T* transposed = Scratch<T>(&transposed_memory, 4 * width * width);
  const T* weight = ctx.Input("Weight").data<T>();
  ParallelFor(width, RowsPerBlock(16 * width), [=](int64_t begin, int64_t end) {
    for (int64_t c = 0; c < 4 * width; ++c) {
      for (int64_t r = begin; r < end; ++r) {
        transposed[c * width + r] = weight[r * 4 * width + c];
      }
    }
  });
  const T* gates = ctx.Input("BatchGate").data<T>();
  const T* activated = ctx.Input("BatchCellPreAct").data<T>();
  T* peepholes_grad = bias_grad == nullptr || cell.by_input == nullptr ? nullptr : bias_grad + 4 * width;
  if (batches.steps() != 0) {
    take_grads(batches.steps() - 1, all_hidden_grads, &hidden_grad);
    take_grads(batches.steps() - 1, all_state_grads, &state_grad);
  }
  for (size_t t = batches.steps(); t-- > 0;) {
    const int64_t begin = batches.Begin(t);
    const int64_t n = batches.Size(t);
    const bool has_before = t != 0 || !first_hidden.empty();
    const T* state_before = DataOrNull(first_state);
    if (t != 0) {
      batches.ToStep(t - 1, all_states, width, state_memory.data());
      state_before = state_memory.data();
      take_grads(t - 1, all_hidden_grads, &hidden_grad_before);
      take_grads(t - 1, all_state_grads, &state_grad_before);
    } else {
      std::fill(hidden_grad_before.begin(), hidden_grad_before.end(), T(0));
      std::fill(state_grad_before.begin(), state_grad_before.end(), T(0));
    }
    batches.ToStep(t, all_states, width, state.data());
    // The gradients of the peepholes are added up row by row.
    ParallelFor(n, peepholes_grad == nullptr ? cell.RowsPerStep() : n, [&](int64_t first, int64_t end) {
      for (int64_t r = first; r < end; ++r) {
        const int64_t at = (begin + r) * width;
        cell.StepBack(gates + 4 * at, has_before ? state_before + r * width : nullptr, state.data() + r * width,
                      activated + at, hidden_grad.data() + r * width, state_grad.data() + r * width,
                      gates_grad.data() + 4 * r * width, has_before ? state_grad_before.data() + r * width : nullptr,
                      peepholes_grad);
      }
    });
    const T* d = gates_grad.data();
    if (has_before) {
      Gemm<T>(false, false, n, width, 4 * width, T(1), d, transposed, true, hidden_grad_before.data());
    }
    batches.FromStep(t, d, 4 * width, input_grad);
    hidden_grad.swap(hidden_grad_before);
    state_grad.swap(state_grad_before);
  }
  if (weight_grad != nullptr) {  // the sum over all steps, as one product
    Tensor before_memory;
    T* before = Scratch<T>(&before_memory, rows * width);
    batches.OfStepBefore(all_hidden, DataOrNull(first_hidden), width, before);
    Gemm<T>(true, false, width, 4 * width, rows, T(1), before, input_grad, false, weight_grad);
  }
  if (bias_grad != nullptr) {
    batches.AddInBatchOrder(input_grad, 4 * width, bias_grad);
  }
  if (first_hidden_grad != nullptr) {
    batches.UnsortStates(hidden_grad.data(), width, first_hidden_grad);
  }
  if (first_state_grad != nullptr) {
    batches.UnsortStates(state_grad.data(), width, first_state_grad);
  }
}

// Checks the inputs that operator and gradient share; returns the dims of Hidden.
DDim CheckLstm(const InferShapeContext& ctx) {
  EnforceRank(ctx, "Weight", 2);
  const int64_t width = ctx.InputDim("Weight")[0];
  HR_ENFORCE(width > 0, InvalidArgument, "input Weight: expected dims [D, 4 D], got ",
             ToString(ctx.InputDim("Weight")));
  CheckLstmInputs(ctx, width, width, width);
  return {ctx.InputDim("Input")[0], width};
}

}  // namespace

HEADRACE_REGISTER_OP(lstm)
    .Comment(
        "With sums x + h W + b of candidate g, input gate i, forget gate f and output gate o: c = g i + c f, h = o "
        "cell_activation(c), step by step over each sequence; with peepholes the state of the cell adds to the gates.")
    .Input("Input", "[rows, 4 D] with LoD: x of candidate, input, forget and output gate")
    .Input("H0", "[number of sequences, D]: the first h; zeros if absent", kDispensable)
    .Input("C0", "[number of sequences, D]: the first c; zeros if absent", kDispensable)
    .Input("Weight", "[D, 4 D]")
    .Input("Bias", "[1, 4 D]; with peepholes [1, 7 D], the last three parts being theirs: input, forget, output")
    .Output("Hidden", "[rows, D]: h; LoD of Input")
    .Output("Cell", "[rows, D]: c; LoD of Input")
    .Output("BatchGate", "[rows, 4 D]: the gates, for the gradient")
    .Output("BatchCellPreAct", "[rows, D]: cell_activation(c), for the gradient")
    .With(LstmAttrs)
    .KernelTypeFrom("Input")
    .InferShape([](InferShapeContext& ctx) {
      const DDim hidden = CheckLstm(ctx);
      for (const HashedName slot : HashedNames{"Hidden", "Cell", "BatchCellPreAct"}) {
        SetOutput(ctx, slot, hidden, ctx.InputType("Input"));
      }
      SetOutput(ctx, "BatchGate", ctx.InputDim("Input"), ctx.InputType("Input"));
      ctx.ShareLoD("Input", "Hidden");
      ctx.ShareLoD("Input", "Cell");
    })
    .Kernel<float>(Checked<float, LstmKernel<float>>)
    .Kernel<double>(Checked<double, LstmKernel<double>>)
    .Gradient(DefaultGradient({.inputs = {"Input", "H0", "C0", "Weight", "Bias"},
                               .outputs = {"Hidden", "Cell", "BatchGate", "BatchCellPreAct"},
                               .no_gradient = {}}));

HEADRACE_REGISTER_OP(lstm_grad)
    .Comment("Gradient of lstm.")
    .Input("Input", "as in the operator; only its dims and its LoD are used", kShapeOnly)
    .Input("H0", "as in the operator", kDispensable)
    .Input("C0", "as in the operator", kDispensable)
    .Input("Weight", "as in the operator")
    .Input("Bias", "as in the operator")
    .Input("Hidden", "as in the operator")
    .Input("Cell", "as in the operator")
    .Input("BatchGate", "as in the operator")
    .Input("BatchCellPreAct", "as in the operator")
    .Input("Hidden@GRAD", "gradient of Hidden", kDispensable)
    .Input("Cell@GRAD", "gradient of Cell", kDispensable)
    .Input("BatchGate@GRAD", "not used", kDispensable)
    .Input("BatchCellPreAct@GRAD", "not used", kDispensable)
    .Output("Input@GRAD", "dims and LoD of Input", kDispensable)
    .Output("H0@GRAD", "dims of H0", kDispensable)
    .Output("C0@GRAD", "dims of C0", kDispensable)
    .Output("Weight@GRAD", "dims of Weight", kDispensable)
    .Output("Bias@GRAD", "dims of Bias", kDispensable)
    .With(LstmAttrs)
    .KernelTypeFrom("Input")
    .InferShape([](InferShapeContext& ctx) {
      const DDim hidden = CheckLstm(ctx);
      for (const HashedName slot : HashedNames{"Hidden", "Cell", "BatchCellPreAct", "Hidden@GRAD", "Cell@GRAD"}) {
        if (ctx.HasInput(slot)) {
          EnforceDims(ctx, slot, hidden);
          EnforceSameType(ctx, slot, "Input");
        }
      }
      EnforceDims(ctx, "BatchGate", ctx.InputDim("Input"));
      EnforceSameType(ctx, "BatchGate", "Input");
      InferGradients(ctx, {"Input", "H0", "C0", "Weight", "Bias"});
      ctx.ShareLoD("Input", "Input@GRAD");
    })
    .Kernel<float>(Checked<float, LstmGradKernel<float>>)
    .Kernel<double>(Checked<double, LstmGradKernel<double>>);

}  // namespace headrace::ops
