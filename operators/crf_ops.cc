// linear_chain_crf, crf_decoding: labels of the rows of a sequence that depend on their neighbours (J. Lafferty, A.
// McCallum and F. Pereira, Conditional random fields, 2001).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/sequences.h"

namespace headrace::ops {
namespace {

// Fluid's Transition [K + 2, K]: the weights of a label at the start, at the end, and of one label after another.
template <typename T>
struct Weights {
  Weights(const T* transition, int64_t count)
      : labels(count), start(transition), end(transition + count), next(transition + 2 * count) {}
  T Next(int64_t from, int64_t to) const { return next[from * labels + to]; }
  int64_t labels;
  const T* start;
  const T* end;
  const T* next;
};

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
T Forward(const Weights<T>& w, int64_t rows, const T* emission, T* alpha) {
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
void Backward(const Weights<T>& w, int64_t rows, const T* emission, T* beta) {
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
T Score(const Weights<T>& w, int64_t rows, const T* emission, const int64_t* label) {
  T score = w.start[label[0]] + w.end[label[rows - 1]];
  for (int64_t r = 0; r < rows; ++r) {
    score += emission[r * w.labels + label[r]] + (r == 0 ? T(0) : w.Next(label[r - 1], label[r]));
  }
  return score;
}

// Labels without a LoD are taken to have that of Emission; padded ones need none.
void EnforceSequencesOfLabels(const ExecutionContext& ctx) {
  if (ctx.HasInput("Length")) {
    return;
  }
  const LoDTensor& label = ctx.Input("Label");
  const LoDOffsets& offsets = ctx.Input("Emission").lod().back();
  HR_ENFORCE(label.lod().empty() || label.lod().back() == offsets, InvalidArgument,
             "input Label: expected the sequences of input Emission, ", ToString(LoD{offsets}), ", got ",
             ToString(label.lod()));
}

// Calls visit(sequence, first row, rows) for each sequence that is not empty.
template <typename Visit>
void ForEachFilledSequence(const SequenceRanges& sequences, Visit&& visit) {
  for (int64_t s = 0; s < sequences.count(); ++s) {
    if (sequences.Length(s) > 0) {
      visit(s, sequences.Begin(s), sequences.Length(s));
    }
  }
}

// `labels`: how many there are.
void CheckLabels(const ExecutionContext& ctx, const SequenceRanges& sequences, int64_t labels) {
  EnforceSequencesOfLabels(ctx);
  const int64_t* values = ctx.Input("Label").data<int64_t>();
  ForEachFilledSequence(sequences, [&](int64_t s, int64_t first, int64_t rows) {
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
  const Weights<T> w(ctx.Input("Transition").data<T>(), labels);
  CheckLabels(ctx, sequences, labels);
  const T* emission = emission_tensor.data<T>();
  T* emission_exps = ctx.Output("EmissionExps")->mutable_data<T>();
  for (int64_t r = 0; r < emission_tensor.numel() / labels; ++r) {
    const T* x = emission + r * labels;
    ExpLess(*std::max_element(x, x + labels), labels, x, emission_exps + r * labels);
  }
  const LoDTensor& transition = ctx.Input("Transition");
  ExpLess(T(0), transition.numel(), transition.data<T>(), ctx.Output("TransitionExps")->mutable_data<T>());
  T* alphas = ZerosOrNull<T>(ctx, "Alpha");
  LoDTensor* cost_tensor = ctx.Output("LogLikelihood");
  T* cost = cost_tensor->Resize({sequences.count(), 1}).template mutable_data<T>();
  std::fill_n(cost, cost_tensor->numel(), T(0));
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  ForEachFilledSequence(sequences, [&](int64_t s, int64_t first, int64_t rows) {
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
  const Weights<T> w(ctx.Input("Transition").data<T>(), labels);
  CheckLabels(ctx, sequences, labels);
  T* emission_grad = ZerosOrNull<T>(ctx, "Emission@GRAD");
  T* transition_grad = ZerosOrNull<T>(ctx, "Transition@GRAD");
  const LoDTensor& cost_grad = ctx.Input("LogLikelihood@GRAD");
  HR_ENFORCE(cost_grad.numel() == sequences.count(), InvalidArgument, "input LogLikelihood@GRAD: expected ",
             sequences.count(), " elements, one for each sequence, got dims ", ToString(cost_grad.dims()));
  const T* d = cost_grad.data<T>();
  const T* emission = emission_tensor.data<T>();
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  PoolVector<T> alpha;  // anew: the output holds no logs, which alone have room for every weight
  PoolVector<T> beta;
  ForEachFilledSequence(sequences, [&](int64_t s, int64_t first, int64_t rows) {
    const T* x = emission + first * labels;
    const int64_t* y = label + first;
    alpha.resize(static_cast<size_t>(rows * labels));
    beta.resize(static_cast<size_t>(rows * labels));
    const T log_z = Forward(w, rows, x, alpha.data());
    Backward(w, rows, x, beta.data());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < labels; ++k) {
        const int64_t at = r * labels + k;
        const T excess = std::exp(alpha[static_cast<size_t>(at)] + beta[static_cast<size_t>(at)] - log_z) -
                         static_cast<T>(y[r] == k);
        if (emission_grad != nullptr) {
          emission_grad[first * labels + at] = d[s] * excess;
        }
        if (transition_grad == nullptr) {
          continue;
        }
        if (r == 0) {
          transition_grad[k] += d[s] * excess;
        }
        if (r + 1 == rows) {
          transition_grad[labels + k] += d[s] * excess;
        }
        for (int64_t j = 0; r > 0 && j < labels; ++j) {
          const T before = alpha[static_cast<size_t>(at - k - labels + j)];
          const T p = std::exp(before + w.Next(j, k) + x[at] + beta[static_cast<size_t>(at)] - log_z);
          transition_grad[(2 + j) * labels + k] += d[s] * (p - static_cast<T>(y[r - 1] == j && y[r] == k));
        }
      }
    }
  });
}

// The labels of the greatest weight (A. Viterbi, 1967).
template <typename T>
void Decode(const Weights<T>& w, int64_t rows, const T* emission, PoolVector<T>* best, PoolVector<int64_t>* from,
            int64_t* path) {
  const int64_t labels = w.labels;
  best->resize(static_cast<size_t>(2 * labels));
  from->resize(static_cast<size_t>(rows * labels));
  T* before = best->data();
  T* now = before + labels;
  for (int64_t k = 0; k < labels; ++k) {
    before[k] = w.start[k] + emission[k];
  }
  for (int64_t r = 1; r < rows; ++r) {
    for (int64_t k = 0; k < labels; ++k) {
      int64_t found = 0;
      for (int64_t j = 1; j < labels; ++j) {
        found = before[j] + w.Next(j, k) > before[found] + w.Next(found, k) ? j : found;
      }
      now[k] = before[found] + w.Next(found, k) + emission[r * labels + k];
      (*from)[static_cast<size_t>(r * labels + k)] = found;
    }
    std::swap(before, now);
  }
  int64_t found = 0;
  for (int64_t k = 1; k < labels; ++k) {
    found = before[k] + w.end[k] > before[found] + w.end[found] ? k : found;
  }
  for (int64_t r = rows; r-- > 0;) {
    path[r] = found;
    found = r == 0 ? 0 : (*from)[static_cast<size_t>(r * labels + found)];
  }
}

template <typename T>
void DecodingKernel(const ExecutionContext& ctx) {
  const SequenceRanges sequences(ctx, "Emission", "Length");
  const LoDTensor& emission_tensor = ctx.Input("Emission");
  const int64_t labels = emission_tensor.dims().back();
  const Weights<T> w(ctx.Input("Transition").data<T>(), labels);
  int64_t* path = ZerosOrNull<int64_t>(ctx, "ViterbiPath");
  const T* emission = emission_tensor.data<T>();
  PoolVector<T> best;
  PoolVector<int64_t> from;
  ForEachFilledSequence(sequences, [&](int64_t, int64_t first, int64_t rows) {
    Decode(w, rows, emission + first * labels, &best, &from, path + first);
  });
  if (const LoDTensor* label = ctx.InputOrNull("Label")) {
    EnforceSequencesOfLabels(ctx);
    const int64_t* y = label->data<int64_t>();
    ForEachFilledSequence(sequences, [&](int64_t, int64_t first, int64_t rows) {
      for (int64_t r = first; r < first + rows; ++r) {
        path[r] = static_cast<int64_t>(path[r] == y[r]);
      }
    });
  }
}

// Checks the inputs that the operators share; returns the dims of the labels: [rows, 1], or [N, rows of each].
DDim CheckCrf(const InferShapeContext& ctx) {
  const bool padded = ctx.HasInput("Length");
  EnforceRank(ctx, "Emission", padded ? 3 : 2);
  const DDim emission = ctx.InputDim("Emission");
  const int64_t labels = emission.back();
  HR_ENFORCE(labels != 0, InvalidArgument, "input Emission: expected at least one label, got dims ",
             ToString(emission));
  EnforceDims(ctx, "Transition", {labels < 0 ? -1 : AddExtents(labels, 2), labels});
  EnforceSameType(ctx, "Transition", "Emission");
  const DDim label = {emission[0], padded ? emission[1] : 1};
  if (ctx.HasInput("Label")) {
    const bool column = padded && ctx.InputDim("Label").size() == 3;
    EnforceDims(ctx, "Label", column ? DDim{label[0], label[1], 1} : label);
    EnforceType(ctx, "Label", DataType::kInt64);
  }
  if (padded) {
    EnforceLengths(ctx, "Length", emission[0]);
  }
  return label;
}

OpRegistrar&& CrfLength(OpRegistrar&& op) {
  return std::move(op).Input("Length", "int64 [N] or [N, 1]: how many rows each sequence has; the others are padding",
                             kDispensable);
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
      EnforceDims(ctx, "LogLikelihood@GRAD", {-1, 1});
      EnforceSameType(ctx, "LogLikelihood@GRAD", "Emission");
      InferGradients(ctx, {"Emission", "Transition"});
      if (!ctx.HasInput("Length")) {
        ctx.ShareLoD("Emission", "Emission@GRAD");
      }
    })
    .Kernel<float>(CrfGradKernel<float>)
    .Kernel<double>(CrfGradKernel<double>);

HEADRACE_REGISTER_OP(crf_decoding)
    .Comment("The most probable labels of each sequence under linear_chain_crf; of equal ones, the first.")
    .Input("Emission", "as for linear_chain_crf")
    .Input("Transition", "as for linear_chain_crf")
    .Input("Label", "as for linear_chain_crf: the true labels", kDispensable)
    .With(CrfLength)
    .Output(
        "ViterbiPath",
        "int64 [rows, 1] with the LoD of Emission, or [N, rows] with Length, 0 in padding: the labels, or with Label "
        "whether they are right")
    .KernelTypeFrom("Emission")
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "ViterbiPath", CheckCrf(ctx), DataType::kInt64);
      if (!ctx.HasInput("Length")) {
        ctx.ShareLoD("Emission", "ViterbiPath");
      }
    })
    .Kernel<float>(DecodingKernel<float>)
    .Kernel<double>(DecodingKernel<double>);

}  // namespace headrace::ops
