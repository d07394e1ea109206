// linear_chain_crf: the likelihood of the labels of sequences.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/scratch.h"
#include "operators/sequence/linear_chain_crf.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

constexpr int64_t kWorkOfExp = 16;  // in elements of which little is made

// log Σ exp of `n` numbers, which overflows nowhere.
template <typename T, typename At>
T LogSumExp(int64_t n, At&& at) {
  T max = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    max = std::max(max, at(i));
  }
  if (!std::isfinite(max)) {
    return max;
  }
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += std::exp(at(i) - max);
  }
  return max + std::log(sum);
}

// alpha[r, k]: log of the sum over all labels of the rows before, row r having label k. Returns log Z.
template <typename T>
T Forward(const CrfWeights<T>& w, int64_t rows, const T* emission, T* alpha) {
  const int64_t labels = w.labels;
  for (int64_t k = 0; k < labels; ++k) {
    alpha[k] = w.start[k] + emission[k];
  }
  for (int64_t r = 1; r < rows; ++r) {
    const T* before = alpha + (r - 1) * labels;
    for (int64_t k = 0; k < labels; ++k) {
      alpha[r * labels + k] =
          emission[r * labels + k] + LogSumExp<T>(labels, [&](int64_t j) { return before[j] + w.Next(j, k); });
    }
  }
  const T* last = alpha + (rows - 1) * labels;
  return LogSumExp<T>(labels, [&](int64_t k) { return last[k] + w.end[k]; });
}

// beta[r, k]: the same for the rows behind.
template <typename T>
void Backward(const CrfWeights<T>& w, int64_t rows, const T* emission, T* beta) {
  const int64_t labels = w.labels;
  std::copy_n(w.end, labels, beta + (rows - 1) * labels);
  for (int64_t r = rows - 1; r-- > 0;) {
    const T* behind = beta + (r + 1) * labels;
    const T* x = emission + (r + 1) * labels;
    for (int64_t k = 0; k < labels; ++k) {
      beta[r * labels + k] = LogSumExp<T>(labels, [&](int64_t j) { return w.Next(k, j) + x[j] + behind[j]; });
    }
  }
}

// The log of the weight of the given labels.
template <typename T>
T Score(const CrfWeights<T>& w, int64_t rows, const T* emission, const int64_t* label) {
  T score = w.start[label[0]] + w.end[label[rows - 1]];
  for (int64_t r = 0; r < rows; ++r) {
    score += emission[r * w.labels + label[r]] + (r == 0 ? T(0) : w.Next(label[r - 1], label[r]));
  }
  return score;
}

// `labels`: how many there are.
void CheckLabels(const ExecutionContext& ctx, const SequenceRanges& sequences, int64_t labels) {
  EnforceSequencesOfLabels(ctx);
  const int64_t* values = ctx.Input("Label").data<int64_t>();
  ForEachFilledSequence(sequences, /*work=*/1, [&](int64_t s, int64_t first, int64_t rows) {
    for (int64_t r = first; r < first + rows; ++r) {
      HR_ENFORCE(0 <= values[r] && values[r] < labels, OutOfRange, "input Label: ", sequences.Place(s, r),
                 " has label ", values[r], ", expected one in [0, ", labels, ")");
    }
  });
}

// exp(x - less) of `n` numbers. `to` may be `x`.
template <typename T>
void ExpLess(T less, int64_t n, const T* x, T* to) {
  std::transform(x, x + n, to, [less](T value) { return std::exp(value - less); });
}

template <typename T>
void CrfKernel(const ExecutionContext& ctx) {
  const SequenceRanges sequences(ctx, "Emission", "Length");
  const LoDTensor& emission_tensor = ctx.Input("Emission");
  const int64_t labels = emission_tensor.dims().back();
  const CrfWeights<T> w(ctx.Input("Transition").data<T>(), labels);
  CheckLabels(ctx, sequences, labels);
  const T* emission = emission_tensor.data<T>();
  T* emission_exps = ctx.Output("EmissionExps")->mutable_data<T>();
  const auto exps_of_row = [=](int64_t r) {
    const T* x = emission + r * labels;
    ExpLess(*std::max_element(x, x + labels), labels, x, emission_exps + r * labels);
  };
  ParallelForEach(emission_tensor.numel() / labels, exps_of_row, labels * kWorkOfExp);
  const LoDTensor& transition = ctx.Input("Transition");
  ExpLess(T(0), transition.numel(), transition.data<T>(), ctx.Output("TransitionExps")->mutable_data<T>());
  T* alphas = ZerosOrNull<T>(ctx, "Alpha");
  LoDTensor* cost_tensor = ctx.Output("LogLikelihood");
  T* cost = cost_tensor->Resize({sequences.count(), 1}).template mutable_data<T>();
  std::fill_n(cost, cost_tensor->numel(), T(0));
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  ForEachFilledSequence(sequences, WorkOfRow(labels, kWorkOfExp), [=](int64_t s, int64_t first, int64_t rows) {
    const T* x = emission + first * labels;
    T* alpha = alphas + first * labels;
    cost[s] = Forward(w, rows, x, alpha) - Score(w, rows, x, label + first);
    for (int64_t r = 0; r < rows; ++r, alpha += labels) {
      ExpLess(LogSumExp<T>(labels, [&](int64_t k) { return alpha[k]; }), labels, alpha, alpha);
    }
  });
}

// d cost / d weight = (probability that the weight counts) − (whether it does for the given labels).
template <typename T>
void CrfGradKernel(const ExecutionContext& ctx) {
  const SequenceRanges sequences(ctx, "Emission", "Length");
  const LoDTensor& emission_tensor = ctx.Input("Emission");
  const int64_t labels = emission_tensor.dims().back();
  const CrfWeights<T> w(ctx.Input("Transition").data<T>(), labels);
  CheckLabels(ctx, sequences, labels);
  T* emission_grad = ZerosOrNull<T>(ctx, "Emission@GRAD");
  T* transition_grad = ZerosOrNull<T>(ctx, "Transition@GRAD");
  const LoDTensor& cost_grad = ctx.Input("LogLikelihood@GRAD");
  HR_ENFORCE(cost_grad.numel() == sequences.count(), InvalidArgument, "input LogLikelihood@GRAD: expected ",
             sequences.count(), " elements, one for each sequence, got dims ", ToString(cost_grad.dims()));
  const T* d = cost_grad.data<T>();
  const T* emission = emission_tensor.data<T>();
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  // Of their own: the output Alpha holds no logs, which alone have room for every weight.
  Tensor alpha_memory;
  Tensor beta_memory;
  Tensor log_z_memory;
  T* alpha = Scratch<T>(&alpha_memory, emission_tensor.numel());
  T* beta = Scratch<T>(&beta_memory, emission_tensor.numel());
  T* log_z = Scratch<T>(&log_z_memory, sequences.count());
  // How much more probable label k of row r is than the given one says.
  const auto excess = [=](int64_t s, int64_t r, int64_t k) {
    const int64_t at = r * labels + k;
    return std::exp(alpha[at] + beta[at] - log_z[s]) - static_cast<T>(label[r] == k);
  };
  ForEachFilledSequence(sequences, WorkOfRow(labels, 2 * kWorkOfExp), [=](int64_t s, int64_t first, int64_t rows) {
    const int64_t at = first * labels;
    log_z[s] = Forward(w, rows, emission + at, alpha + at);
    Backward(w, rows, emission + at, beta + at);
    for (int64_t r = first; emission_grad != nullptr && r < first + rows; ++r) {
      for (int64_t k = 0; k < labels; ++k) {
        emission_grad[r * labels + k] = d[s] * excess(s, r, k);
      }
    }
  });
  if (transition_grad == nullptr) {
    return;
  }
  // Each thread has some of the labels, and goes through all sequences in their order.
  const auto add_of_label = [=, &sequences](int64_t k) {
    for (int64_t s = 0; s < sequences.count(); ++s) {
      const int64_t first = sequences.Begin(s);
      const int64_t end = first + sequences.Length(s);
      if (first == end) {
        continue;
      }
      transition_grad[k] += d[s] * excess(s, first, k);
      transition_grad[labels + k] += d[s] * excess(s, end - 1, k);
      for (int64_t r = first + 1; r < end; ++r) {
        const T* before = alpha + (r - 1) * labels;
        const T behind = emission[r * labels + k] + beta[r * labels + k];
        for (int64_t j = 0; j < labels; ++j) {
          const T p = std::exp(before[j] + w.Next(j, k) + behind - log_z[s]);
          transition_grad[(2 + j) * labels + k] += d[s] * (p - static_cast<T>(label[r - 1] == j && label[r] == k));
        }
      }
    }
  };
  ParallelForEach(labels, add_of_label, emission_tensor.numel() * kWorkOfExp);
}

}  // namespace

HEADRACE_REGISTER_OP(linear_chain_crf)
    .Comment(
        "-log of the probability of the labels of each sequence, with weights of labels at the start, at the end, of "
        "each row, and of one label after another.")
    .Input("Emission", "[rows, K] with LoD, or [N, rows, K] with Length: the weight of each label for each row")
    .Input("Transition", "[K + 2, K]: weights at the start, at the end, and of label k after label j in row j + 2")
    .Input("Label", "int64 [rows, 1], or [N, rows] or [N, rows, 1] with Length; in [0, K)")
    .With(CrfLength)
    .Output("Alpha", "dims of Emission: the probability of each label given the rows up to it, 0 in padding; Fluid's")
    .Output("EmissionExps", "dims of Emission: exp of it less the maximum of the row; Fluid's")
    .Output("TransitionExps", "dims of Transition: its exp; Fluid's")
    .Output("LogLikelihood", "[number of sequences, 1]: -log of the probability; 0 for one without rows")
    .KernelTypeFrom("Emission")
    .InferShape([](InferShapeContext& ctx) {
      CheckCrf(ctx);
      const DataType type = ctx.InputType("Emission");
      SetOutput(ctx, "Alpha", ctx.InputDim("Emission"), type);
      SetOutput(ctx, "EmissionExps", ctx.InputDim("Emission"), type);
      SetOutput(ctx, "TransitionExps", ctx.InputDim("Transition"), type);
      if (!ctx.IsRuntime()) {
        SetOutput(ctx, "LogLikelihood", {ctx.HasInput("Length") ? ctx.InputDim("Emission")[0] : -1, 1}, type);
      }
    })
    .Kernel<float>(CrfKernel<float>)
    .Kernel<double>(CrfKernel<double>)
    .Gradient(DefaultGradient(
        {.inputs = {"Emission", "Transition", "Label", "Length"}, .outputs = {}, .no_gradient = {"Label", "Length"}}));

HEADRACE_REGISTER_OP(linear_chain_crf_grad)
    .Comment("Gradient of linear_chain_crf, by way of LogLikelihood.")
    .Input("Emission", "as in the operator")
    .Input("Transition", "as in the operator")
    .Input("Label", "as in the operator")
    .With(CrfLength)
    .Input("Alpha@GRAD", "not used", kDispensable)
    .Input("EmissionExps@GRAD", "not used", kDispensable)
    .Input("TransitionExps@GRAD", "not used", kDispensable)
    .Input("LogLikelihood@GRAD", "gradient of LogLikelihood")
    .Output("Emission@GRAD", "dims and LoD of Emission", kDispensable)
    .Output("Transition@GRAD", "dims of Transition", kDispensable)
    .KernelTypeFrom("Emission")
    .InferShape([](InferShapeContext& ctx) {
      CheckCrf(ctx);
      EnforceDims(ctx, "LogLikelihood@GRAD", {ctx.HasInput("Length") ? ctx.InputDim("Emission")[0] : -1, 1});
      EnforceSameType(ctx, "LogLikelihood@GRAD", "Emission");
      InferGradients(ctx, {"Emission", "Transition"});
      if (!ctx.HasInput("Length")) {
        ctx.ShareLoD("Emission", "Emission@GRAD");
      }
    })
    .Kernel<float>(CrfGradKernel<float>)
    .Kernel<double>(CrfGradKernel<double>);

}  // namespace headrace::ops
