// The cell of gated recurrent units, which gru, gru_unit and fusion_gru share (K. Cho et al., 2014).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm.h"
#include "operators/recurrent/recurrent.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {

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

// Checks the inputs that operators and gradients share; returns the dims of the state. `rows`: of `state`, -1 if only
// the LoD tells.
inline DDim CheckGru(const InferShapeContext& ctx, const char* state, int64_t rows) {
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

// Checks that inputs have `dims` and the dtype of Input.
inline void EnforceLikeInput(const InferShapeContext& ctx, HashedNames slots, const DDim& dims) {
  for (const HashedName slot : slots) {
    EnforceDims(ctx, slot, dims);
    EnforceSameType(ctx, slot, "Input");
  }
}

// Declares the attribute origin_mode.
inline OpRegistrar&& OriginMode(OpRegistrar&& op) {
  return std::move(op).Attr<bool>("origin_mode",
                                  "whether h = u h' + (1 - u) c, as in the paper, instead of (1 - u) h' + u c", false);
}

// The rows of H0, longest sequence first; empty without it.
template <typename T>
PoolVector<T> FirstStates(const ExecutionContext& ctx, HashedName input, const StepBatches& batches) {
  EnforceStateRows(ctx, "H0", input);
  return InitialStates<T>(ctx, "H0", batches);
}

// Goes through the steps, all in batch order: from the sums of input and bias in `gates` to the activated gates, r · h'
// and the states. `first`: those before the first step, longest sequence first; empty: zeros.
template <typename T>
void GruSteps(GruCell<T>* cell, const StepBatches& batches, const PoolVector<T>& first, T* gates, T* reset, T* hidden) {
  const T* before = first.empty() ? nullptr : first.data();
  for (size_t t = 0; t < batches.steps(); ++t) {
    const int64_t at = batches.Begin(t) * cell->width;
    cell->Step(batches.Size(t), gates + 3 * at, before, reset + at, hidden + at);
    before = hidden + at;
  }
}

inline OpRegistrar&& GruAttrs(OpRegistrar&& op) {
  return OriginMode(std::move(op))
      .With(ActivationAttr, "activation", "of the candidate", "tanh")
      .With(ActivationAttr, "gate_activation", "of the gates", "sigmoid")
      .Attr<bool>("is_reverse", "whether sequences are read from their end", false);
}

}  // namespace headrace::ops
