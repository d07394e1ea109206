// gru, gru_unit: gated recurrent units (K. Cho et al., 2014), over sequences and for one step.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/gemm.h"
#include "operators/kernel_util.h"
#include "operators/recurrent.h"

namespace headrace::ops {
namespace {

// Rows of gates hold the update gate u, the reset gate r and the candidate c. Fluid's weights are two matrices, one
// behind the other: [width, 2 width] for u and r, [width, width] for c.
template <typename T>
struct GruCell {
  GruCell(int64_t cell_width, Activation gates, Activation candidates, bool original, const T* weights)
      : width(cell_width), gate(gates), candidate(candidates), origin_mode(original), weight(weights) {}

  // For `n` sequences, from the sums of input and bias in `gates` and the state before (nullptr: zeros) to the
  // activated gates, r · before, and the new state.
  void Step(int64_t n, T* gates, const T* before, T* reset, T* hidden) {
    product_.resize(static_cast<size_t>(n * 2 * width));
    if (before != nullptr) {
      Gemm<T>(false, false, n, 2 * width, width, T(1), before, weight, false, product_.data());
    }
    ForEachSequence(n, [&](int64_t k) {
      T* u = gates + k * 3 * width;
      for (int64_t i = 0; before != nullptr && i < 2 * width; ++i) {
        u[i] += product_[static_cast<size_t>(k * 2 * width + i)];
      }
      Activate(gate, 2 * width, u, u);
      for (int64_t i = 0; i < width; ++i) {
        reset[k * width + i] = before == nullptr ? T(0) : u[width + i] * before[k * width + i];
      }
    });
    if (before != nullptr) {
      Gemm<T>(false, false, n, width, width, T(1), reset, weight + 2 * width * width, false, product_.data());
    }
    ForEachSequence(n, [&](int64_t k) {
      const T* u = gates + k * 3 * width;
      T* c = gates + (k * 3 + 2) * width;
      for (int64_t i = 0; before != nullptr && i < width; ++i) {
        c[i] += product_[static_cast<size_t>(k * width + i)];
      }
      Activate(candidate, width, c, c);
      for (int64_t i = 0; i < width; ++i) {
        const T b = before == nullptr ? T(0) : before[k * width + i];
        hidden[k * width + i] = origin_mode ? u[i] * b + (1 - u[i]) * c[i] : (1 - u[i]) * b + u[i] * c[i];
      }
    });
  }

  // From the gradient of the new state to those of the sums and, added up, of the state before and of the weights;
  // those may be nullptr.
  void StepBack(int64_t n, const T* gates, const T* before, const T* reset, const T* hidden_grad, T* gates_grad,
                T* before_grad, T* weight_grad) {
    const auto size = static_cast<size_t>(n * width);
    product_.resize(size);     // d (r · before)
    candidates_.resize(size);  // d of the sums of c, row below row
    both_.resize(2 * size);    // d of the sums of u and r
    ForEachSequence(n, [&](int64_t k) {
      const T* u = gates + k * 3 * width;
      const T* c = u + 2 * width;
      for (int64_t i = 0; i < width; ++i) {
        const int64_t at = k * width + i;
        const T b = before == nullptr ? T(0) : before[at];
        const T towards_candidate = origin_mode ? 1 - u[i] : u[i];
        const T by_update = origin_mode ? b - c[i] : c[i] - b;
        both_[static_cast<size_t>(2 * k * width + i)] = hidden_grad[at] * by_update * ActivationDerivative(gate, u[i]);
        candidates_[static_cast<size_t>(at)] =
            hidden_grad[at] * towards_candidate * ActivationDerivative(candidate, c[i]);
        if (before_grad != nullptr) {
          before_grad[at] += hidden_grad[at] * (1 - towards_candidate);
        }
      }
    });
    if (before != nullptr) {
      Gemm<T>(false, true, n, width, width, T(1), candidates_.data(), weight + 2 * width * width, false,
              product_.data());
    }
    ForEachSequence(n, [&](int64_t k) {
      const T* r = gates + (k * 3 + 1) * width;
      for (int64_t i = 0; i < width; ++i) {
        const int64_t at = k * width + i;
        const T d = before == nullptr ? T(0) : product_[static_cast<size_t>(at)];
        both_[static_cast<size_t>((2 * k + 1) * width + i)] =
            before == nullptr ? T(0) : d * before[at] * ActivationDerivative(gate, r[i]);
        if (before_grad != nullptr) {
          before_grad[at] += d * r[i];
        }
      }
      std::copy_n(both_.data() + 2 * k * width, 2 * width, gates_grad + k * 3 * width);
      std::copy_n(candidates_.data() + k * width, width, gates_grad + (k * 3 + 2) * width);
    });
    if (before_grad != nullptr) {
      Gemm<T>(false, true, n, width, 2 * width, T(1), both_.data(), weight, true, before_grad);
    }
    if (weight_grad != nullptr && before != nullptr) {
      Gemm<T>(true, false, width, 2 * width, n, T(1), before, both_.data(), true, weight_grad);
      Gemm<T>(true, false, width, width, n, T(1), reset, candidates_.data(), true, weight_grad + 2 * width * width);
    }
  }

  int64_t width;
  Activation gate;
  Activation candidate;
  bool origin_mode;
  const T* weight;

 private:
  // Calls visit(k) for each of `n` sequences, from several threads.
  template <typename Visit>
  void ForEachSequence(int64_t n, const Visit& visit) const {
    ParallelFor(n, RowsPerBlock(16 * width), [&visit](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        visit(k);
      }
    });
  }

  PoolVector<T> product_;
  PoolVector<T> candidates_;
  PoolVector<T> both_;
};

template <typename T>
void AddBias(const T* bias, int64_t rows, int64_t width, T* to) {
  for (int64_t r = 0; bias != nullptr && r < rows; ++r, to += width) {
    for (int64_t c = 0; c < width; ++c) {
      to[c] += bias[c];
    }
  }
}

// --- gru ---

template <typename T>
GruCell<T> GruCellOf(const ExecutionContext& ctx) {
  return {ctx.Input("Weight").dims()[0], ActivationOf(ctx.Attr<std::string>("gate_activation")),
          ActivationOf(ctx.Attr<std::string>("activation")), ctx.Attr<bool>("origin_mode"),
          ctx.Input("Weight").data<T>()};
}

// The rows of H0, longest sequence first; empty without it.
template <typename T>
PoolVector<T> FirstStates(const ExecutionContext& ctx, const StepBatches& batches) {
  const LoDTensor* states = ctx.InputOrNull("H0");
  if (states == nullptr) {
    return {};
  }
  const auto sequences = static_cast<int64_t>(SequencesOf(ctx, "Input").size()) - 1;
  HR_ENFORCE(states->dims()[0] == sequences, InvalidArgument, "input H0: expected ", sequences,
             " rows, one for each sequence of Input, got dims ", ToString(states->dims()));
  PoolVector<T> sorted(static_cast<size_t>(states->numel()));
  batches.SortStates(states->data<T>(), states->dims()[1], sorted.data());
  return sorted;
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
  PoolVector<T> first = FirstStates<T>(ctx, batches);
  batches.ToBatches(ctx.Input("Input").data<T>(), 3 * width, gates);
  AddBias(ElementsOrNull<T>(ctx, "Bias"), rows, 3 * width, gates);
  const T* before = first.empty() ? nullptr : first.data();
  for (size_t t = 0; t < batches.steps(); ++t) {
    const int64_t at = batches.Begin(t) * width;
    cell.Step(batches.Size(t), gates + 3 * at, before, reset + at, hidden + at);
    before = hidden + at;
  }
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
  PoolVector<T> first = FirstStates<T>(ctx, batches);
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

// Checks the inputs that operators and gradients share; returns the dims of the state. `rows`: of `state`, -1 if only
// the LoD tells.
DDim CheckGru(const InferShapeContext& ctx, const char* state, int64_t rows) {
  EnforceRank(ctx, "Input", 2);
  EnforceRank(ctx, "Weight", 2);
  const int64_t width = ctx.InputDim("Weight")[0];
  HR_ENFORCE(width > 0, InvalidArgument, "input Weight: expected dims [D, 3 D], got ",
             ToString(ctx.InputDim("Weight")));
  const int64_t gates = MultiplyExtents(width, 3);
  EnforceDims(ctx, "Weight", {width, gates});
  EnforceDims(ctx, "Input", {-1, gates});
  EnforceSameType(ctx, "Weight", "Input");
  if (ctx.HasInput("Bias")) {
    EnforceDims(ctx, "Bias", {1, gates});
    EnforceSameType(ctx, "Bias", "Input");
  }
  if (ctx.HasInput(state)) {
    EnforceDims(ctx, state, {rows, width});
    EnforceSameType(ctx, state, "Input");
  }
  return {ctx.InputDim("Input")[0], width};
}

OpRegistrar&& OriginMode(OpRegistrar&& op) {
  return std::move(op).Attr<bool>("origin_mode",
                                  "whether h = u h' + (1 - u) c, as in the paper, instead of (1 - u) h' + u c", false);
}

OpRegistrar&& GruAttrs(OpRegistrar&& op) {
  return OriginMode(std::move(op))
      .With(ActivationAttr, "activation", "of the candidate", "tanh")
      .With(ActivationAttr, "gate_activation", "of the gates", "sigmoid")
      .Attr<bool>("is_reverse", "whether sequences are read from their end", false);
}

// --- gru_unit ---

// Fluid numbers the activations.
OpRegistrar&& GruUnitAttrs(OpRegistrar&& op) {
  const auto check = [](const int32_t& value) {
    HR_ENFORCE(0 <= value && value <= 3, InvalidArgument,
               "attributes activation and gate_activation: expected a number in [0, 3], got ", value);
  };
  return OriginMode(std::move(op))
      .Attr<int32_t>("activation", "of the candidate: 0 identity, 1 sigmoid, 2 tanh, 3 relu", 2, check)
      .Attr<int32_t>("gate_activation", "of the gates, likewise", 1, check);
}

template <typename T>
GruCell<T> GruUnitCellOf(const ExecutionContext& ctx) {
  return {ctx.Input("Weight").dims()[0], static_cast<Activation>(ctx.Attr<int32_t>("gate_activation")),
          static_cast<Activation>(ctx.Attr<int32_t>("activation")), ctx.Attr<bool>("origin_mode"),
          ctx.Input("Weight").data<T>()};
}

template <typename T>
void GruUnitKernel(const ExecutionContext& ctx) {
  GruCell<T> cell = GruUnitCellOf<T>(ctx);
  const LoDTensor& input = ctx.Input("Input");
  const int64_t rows = input.dims()[0];
  T* gates = ctx.Output("Gate")->mutable_data<T>();
  T* reset = ctx.Output("ResetHiddenPrev")->mutable_data<T>();
  T* hidden = ctx.Output("Hidden")->mutable_data<T>();
  std::copy_n(input.data<T>(), input.numel(), gates);
  AddBias(ElementsOrNull<T>(ctx, "Bias"), rows, 3 * cell.width, gates);
  cell.Step(rows, gates, ctx.Input("HiddenPrev").data<T>(), reset, hidden);
}

template <typename T>
void GruUnitGradKernel(const ExecutionContext& ctx) {
  GruCell<T> cell = GruUnitCellOf<T>(ctx);
  const LoDTensor& gate = ctx.Input("Gate");
  const int64_t rows = gate.dims()[0];
  T* input_grad = MutableOrNull<T>(ctx, "Input@GRAD");
  T* before_grad = ZerosOrNull<T>(ctx, "HiddenPrev@GRAD");
  T* weight_grad = ZerosOrNull<T>(ctx, "Weight@GRAD");
  T* bias_grad = ZerosOrNull<T>(ctx, "Bias@GRAD");
  PoolVector<T> d_gates(static_cast<size_t>(gate.numel()));
  cell.StepBack(rows, gate.data<T>(), ctx.Input("HiddenPrev").data<T>(), ctx.Input("ResetHiddenPrev").data<T>(),
                ctx.Input("Hidden@GRAD").data<T>(), d_gates.data(), before_grad, weight_grad);
  if (bias_grad != nullptr) {
    AddRows(d_gates.data(), rows, 3 * cell.width, bias_grad);
  }
  if (input_grad != nullptr) {
    std::copy_n(d_gates.data(), gate.numel(), input_grad);
  }
}

DDim CheckGruUnit(const InferShapeContext& ctx) {
  EnforceRank(ctx, "Input", 2);
  return CheckGru(ctx, "HiddenPrev", ctx.InputDim("Input")[0]);
}

void EnforceLikeInput(const InferShapeContext& ctx, std::initializer_list<const char*> slots, const DDim& dims) {
  for (const char* slot : slots) {
    EnforceDims(ctx, slot, dims);
    EnforceSameType(ctx, slot, "Input");
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
      for (const char* slot : {"Hidden", "BatchResetHiddenPrev", "BatchHidden"}) {
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
    .Input("Input", "as in the operator; only its dims and its LoD are used")
    .Input("H0", "as in the operator", kDispensable)
    .Input("Weight", "as in the operator")
    .Input("Bias", "as in the operator; only its dims are used", kDispensable)
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

HEADRACE_REGISTER_OP(gru_unit)
    .Comment("One step of gru.")
    .Input("Input", "[rows, 3 D]: x of update gate, reset gate and candidate")
    .Input("HiddenPrev", "[rows, D]: h'")
    .Input("Weight", "[D, 3 D], as for gru")
    .Input("Bias", "[1, 3 D]", kDispensable)
    .Output("Gate", "[rows, 3 D]: gates and candidate")
    .Output("ResetHiddenPrev", "[rows, D]: r h'")
    .Output("Hidden", "[rows, D]: h")
    .With(GruUnitAttrs)
    .KernelTypeFrom("Input")
    .InferShape([](InferShapeContext& ctx) {
      const DDim hidden = CheckGruUnit(ctx);
      SetOutput(ctx, "Gate", ctx.InputDim("Input"), ctx.InputType("Input"));
      SetOutput(ctx, "ResetHiddenPrev", hidden, ctx.InputType("Input"));
      SetOutput(ctx, "Hidden", hidden, ctx.InputType("Input"));
      ctx.ShareLoD("Input", "Hidden");
    })
    .Kernel<float>(GruUnitKernel<float>)
    .Kernel<double>(GruUnitKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Input", "HiddenPrev", "Weight", "Bias"},
                               .outputs = {"Gate", "ResetHiddenPrev"},
                               .no_gradient = {}}));

HEADRACE_REGISTER_OP(gru_unit_grad)
    .Comment("Gradient of gru_unit, by way of Hidden.")
    .Input("Input", "as in the operator; only its dims are used")
    .Input("HiddenPrev", "as in the operator")
    .Input("Weight", "as in the operator")
    .Input("Bias", "as in the operator; only its dims are used", kDispensable)
    .Input("Gate", "as in the operator")
    .Input("ResetHiddenPrev", "as in the operator")
    .Input("Hidden@GRAD", "gradient of Hidden")
    .Input("Gate@GRAD", "not used", kDispensable)
    .Input("ResetHiddenPrev@GRAD", "not used", kDispensable)
    .Output("Input@GRAD", "dims of Input", kDispensable)
    .Output("HiddenPrev@GRAD", "dims of HiddenPrev", kDispensable)
    .Output("Weight@GRAD", "dims of Weight", kDispensable)
    .Output("Bias@GRAD", "dims of Bias", kDispensable)
    .With(GruUnitAttrs)
    .KernelTypeFrom("Input")
    .InferShape([](InferShapeContext& ctx) {
      EnforceLikeInput(ctx, {"ResetHiddenPrev", "Hidden@GRAD"}, CheckGruUnit(ctx));
      EnforceLikeInput(ctx, {"Gate"}, ctx.InputDim("Input"));
      InferGradients(ctx, {"Input", "HiddenPrev", "Weight", "Bias"});
    })
    .Kernel<float>(GruUnitGradKernel<float>)
    .Kernel<double>(GruUnitGradKernel<double>);

}  // namespace headrace::ops
