// lstm: long short-term memory over sequences.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "operators/gemm.h"
#include "operators/kernel_util.h"
#include "operators/lstm_cell.h"
#include "operators/recurrent.h"

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
  std::vector<T> hidden(static_cast<size_t>(rows * width));
  std::vector<T> state(static_cast<size_t>(rows * width));
  std::vector<T> first_hidden = InitialStates<T>(ctx, "H0", batches);
  std::vector<T> first_state = InitialStates<T>(ctx, "C0", batches);
  const T* weight = ctx.Input("Weight").data<T>();
  const T* bias = ctx.Input("Bias").data<T>();
  batches.ToBatches(ctx.Input("Input").data<T>(), 4 * width, gates);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < 4 * width; ++c) {
      gates[r * 4 * width + c] += bias[c];
    }
  }
  for (size_t t = 0; t < batches.steps(); ++t) {
    const int64_t begin = batches.Begin(t);
    const int64_t n = batches.Size(t);
    const T* hidden_before = StepBefore(batches, t, width, hidden.data(), DataOrNull(first_hidden));
    const T* state_before = StepBefore(batches, t, width, state.data(), DataOrNull(first_state));
    if (hidden_before != nullptr) {
      Gemm<T>(false, false, n, 4 * width, width, T(1), hidden_before, weight, true, gates + begin * 4 * width);
    }
    for (int64_t r = 0; r < n; ++r) {
      const int64_t at = (begin + r) * width;
      cell.Step(gates + 4 * at, state_before == nullptr ? nullptr : state_before + r * width, state.data() + at,
                activated + at, hidden.data() + at);
    }
  }
  batches.FromBatches(hidden.data(), width, hidden_out);
  batches.FromBatches(state.data(), width, state_out);
}

template <typename T>
void LstmGradKernel(const ExecutionContext& ctx) {
  const StepBatches batches(SequencesOf(ctx, "Input"), ctx.Attr<bool>("is_reverse"));
  const LstmCell<T> cell(ctx);
  const int64_t width = cell.width;
  const int64_t rows = ctx.Input("Input").dims()[0];
  const auto size = static_cast<size_t>(rows * width);
  T* weight_grad = ZerosOrNull<T>(ctx, "Weight@GRAD");
  T* bias_grad = ZerosOrNull<T>(ctx, "Bias@GRAD");
  T* input_grad = MutableOrNull<T>(ctx, "Input@GRAD");
  T* first_hidden_grad = ZerosOrNull<T>(ctx, "H0@GRAD");
  T* first_state_grad = ZerosOrNull<T>(ctx, "C0@GRAD");
  const auto in_batches = [&](const char* slot) {
    std::vector<T> values(size, T(0));
    if (const T* from = ElementsOrNull<T>(ctx, slot)) {
      batches.ToBatches(from, width, values.data());
    }
    return values;
  };
  std::vector<T> hidden = in_batches("Hidden");
  std::vector<T> state = in_batches("Cell");
  std::vector<T> hidden_grad = in_batches("Hidden@GRAD");
  std::vector<T> state_grad = in_batches("Cell@GRAD");
  std::vector<T> gates_grad(4 * size);
  std::vector<T> first_hidden = InitialStates<T>(ctx, "H0", batches);
  std::vector<T> first_state = InitialStates<T>(ctx, "C0", batches);
  std::vector<T> d_first_hidden(first_hidden.size(), T(0));
  std::vector<T> d_first_state(first_state.size(), T(0));
  const T* weight = ctx.Input("Weight").data<T>();
  const T* gates = ctx.Input("BatchGate").data<T>();
  const T* activated = ctx.Input("BatchCellPreAct").data<T>();
  T* peepholes_grad = bias_grad == nullptr || cell.by_input == nullptr ? nullptr : bias_grad + 4 * width;
  for (size_t t = batches.steps(); t-- > 0;) {
    const int64_t begin = batches.Begin(t);
    const int64_t n = batches.Size(t);
    const T* hidden_before = StepBefore(batches, t, width, hidden.data(), DataOrNull(first_hidden));
    T* d_hidden_before = StepBefore(batches, t, width, hidden_grad.data(), DataOrNull(d_first_hidden));
    const T* state_before = StepBefore(batches, t, width, state.data(), DataOrNull(first_state));
    T* d_state_before = StepBefore(batches, t, width, state_grad.data(), DataOrNull(d_first_state));
    for (int64_t r = 0; r < n; ++r) {
      const int64_t at = (begin + r) * width;
      cell.StepBack(gates + 4 * at, state_before == nullptr ? nullptr : state_before + r * width, state.data() + at,
                    activated + at, hidden_grad.data() + at, state_grad.data() + at, gates_grad.data() + 4 * at,
                    d_state_before == nullptr ? nullptr : d_state_before + r * width, peepholes_grad);
    }
    const T* d = gates_grad.data() + begin * 4 * width;
    if (d_hidden_before != nullptr) {
      Gemm<T>(false, true, n, width, 4 * width, T(1), d, weight, true, d_hidden_before);
    }
    if (weight_grad != nullptr && hidden_before != nullptr) {
      Gemm<T>(true, false, width, 4 * width, n, T(1), hidden_before, d, true, weight_grad);
    }
  }
  if (bias_grad != nullptr) {
    AddRows(gates_grad.data(), rows, 4 * width, bias_grad);
  }
  if (input_grad != nullptr) {
    batches.FromBatches(gates_grad.data(), 4 * width, input_grad);
  }
  if (first_hidden_grad != nullptr) {
    batches.UnsortStates(d_first_hidden.data(), width, first_hidden_grad);
  }
  if (first_state_grad != nullptr) {
    batches.UnsortStates(d_first_state.data(), width, first_state_grad);
  }
}

// Checks the inputs that operator and gradient share; returns the dims of Hidden.
DDim CheckLstm(const InferShapeContext& ctx) {
  EnforceRank(ctx, "Weight", 2);
  const int64_t width = ctx.InputDim("Weight")[0];
  HR_ENFORCE(width > 0, InvalidArgument, "input Weight: expected dims [D, 4 D], got ",
             ToString(ctx.InputDim("Weight")));
  EnforceDims(ctx, "Weight", {width, MultiplyExtents(width, 4)});
  EnforceDims(ctx, "Input", {-1, MultiplyExtents(width, 4)});
  EnforceDims(ctx, "Bias", {1, MultiplyExtents(width, ctx.Attr<bool>("use_peepholes") ? 7 : 4)});
  for (const char* slot : {"Weight", "Bias"}) {
    EnforceSameType(ctx, slot, "Input");
  }
  HR_ENFORCE(ctx.HasInput("H0") == ctx.HasInput("C0"), InvalidArgument,
             "inputs H0 and C0: expected both or none of them");
  for (const char* slot : {"H0", "C0"}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, {-1, width});
      EnforceSameType(ctx, slot, "Input");
    }
  }
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
      for (const char* slot : {"Hidden", "Cell", "BatchCellPreAct"}) {
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
    .Input("Input", "as in the operator; only its dims and its LoD are used")
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
      for (const char* slot : {"Hidden", "Cell", "BatchCellPreAct", "Hidden@GRAD", "Cell@GRAD"}) {
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
