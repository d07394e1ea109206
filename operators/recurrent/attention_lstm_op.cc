// attention_lstm: long short-term memory whose input, at every step, is the mean of all rows of the sequence, weighted
// by what the state of the cell attends to (V. Mnih et al., Recurrent models of visual attention, 2014; D. Bahdanau,
// K. Cho and Y. Bengio, Neural machine translation by jointly learning to align and translate, 2015).
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/gemm.h"
#include "operators/math/softmax.h"
#include "operators/recurrent/fusion.h"
#include "operators/recurrent/recurrent.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

template <typename T>
T Relu(T x) {
  return x < 0 ? T(0) : x;
}

// One sequence after the other: each row of the result follows from the one before. Gates lie in the order forget,
// input, output, candidate.
template <typename T>
void AttentionLstmKernel(const ExecutionContext& ctx) {
  const LoDOffsets& offsets = SequencesOf(ctx, "X");
  const int64_t rows = ctx.Input("X").dims()[0];
  const int64_t m = ctx.Input("X").dims()[1];
  const int64_t d = ctx.Input("C0").dims()[1];
  EnforceStateRows(ctx, "C0", "X");
  EnforceStateRows(ctx, "H0", "X");
  const T* x = ctx.Input("X").data<T>();
  const T* attention = ctx.Input("AttentionWeight").data<T>();
  const T* bias = ElementsOrNull<T>(ctx, "AttentionBias");
  const T* scalar = ElementsOrNull<T>(ctx, "AttentionScalar");
  const T* scalar_bias = ElementsOrNull<T>(ctx, "AttentionScalarBias");
  const T* weight = ctx.Input("LSTMWeight").data<T>();
  const T* lstm_bias = ctx.Input("LSTMBias").data<T>();
  const T* first_hidden = ElementsOrNull<T>(ctx, "H0");
  const T* first_state = ctx.Input("C0").data<T>();
  const Activation gate = ActivationOf(ctx.Text("gate_activation"));
  const Activation cell = ActivationOf(ctx.Text("cell_activation"));
  const Activation candidate = ActivationOf(ctx.Text("candidate_activation"));
  T* hidden_out = ctx.Output("Hidden")->mutable_data<T>();
  T* state_out = ctx.Output("Cell")->mutable_data<T>();
  PoolVector<T> of_rows(static_cast<size_t>(rows));  // the part of the scores that no step changes
  Gemm<T>(false, false, rows, 1, m, T(1), x, attention, false, of_rows.data());
  PoolVector<T> weights(static_cast<size_t>(rows));
  PoolVector<T> mean(static_cast<size_t>(m));
  PoolVector<T> gates(static_cast<size_t>(4 * d));
  PoolVector<T> activated(static_cast<size_t>(d));
  ForEachSequence(offsets, [&](int64_t s, int64_t begin, int64_t end) {
    const T* hidden = first_hidden == nullptr ? nullptr : first_hidden + s * d;
    const T* state = first_state + s * d;
    const int64_t n = end - begin;
    for (int64_t step = begin; step < end; ++step) {
      T of_state = bias == nullptr ? T(0) : *bias;
      for (int64_t i = 0; i < d; ++i) {
        of_state += state[i] * attention[m + i];
      }
      for (int64_t i = 0; i < n; ++i) {
        T score = Relu(of_rows[static_cast<size_t>(begin + i)] + of_state);
        if (scalar != nullptr) {
          score = Relu(*scalar * score + (scalar_bias == nullptr ? T(0) : *scalar_bias));
        }
        weights[static_cast<size_t>(i)] = score;
      }
      Softmax(1, n, weights.data(), weights.data());
      Gemm<T>(false, false, 1, m, n, T(1), weights.data(), x + begin * m, false, mean.data());
      std::copy_n(lstm_bias, 4 * d, gates.data());
      if (hidden != nullptr) {
        Gemm<T>(false, false, 1, 4 * d, d, T(1), hidden, weight, true, gates.data());
      }
      Gemm<T>(false, false, 1, 4 * d, m, T(1), mean.data(), weight + d * 4 * d, true, gates.data());
      Activate(gate, 3 * d, gates.data(), gates.data());
      Activate(candidate, d, gates.data() + 3 * d, gates.data() + 3 * d);
      const T* forget = gates.data();
      const T* input = forget + d;
      const T* output = input + d;
      const T* proposed = output + d;
      T* next_state = state_out + step * d;
      for (int64_t i = 0; i < d; ++i) {
        next_state[i] = forget[i] * state[i] + input[i] * proposed[i];
      }
      Activate(cell, d, next_state, activated.data());
      T* next_hidden = hidden_out + step * d;
      for (int64_t i = 0; i < d; ++i) {
        next_hidden[i] = output[i] * activated[static_cast<size_t>(i)];
      }
      state = next_state;
      hidden = next_hidden;
    }
  });
}

void InferAttentionLstm(InferShapeContext& ctx) {
  EnforceSequences(ctx, "X", 2);
  EnforceRank(ctx, "X", 2);
  EnforceRank(ctx, "C0", 2);
  const int64_t m = ctx.InputDim("X")[1];
  const int64_t d = ctx.InputDim("C0")[1];
  const int64_t both = m < 0 || d < 0 ? -1 : m + d;
  const int64_t gates = d < 0 ? -1 : MultiplyExtents(d, 4);
  EnforceDims(ctx, "AttentionWeight", {both, 1});
  EnforceDims(ctx, "LSTMWeight", {both, gates});
  EnforceDims(ctx, "LSTMBias", {1, gates});
  if (ctx.HasInput("H0")) {
    EnforceDims(ctx, "H0", ctx.InputDim("C0"));
  }
  HR_ENFORCE(!ctx.HasInput("AttentionScalarBias") || ctx.HasInput("AttentionScalar"), InvalidArgument,
             "input AttentionScalar: expected one, since there is an AttentionScalarBias");
  for (const HashedName slot : HashedNames{"AttentionBias", "AttentionScalar", "AttentionScalarBias"}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, {1, 1});
    }
  }
  for (const HashedName slot : HashedNames{"C0", "H0", "AttentionWeight", "AttentionBias", "AttentionScalar",
                                           "AttentionScalarBias", "LSTMWeight", "LSTMBias"}) {
    if (ctx.HasInput(slot)) {
      EnforceSameType(ctx, slot, "X");
    }
  }
  for (const HashedName slot : HashedNames{"Hidden", "Cell"}) {
    SetOutput(ctx, slot, {ctx.InputDim("X")[0], d}, ctx.InputType("X"));
    ctx.ShareLoD("X", slot);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(attention_lstm)
    .Comment(
        "A step of a sequence: scores relu([x, c] AttentionWeight + AttentionBias) of all rows x of the sequence (and "
        "relu(AttentionScalar score + AttentionScalarBias) of these); the mean of the rows, weighted by the softmax of "
        "the scores; and a step of lstm with [h, mean] LSTMWeight + LSTMBias. For inference: it has no gradient, nor "
        "has it in Fluid.")
    .Input("X", "[rows, M] with LoD")
    .Input("C0", "[number of sequences, D]: the first c")
    .Input("H0", "[number of sequences, D]: the first h; zeros if absent", kDispensable)
    .Input("AttentionWeight", "[M + D, 1]")
    .Input("AttentionBias", "[1, 1]", kDispensable)
    .Input("AttentionScalar", "[1, 1]", kDispensable)
    .Input("AttentionScalarBias", "[1, 1]", kDispensable)
    .Input("LSTMWeight", "[D + M, 4 D]: forget, input and output gate, candidate")
    .Input("LSTMBias", "[1, 4 D]")
    .Output("Hidden", "[rows, D]: h; LoD of X")
    .Output("Cell", "[rows, D]: c; LoD of X")
    .With(UnusedOutputs, std::vector<std::string>{"AttentionedX", "AttentionFCOut", "LSTMX", "LSTMOUT"})
    .With(ActivationAttr, "gate_activation", "of the gates", "sigmoid")
    .With(ActivationAttr, "cell_activation", "of the state", "tanh")
    .With(ActivationAttr, "candidate_activation", "of the candidate", "tanh")
    .InferShape(InferAttentionLstm)
    .KernelTypeFrom("X")
    .Kernel<float>(AttentionLstmKernel<float>)
    .Kernel<double>(AttentionLstmKernel<double>);

}  // namespace headrace::ops
