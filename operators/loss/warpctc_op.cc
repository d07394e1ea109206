// warpctc: the loss of connectionist temporal classification (A. Graves, S. Fernández, F. Gomez and J. Schmidhuber,
// Connectionist temporal classification, 2006), in logarithms.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/scratch.h"
#include "operators/math/softmax.h"
#include "operators/sequence/sequences.h"

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

// Where the frames and labels of each sequence lie: behind one another, by the LoD, or, with LogitsLength, padded.
class CtcBatch {
 public:
  explicit CtcBatch(const ExecutionContext& ctx) {
    const LoDTensor& logits = ctx.Input("Logits");
    if (ctx.HasInput("LogitsLength")) {
      padded_ = true;
      count_ = logits.dims()[1];
      frames_ = LengthsOf(ctx, "LogitsLength", logits.dims()[0]);
    } else {
      lod_ = &SequencesOf(ctx, "Logits");
      count_ = SequenceCount(*lod_);
    }
  }

  int64_t count() const { return count_; }
  int64_t Frames(int64_t s) const { return padded_ ? frames_[static_cast<size_t>(s)] : Begin(s + 1) - Begin(s); }
  // Of Logits.
  int64_t Row(int64_t s, int64_t t) const { return padded_ ? t * count_ + s : Begin(s) + t; }

 private:
  int64_t Begin(int64_t s) const { return static_cast<int64_t>((*lod_)[static_cast<size_t>(s)]); }

  bool padded_ = false;
  int64_t count_ = 0;
  PoolVector<int64_t> frames_;
  const LoDOffsets* lod_ = nullptr;
};

// What a thread works with.
struct CtcMemory {
  Tensor log;
  Tensor softmax;
  Tensor alpha;
  Tensor beta;
};

// The loss of sequence `s`, and its gradient by the logits, which is left as it is where the loss is 0 for want of
// frames, as in warp-ctc.
template <typename T>
T LossOfSequence(const States& states, const CtcBatch& batch, int64_t s, int64_t classes, const T* logits, T* grad,
                 CtcMemory* memory) {
  const int64_t frames = batch.Frames(s);
  if (frames == 0 || frames < states.FramesNeeded()) {
    return 0;
  }
  T* log_p = Scratch<T>(&memory->log, frames * classes);
  T* p = Scratch<T>(&memory->softmax, frames * classes);
  for (int64_t t = 0; t < frames; ++t) {
    const T* row = logits + batch.Row(s, t) * classes;
    Softmax(1, classes, row, p + t * classes);
    const T max = *std::max_element(row, row + classes);  // not log(p), which may be 0
    T sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      sum += std::exp(row[c] - max);
    }
    const T log_sum = max + std::log(sum);
    for (int64_t c = 0; c < classes; ++c) {
      log_p[t * classes + c] = row[c] - log_sum;
    }
  }
  T* alpha = Scratch<T>(&memory->alpha, frames * states.Size());
  const T log_total = Forward(states, frames, classes, log_p, alpha);
  Backward(states, frames, classes, log_p, alpha, log_total, Scratch<T>(&memory->beta, 2 * states.Size()), p);
  for (int64_t t = 0; t < frames; ++t) {
    std::copy_n(p + t * classes, classes, grad + batch.Row(s, t) * classes);
  }
  return -log_total;
}

template <typename T>
void WarpCtcKernel(const ExecutionContext& ctx) {
  const LoDTensor& logits = ctx.Input("Logits");
  const CtcBatch batch(ctx);
  const SequenceRanges labels(ctx, "Label", "LabelLength", SequenceRanges::Also::kOneColumn);
  HR_ENFORCE(labels.count() == batch.count(), InvalidArgument, "input Label: expected ", batch.count(),
             " sequences, as Logits has, got ", labels.count());
  const int64_t classes = logits.dims().back();
  const int64_t blank = ctx.Attr<int32_t>("blank");
  Tensor label_memory;
  const int64_t* label = Labels(ctx.Input("Label"), &label_memory);
  for (int64_t s = 0; s < batch.count(); ++s) {
    for (int64_t i = labels.Begin(s); i < labels.End(s); ++i) {
      HR_ENFORCE(0 <= label[i] && label[i] < classes && label[i] != blank, OutOfRange, "input Label: ",
                 labels.padded() ? StrCat("sequence ", s, ", label ", i - labels.Begin(s)) : StrCat("row ", i), " is ",
                 label[i], ", expected a class in [0, ", classes, ") that is not the blank, ", blank);
    }
  }
  T* grad = ctx.Output("WarpCTCGrad")->mutable_data<T>();
  LoDTensor* loss_tensor = ctx.Output("Loss");
  T* loss = loss_tensor->Resize({batch.count(), 1}).template mutable_data<T>();
  ParallelFill(grad, logits.numel(), T(0));
  const T* x = logits.data<T>();
  const int64_t work = 64 * logits.numel() / std::max<int64_t>(1, batch.count());
  ParallelFor(batch.count(), RowsPerBlock(work), [=, &batch, &labels](int64_t begin, int64_t end) {
    CtcMemory memory;
    for (int64_t s = begin; s < end; ++s) {
      const States states{label + labels.Begin(s), labels.Length(s), blank};
      loss[s] = LossOfSequence(states, batch, s, classes, x, grad, &memory);
    }
  });
}

template <typename T>
void WarpCtcGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& logits = ctx.Input("Logits");
  const CtcBatch batch(ctx);
  const LoDTensor& loss_grad = ctx.Input("Loss@GRAD");
  HR_ENFORCE(loss_grad.numel() == batch.count(), InvalidArgument, "input Loss@GRAD: expected ", batch.count(),
             " elements, one for each sequence, got dims ", ToString(loss_grad.dims()));
  const bool norm_by_times = ctx.Attr<bool>("norm_by_times");
  const int64_t classes = logits.dims().back();
  T* dx = ctx.Output("Logits@GRAD")->mutable_data<T>();
  const T* grad = ctx.Input("WarpCTCGrad").data<T>();
  const T* d = loss_grad.data<T>();
  ParallelFill(dx, logits.numel(), T(0));
  const auto scale = [=, &batch](int64_t s) {
    const int64_t frames = batch.Frames(s);
    const T factor = norm_by_times ? d[s] / static_cast<T>(frames) : d[s];
    for (int64_t t = 0; t < frames; ++t) {
      const int64_t row = batch.Row(s, t) * classes;
      for (int64_t i = row; i < row + classes; ++i) {
        dx[i] = factor * grad[i];
      }
    }
  };
  ParallelForEach(batch.count(), scale, logits.numel() / std::max<int64_t>(1, batch.count()));
}

void CheckLogits(const InferShapeContext& ctx) {
  if (ctx.HasInput("LogitsLength")) {
    EnforceRank(ctx, "Logits", 3);
    EnforceDims(ctx, "LogitsLength", {ctx.InputDim("Logits")[1]});
    EnforceType(ctx, "LogitsLength", DataType::kInt64);
  } else {
    EnforceSequences(ctx, "Logits", 2);
    EnforceRank(ctx, "Logits", 2);
  }
  const int64_t classes = ctx.InputDim("Logits").back();
  const int32_t blank = ctx.Attr<int32_t>("blank");
  HR_ENFORCE(blank >= 0 && (classes < 0 || blank < classes), InvalidArgument, "attribute blank: expected one of the ",
             classes, " classes of input Logits, got ", blank);
}

void CheckCtcLabels(const InferShapeContext& ctx) {
  HR_ENFORCE(ctx.HasInput("LogitsLength") == ctx.HasInput("LabelLength"), InvalidArgument,
             "inputs LogitsLength and LabelLength: expected both or none of them");
  if (ctx.HasInput("LabelLength")) {
    const int64_t count = ctx.InputDim("Logits")[1];
    const DDim label = ctx.InputDim("Label");
    HR_ENFORCE(label.size() == 2 && (Fits(label[0], count) || Fits(label[1], 1)), InvalidArgument,
               "input Label: expected dims [", count, ", labels] or [labels of all sequences, 1], got ",
               ToString(label));
    EnforceDims(ctx, "LabelLength", {count});
    EnforceType(ctx, "LabelLength", DataType::kInt64);
  } else {
    EnforceSequences(ctx, "Label", 2);
    EnforceDims(ctx, "Label", {-1, 1});
  }
  EnforceIntegers(ctx, "Label");
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
    .Input("Logits",
           "[frames, classes] with LoD, or [frames, N, classes] with LogitsLength; softmax makes them probabilities")
    .Input("Label",
           "int32 or int64 [labels, 1] with LoD, or with LabelLength, which [N, labels] may have instead; in [0, "
           "classes) without the blank")
    .Input("LogitsLength", "int64 [N]: how many frames each sequence has", kDispensable)
    .Input("LabelLength", "int64 [N]: how many labels each sequence has", kDispensable)
    .Output("WarpCTCGrad", "dims of Logits: the gradient of the losses, for the gradient")
    .Output("Loss", "[number of sequences, 1]; 0 for one with too few frames for its labels, as in Fluid")
    .With(CtcAttrs)
    .KernelTypeFrom("Logits")
    .InferShape([](InferShapeContext& ctx) {
      CheckLogits(ctx);
      CheckCtcLabels(ctx);
      SetOutput(ctx, "WarpCTCGrad", ctx.InputDim("Logits"), ctx.InputType("Logits"));
      if (!ctx.IsRuntime()) {  // otherwise the kernel knows how many sequences there are
        SetOutput(ctx, "Loss", {ctx.HasInput("LogitsLength") ? ctx.InputDim("Logits")[1] : -1, 1},
                  ctx.InputType("Logits"));
      }
    })
    .Kernel<float>(WarpCtcKernel<float>)
    .Kernel<double>(WarpCtcKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Logits", "LogitsLength"},
                               .outputs = {"WarpCTCGrad"},
                               .no_gradient = {"Label", "LogitsLength", "LabelLength"}}));

HEADRACE_REGISTER_OP(warpctc_grad)
    .Comment("Gradient of warpctc, by way of Loss.")
    .Input("Logits", "as in the operator; only its dims and its LoD are used", kShapeOnly)
    .Input("LogitsLength", "as in the operator", kDispensable)
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
      EnforceDims(ctx, "Loss@GRAD", {ctx.HasInput("LogitsLength") ? ctx.InputDim("Logits")[1] : -1, 1});
      EnforceSameType(ctx, "Loss@GRAD", "Logits");
      InferGradients(ctx, {"Logits"});
      ctx.ShareLoD("Logits", "Logits@GRAD");
    })
    .Kernel<float>(WarpCtcGradKernel<float>)
    .Kernel<double>(WarpCtcGradKernel<double>);

}  // namespace headrace::ops
