// warpctc: the loss of connectionist temporal classification (A. Graves, S. Fernández, F. Gomez and J. Schmidhuber,
// Connectionist temporal classification, 2006), in logarithms.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/scratch.h"
#include "operators/sequences.h"
#include "operators/softmax.h"

namespace headrace::ops {
namespace {

template <typename T>
constexpr T kImpossible = -std::numeric_limits<T>::infinity();

// log(exp(a) + exp(b))
template <typename T>
T LogAdd(T a, T b) {
  const T max = std::max(a, b);
  return max == kImpossible<T> ? max : max + std::log1p(std::exp(std::min(a, b) - max));
}

// The labels of one sequence with a blank before, between and behind them.
struct States {
  int64_t Size() const { return 2 * count + 1; }
  int64_t Label(int64_t s) const { return s % 2 == 0 ? blank : label[s / 2]; }
  // Whether a state may follow the one two before it: not past a blank that parts equal labels.
  bool MaySkipTo(int64_t s) const { return s >= 2 && s % 2 == 1 && label[s / 2] != label[s / 2 - 1]; }
  // Frames that the labels need: one for each, and one for the blank between equal ones.
  int64_t FramesNeeded() const {
    int64_t frames = count;
    for (int64_t i = 1; i < count; ++i) {
      frames += label[i] == label[i - 1] ? 1 : 0;
    }
    return frames;
  }

  const int64_t* label;
  int64_t count;
  int64_t blank;
};

// alpha[t, s]: log of the probability of the frames up to t, the last one being in state s. Returns the log of the
// probability of the labels.
template <typename T>
T Forward(const States& states, int64_t frames, int64_t classes, const T* log_p, T* alpha) {
  const int64_t size = states.Size();
  for (int64_t s = 0; s < size; ++s) {
    alpha[s] = s < 2 ? log_p[states.Label(s)] : kImpossible<T>;
  }
  for (int64_t t = 1; t < frames; ++t) {
    const T* before = alpha;
    alpha += size;
    log_p += classes;
    for (int64_t s = 0; s < size; ++s) {
      T sum = before[s];
      sum = s >= 1 ? LogAdd(sum, before[s - 1]) : sum;
      sum = states.MaySkipTo(s) ? LogAdd(sum, before[s - 2]) : sum;
      alpha[s] = sum + log_p[states.Label(s)];
    }
  }
  return size == 1 ? alpha[0] : LogAdd(alpha[size - 1], alpha[size - 2]);
}

// From `p`, softmax, to the gradient of the loss by the logits. beta[s]: log of the probability of the frames behind t
// if that one is in state s; `beta` has two rows of states.
template <typename T>
void Backward(const States& states, int64_t frames, int64_t classes, const T* log_p, const T* alpha, T log_total,
              T* beta, T* p) {
  const int64_t size = states.Size();
  T* behind = beta + size;
  for (int64_t t = frames; t-- > 0;) {
    std::swap(beta, behind);
    for (int64_t s = 0; s < size; ++s) {
      if (t + 1 == frames) {
        beta[s] = s >= size - 2 ? T(0) : kImpossible<T>;
        continue;
      }
      const T* next = log_p + (t + 1) * classes;
      T sum = behind[s] + next[states.Label(s)];
      sum = s + 1 < size ? LogAdd(sum, behind[s + 1] + next[states.Label(s + 1)]) : sum;
      sum = s + 2 < size && states.MaySkipTo(s + 2) ? LogAdd(sum, behind[s + 2] + next[states.Label(s + 2)]) : sum;
      beta[s] = sum;
    }
    for (int64_t s = 0; s < size; ++s) {
      p[t * classes + states.Label(s)] -= std::exp(alpha[t * size + s] + beta[s] - log_total);
    }
  }
}

// The labels as int64.
const int64_t* Labels(const LoDTensor& label, Tensor* memory) {
  if (label.dtype() == DataType::kInt64) {
    return label.data<int64_t>();
  }
  int64_t* wide = Scratch<int64_t>(memory, label.numel());
  std::copy_n(label.data<int32_t>(), label.numel(), wide);
  return wide;
}

template <typename T>
void WarpCtcKernel(const ExecutionContext& ctx) {
  const LoDTensor& logits = ctx.Input("Logits");
  const std::vector<size_t>& frames = SequencesOf(ctx, "Logits");
  const std::vector<size_t>& labels = SequencesOf(ctx, "Label");
  HR_ENFORCE(frames.size() == labels.size(), InvalidArgument, "input Label: expected ", SequenceCount(frames),
             " sequences, as Logits has, got ", SequenceCount(labels));
  const int64_t classes = logits.dims()[1];
  const int64_t blank = ctx.Attr<int32_t>("blank");
  const LoDTensor& label_tensor = ctx.Input("Label");
  thread_local Tensor label_memory;
  const int64_t* label = Labels(label_tensor, &label_memory);
  for (int64_t i = 0; i < label_tensor.numel(); ++i) {
    HR_ENFORCE(0 <= label[i] && label[i] < classes && label[i] != blank, OutOfRange, "input Label: row ", i, " is ",
               label[i], ", expected a class in [0, ", classes, ") that is not the blank, ", blank);
  }
  T* grad = ctx.Output("WarpCTCGrad")->mutable_data<T>();
  LoDTensor* loss_tensor = ctx.Output("Loss");
  T* loss = loss_tensor->Resize({SequenceCount(frames), 1}).template mutable_data<T>();
  Softmax(logits.dims()[0], classes, logits.data<T>(), grad);
  thread_local Tensor log_memory;
  thread_local Tensor alpha_memory;
  thread_local Tensor beta_memory;
  ForEachSequence(frames, [&](int64_t s, int64_t begin, int64_t end) {
    const auto at = static_cast<size_t>(s);
    const States states{label + labels[at], static_cast<int64_t>(labels[at + 1] - labels[at]), blank};
    const int64_t n = end - begin;
    T* p = grad + begin * classes;
    if (n == 0 || n < states.FramesNeeded()) {  // as warp-ctc does
      loss[s] = 0;
      std::fill_n(p, n * classes, T(0));
      return;
    }
    T* log_p = Scratch<T>(&log_memory, n * classes);
    const T* x = logits.data<T>() + begin * classes;
    for (int64_t t = 0; t < n; ++t) {  // not log(p), which may be 0
      const T* row = x + t * classes;
      const T max = *std::max_element(row, row + classes);
      T sum = 0;
      for (int64_t c = 0; c < classes; ++c) {
        sum += std::exp(row[c] - max);
      }
      const T log_sum = max + std::log(sum);
      for (int64_t c = 0; c < classes; ++c) {
        log_p[t * classes + c] = row[c] - log_sum;
      }
    }
    T* alpha = Scratch<T>(&alpha_memory, n * states.Size());
    const T log_total = Forward(states, n, classes, log_p, alpha);
    loss[s] = -log_total;
    Backward(states, n, classes, log_p, alpha, log_total, Scratch<T>(&beta_memory, 2 * states.Size()), p);
  });
}

template <typename T>
void WarpCtcGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& logits = ctx.Input("Logits");
  const std::vector<size_t>& frames = SequencesOf(ctx, "Logits");
  const LoDTensor& loss_grad = ctx.Input("Loss@GRAD");
  HR_ENFORCE(loss_grad.numel() == SequenceCount(frames), InvalidArgument, "input Loss@GRAD: expected ",
             SequenceCount(frames), " elements, one for each sequence, got dims ", ToString(loss_grad.dims()));
  const bool norm_by_times = ctx.Attr<bool>("norm_by_times");
  const int64_t classes = logits.dims()[1];
  T* dx = ctx.Output("Logits@GRAD")->mutable_data<T>();
  const T* grad = ctx.Input("WarpCTCGrad").data<T>();
  const T* d = loss_grad.data<T>();
  ForEachSequence(frames, [=](int64_t s, int64_t begin, int64_t end) {
    const T factor = norm_by_times ? d[s] / static_cast<T>(end - begin) : d[s];
    for (int64_t i = begin * classes; i < end * classes; ++i) {
      dx[i] = factor * grad[i];
    }
  });
}

void CheckLogits(const InferShapeContext& ctx) {
  EnforceSequences(ctx, "Logits", 2);
  EnforceRank(ctx, "Logits", 2);
  const int64_t classes = ctx.InputDim("Logits")[1];
  const int32_t blank = ctx.Attr<int32_t>("blank");
  HR_ENFORCE(blank >= 0 && (classes < 0 || blank < classes), InvalidArgument, "attribute blank: expected one of the ",
             classes, " classes of input Logits, got ", blank);
}

OpRegistrar&& CtcAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("blank", "the class of nothing", 0)
      .Attr<bool>("norm_by_times", "whether the gradient, not the loss, is divided by the number of frames", false);
}

}  // namespace

HEADRACE_REGISTER_OP(warpctc)
    .Comment(
        "-log of the probability that the frames of each sequence, each with its own class, read as its labels without "
        "repetitions and blanks.")
    .Input("Logits", "[frames, classes] with LoD; softmax makes them probabilities")
    .Input("Label", "int32 or int64 [labels, 1] with LoD, in [0, classes) without the blank")
    .Output("WarpCTCGrad", "dims of Logits: the gradient of the losses, for the gradient")
    .Output("Loss", "[number of sequences, 1]; 0 for one with too few frames for its labels, as in Fluid")
    .With(CtcAttrs)
    .KernelTypeFrom("Logits")
    .InferShape([](InferShapeContext& ctx) {
      CheckLogits(ctx);
      EnforceSequences(ctx, "Label", 2);
      EnforceDims(ctx, "Label", {-1, 1});
      const DataType type = ctx.InputType("Label");
      HR_ENFORCE(type == DataType::kInt32 || type == DataType::kInt64, TypeMismatch,
                 "input Label: expected dtype int32 or int64, got ", DataTypeName(type));
      SetOutput(ctx, "WarpCTCGrad", ctx.InputDim("Logits"), ctx.InputType("Logits"));
      if (!ctx.IsRuntime()) {  // otherwise the kernel knows how many sequences there are
        SetOutput(ctx, "Loss", {-1, 1}, ctx.InputType("Logits"));
      }
    })
    .Kernel<float>(WarpCtcKernel<float>)
    .Kernel<double>(WarpCtcKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Logits"}, .outputs = {"WarpCTCGrad"}, .no_gradient = {"Label"}}));

HEADRACE_REGISTER_OP(warpctc_grad)
    .Comment("Gradient of warpctc, by way of Loss.")
    .Input("Logits", "as in the operator; only its dims and its LoD are used")
    .Input("WarpCTCGrad", "as in the operator")
    .Input("WarpCTCGrad@GRAD", "not used", kDispensable)
    .Input("Loss@GRAD", "gradient of Loss")
    .Output("Logits@GRAD", "dims and LoD of Logits")
    .With(CtcAttrs)
    .KernelTypeFrom("Logits")
    .InferShape([](InferShapeContext& ctx) {
      CheckLogits(ctx);
      EnforceDims(ctx, "WarpCTCGrad", ctx.InputDim("Logits"));
      EnforceSameType(ctx, "WarpCTCGrad", "Logits");
      EnforceDims(ctx, "Loss@GRAD", {-1, 1});
      EnforceSameType(ctx, "Loss@GRAD", "Logits");
      InferGradients(ctx, {"Logits"});
      ctx.ShareLoD("Logits", "Logits@GRAD");
    })
    .Kernel<float>(WarpCtcGradKernel<float>)
    .Kernel<double>(WarpCtcGradKernel<double>);

}  // namespace headrace::ops
