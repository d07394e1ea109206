// The cell of long short-term memory, which lstm, lstmp and the fused operators share.
//
// S. Hochreiter and J. Schmidhuber, Long short-term memory, 1997; peepholes: F. Gers and J. Schmidhuber, 2000. Gates
// lie in the order of Fluid: candidate, input, forget, output.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm.h"
#include "operators/recurrent/recurrent.h"

namespace headrace::ops {

// The cell of one operator: its width, its activations, the weights of its peepholes (nullptr: none) and the bound of
// its state (0: none).
template <typename T>
struct LstmCell {
  explicit LstmCell(const ExecutionContext& ctx, double state_bound = 0, HashedName weight = "Weight")
      : width(ctx.Input(weight).dims()[1] / 4),
        bound(static_cast<T>(state_bound)),
        gate(ActivationOf(ctx.Text("gate_activation"))),
        cell(ActivationOf(ctx.Text("cell_activation"))),
        candidate(ActivationOf(ctx.Text("candidate_activation"))) {
    if (ctx.Attr<bool>("use_peepholes")) {
      by_input = ctx.Input("Bias").data<T>() + 4 * width;
      by_forget = by_input + width;
      by_output = by_forget + width;
    }
  }

  // How many rows a thread takes at a time.
  int64_t RowsPerStep() const { return RowsPerBlock(16 * width); }

  // From the sums `gates` (4 · width) and the state before (nullptr: zeros) to the activated gates, the state, its
  // activation and the result.
  void Step(T* gates, const T* before, T* state, T* activated, T* hidden) const {
    T* input = gates + width;
    T* forget = input + width;
    T* output = forget + width;
    if (by_input != nullptr && before != nullptr) {
      for (int64_t i = 0; i < width; ++i) {
        input[i] += by_input[i] * before[i];
        forget[i] += by_forget[i] * before[i];
      }
    }
    Activate(candidate, width, gates, gates);
    Activate(gate, 2 * width, input, input);
    for (int64_t i = 0; i < width; ++i) {
      state[i] = gates[i] * input[i] + (before == nullptr ? T(0) : before[i] * forget[i]);
    }
    for (int64_t i = 0; bound > 0 && i < width; ++i) {
      state[i] = std::clamp(state[i], -bound, bound);
    }
    for (int64_t i = 0; by_output != nullptr && i < width; ++i) {
      output[i] += by_output[i] * state[i];
    }
    Activate(gate, width, output, output);
    Activate(cell, width, state, activated);
    for (int64_t i = 0; i < width; ++i) {
      hidden[i] = output[i] * activated[i];
    }
  }

  // From the gradients of result and state to those of the sums and (added up) of the state before; and those of the
  // peepholes, added up, 3 · width, if there are any.
  void StepBack(const T* gates, const T* before, const T* state, const T* activated, const T* hidden_grad,
                const T* state_grad, T* gates_grad, T* before_grad, T* peepholes_grad) const {
    if (by_output == nullptr && bound == 0 && gate == Activation::kSigmoid && cell == Activation::kTanh &&
        candidate == Activation::kTanh) {
      StepBackByDefault(gates, before, activated, hidden_grad, state_grad, gates_grad, before_grad);
      return;
    }
    const T* input = gates + width;
    const T* forget = input + width;
    const T* output = forget + width;
    for (int64_t i = 0; i < width; ++i) {
      const T d_output = hidden_grad[i] * activated[i] * ActivationDerivative(gate, output[i]);
      T d_state = state_grad[i] + hidden_grad[i] * output[i] * ActivationDerivative(cell, activated[i]);
      if (by_output != nullptr) {
        d_state += d_output * by_output[i];
      }
      if (bound > 0 && std::abs(state[i]) >= bound) {
        d_state = 0;
      }
      const T d_input = d_state * gates[i] * ActivationDerivative(gate, input[i]);
      const T d_forget = before == nullptr ? T(0) : d_state * before[i] * ActivationDerivative(gate, forget[i]);
      gates_grad[i] = d_state * input[i] * ActivationDerivative(candidate, gates[i]);
      gates_grad[width + i] = d_input;
      gates_grad[2 * width + i] = d_forget;
      gates_grad[3 * width + i] = d_output;
      if (before_grad != nullptr) {
        before_grad[i] += d_state * forget[i];
        if (by_input != nullptr) {
          before_grad[i] += d_input * by_input[i] + d_forget * by_forget[i];
        }
      }
      if (peepholes_grad != nullptr) {
        peepholes_grad[i] += before == nullptr ? T(0) : d_input * before[i];
        peepholes_grad[width + i] += before == nullptr ? T(0) : d_forget * before[i];
        peepholes_grad[2 * width + i] += d_output * state[i];
      }
    }
  }

  // The same with Fluid's activations, neither peepholes nor bound: loops that the compiler vectorises, over blocks
  // that stay in the first-level cache.
  void StepBackByDefault(const T* gates, const T* before, const T* activated, const T* hidden_grad, const T* state_grad,
                         T* __restrict gates_grad, T* __restrict before_grad) const {
    constexpr int64_t kBlock = 256;
    constexpr auto sigmoid = [](T y) { return ActivationDerivative(Activation::kSigmoid, y); };
    constexpr auto tanh = [](T y) { return ActivationDerivative(Activation::kTanh, y); };
    T d_state[kBlock];
    for (int64_t begin = 0; begin < width; begin += kBlock) {
      const int64_t n = std::min(kBlock, width - begin);
      const T* g = gates + begin;
      const T* input = g + width;
      const T* forget = input + width;
      const T* output = forget + width;
      T* __restrict d = gates_grad + begin;
      for (int64_t i = 0; i < n; ++i) {
        const T h = hidden_grad[begin + i];
        const T c = activated[begin + i];
        d[3 * width + i] = h * c * sigmoid(output[i]);
        d_state[i] = state_grad[begin + i] + h * output[i] * tanh(c);
      }
      for (int64_t i = 0; i < n; ++i) {
        d[i] = d_state[i] * input[i] * tanh(g[i]);
        d[width + i] = d_state[i] * g[i] * sigmoid(input[i]);
      }
      for (int64_t i = 0; i < n; ++i) {
        d[2 * width + i] = before == nullptr ? T(0) : d_state[i] * before[begin + i] * sigmoid(forget[i]);
      }
      for (int64_t i = 0; before_grad != nullptr && i < n; ++i) {
        before_grad[begin + i] += d_state[i] * forget[i];
      }
    }
  }

  int64_t width;
  T bound;
  Activation gate;
  Activation cell;
  Activation candidate;
  const T* by_input = nullptr;
  const T* by_forget = nullptr;
  const T* by_output = nullptr;
};

template <typename T>
T* DataOrNull(PoolVector<T>& values) {
  return values.empty() ? nullptr : values.data();
}

// Goes through the steps with the states before the first one (empty: zeros). `gates`, in batch order: the sums of
// input and bias, which become the activated gates; `activated`: the activations of the states, in batch order;
// `hidden_out` and `state_out` get their rows in the order of the sequences.
template <typename T>
void LstmSteps(const LstmCell<T>& cell, const StepBatches& batches, const T* weight, PoolVector<T> hidden_before,
               PoolVector<T> state_before, T* gates, T* activated, T* hidden_out, T* state_out) {
  const int64_t width = cell.width;
  const auto size = static_cast<size_t>(batches.NumSequences() * width);
  PoolVector<T> hidden(size);
  PoolVector<T> state(size);
  for (size_t t = 0; t < batches.steps(); ++t) {
    const int64_t begin = batches.Begin(t);
    const int64_t n = batches.Size(t);
    const T* from = DataOrNull(state_before);
    if (const T* before = DataOrNull(hidden_before)) {
      Gemm<T>(false, false, n, 4 * width, width, T(1), before, weight, true, gates + begin * 4 * width);
    }
    ParallelFor(n, cell.RowsPerStep(), [&](int64_t first, int64_t end) {
      for (int64_t r = first; r < end; ++r) {
        const int64_t at = (begin + r) * width;
        cell.Step(gates + 4 * at, from == nullptr ? nullptr : from + r * width, state.data() + r * width,
                  activated + at, hidden.data() + r * width);
      }
    });
    batches.FromStep(t, hidden.data(), width, hidden_out);
    batches.FromStep(t, state.data(), width, state_out);
    hidden_before.resize(size);
    state_before.resize(size);
    hidden.swap(hidden_before);
    state.swap(state_before);
  }
}

// The rows that step `t` of a tensor in batch order begins with; before the first step, those of `initial`.
template <typename T>
T* StepBefore(const StepBatches& batches, size_t t, int64_t width, T* rows, T* initial) {
  return t == 0 ? initial : rows + batches.Begin(t - 1) * width;
}

inline OpRegistrar&& LstmAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<bool>("use_peepholes", "whether gates see the state of the cell", true)
      .Attr<bool>("is_reverse", "whether sequences are read from their end", false)
      .With(ActivationAttr, "gate_activation", "of the gates", "sigmoid")
      .With(ActivationAttr, "cell_activation", "of the state", "tanh")
      .With(ActivationAttr, "candidate_activation", "of the candidate", "tanh");
}

// Checks the inputs that lstm and lstmp have, and their gradients: `state` is the width of c, `result` that of what the
// next step sees, `first` that of H0.
inline void CheckLstmInputs(const InferShapeContext& ctx, int64_t state, int64_t result, int64_t first) {
  EnforceDims(ctx, "Weight", {result, MultiplyExtents(state, 4)});
  EnforceDims(ctx, "Input", {-1, MultiplyExtents(state, 4)});
  EnforceDims(ctx, "Bias", {1, MultiplyExtents(state, ctx.Attr<bool>("use_peepholes") ? 7 : 4)});
  for (const HashedName slot : HashedNames{"Weight", "Bias"}) {
    EnforceSameType(ctx, slot, "Input");
  }
  HR_ENFORCE(ctx.HasInput("H0") == ctx.HasInput("C0"), InvalidArgument,
             "inputs H0 and C0: expected both or none of them");
  for (const auto& [slot, width] : {std::pair("H0", first), std::pair("C0", state)}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, {-1, width});
      EnforceSameType(ctx, slot, "Input");
    }
  }
}

template <typename T, void (*kKernel)(const ExecutionContext&)>
void Checked(const ExecutionContext& ctx) {
  EnforceStateRows(ctx, "H0", "Input");
  EnforceStateRows(ctx, "C0", "Input");
  kKernel(ctx);
}

}  // namespace headrace::ops
