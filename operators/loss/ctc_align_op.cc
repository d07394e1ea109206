// ctc_align: from the labels of frames to those of the sequence (A. Graves, S. Fernández, F. Gomez and J. Schmidhuber,
// Connectionist temporal classification, 2006).
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// Which elements stay: neither blanks nor, if those are merged, repetitions.
template <typename T>
struct CtcFilter {
  explicit CtcFilter(const ExecutionContext& ctx)
      : x(ctx.Input("Input").data<T>()),
        blank(static_cast<T>(ctx.Attr<int32_t>("blank"))),
        merge(ctx.Attr<bool>("merge_repeated")) {}
  // Element `i` of a sequence that begins with element `begin`.
  bool operator()(int64_t begin, int64_t i) const { return x[i] != blank && !(merge && i > begin && x[i] == x[i - 1]); }
  const T* x;
  T blank;
  bool merge;
};

template <typename T>
void AlignPadded(const ExecutionContext& ctx) {
  const SequenceRanges sequences(ctx, "Input", "InputLength");
  const CtcFilter<T> stays(ctx);
  const int64_t width = ctx.Input("Input").dims()[1];
  LoDTensor* out_tensor = ctx.Output("Output");
  T* out = out_tensor->mutable_data<T>();
  T* lengths = ctx.Output("OutputLength")->mutable_data<T>();
  ParallelFill(out, out_tensor->numel(), static_cast<T>(ctx.Attr<int32_t>("padding_value")));
  const auto align = [=, &sequences](int64_t s) {
    int64_t n = 0;
    for (int64_t i = sequences.Begin(s); i < sequences.End(s); ++i) {
      if (stays(sequences.Begin(s), i)) {
        out[s * width + n++] = stays.x[i];
      }
    }
    lengths[s] = static_cast<T>(n);
  };
  ParallelForEach(sequences.count(), align, 4 * width);
}

template <typename T>
void CtcAlignKernel(const ExecutionContext& ctx) {
  if (ctx.HasInput("InputLength")) {
    return AlignPadded<T>(ctx);
  }
  const LoDOffsets& offsets = SequencesOf(ctx, "Input");
  const CtcFilter<T> stays(ctx);
  LoDOffsets kept(offsets.size(), 0);
  ForEachSequenceInParallel(offsets, /*work=*/4, [&](int64_t s, int64_t begin, int64_t end) {
    size_t n = 0;
    for (int64_t i = begin; i < end; ++i) {
      n += stays(begin, i) ? 1 : 0;
    }
    kept[static_cast<size_t>(s + 1)] = n;
  });
  std::partial_sum(kept.begin(), kept.end(), kept.begin());
  LoDTensor* out = ctx.Output("Output");
  if (kept.back() == 0) {  // Fluid's: a row that belongs to no sequence
    *out->Resize({1, 1}).template mutable_data<T>() = T(-1);
    out->set_lod({std::move(kept)});
    return;
  }
  T* data = out->Resize({static_cast<int64_t>(kept.back()), 1}).template mutable_data<T>();
  ForEachSequenceInParallel(offsets, /*work=*/4, [&](int64_t s, int64_t begin, int64_t end) {
    T* to = data + kept[static_cast<size_t>(s)];
    for (int64_t i = begin; i < end; ++i) {
      if (stays(begin, i)) {
        *to++ = stays.x[i];
      }
    }
  });
  out->set_lod({std::move(kept)});
}

}  // namespace

HEADRACE_REGISTER_OP(ctc_align)
    .Comment("The labels of each sequence without blanks and, before that, without repetitions.")
    .Input("Input", "int32 or int64 [rows, 1] with LoD, or [N, rows] with InputLength")
    .Input("InputLength", "[N] or [N, 1], dtype of Input: how many rows each sequence has; the others are padding",
           kDispensable)
    .Output("Output",
            "[rows that stay, 1], dtype of Input, with LoD; if no row of any sequence stays, [[-1]], which belongs to "
            "none. With InputLength dims of Input, padded with padding_value")
    .Output("OutputLength", "with InputLength: [N, 1], dtype of Input: how many rows stay", kDispensable)
    .Attr<int32_t>("blank", "the label of nothing", 0)
    .Attr<bool>("merge_repeated", "whether equal labels in a row make one", true)
    .Attr<int32_t>("padding_value", "with InputLength: what follows the rows that stay", 0)
    .InferShape([](InferShapeContext& ctx) {
      HR_ENFORCE(ctx.HasInput("InputLength") == ctx.HasOutput("OutputLength"), InvalidArgument,
                 "input InputLength and output OutputLength: expected both or none of them");
      if (ctx.HasInput("InputLength")) {
        EnforceRank(ctx, "Input", 2);
        const DDim dims = ctx.InputDim("Input");
        EnforceLengths(ctx, "InputLength", dims[0], ctx.InputType("Input"));
        SetOutput(ctx, "Output", dims, ctx.InputType("Input"));
        SetOutput(ctx, "OutputLength", {dims[0], 1}, ctx.InputType("Input"));
        return;
      }
      EnforceSequences(ctx, "Input", 2);
      EnforceDims(ctx, "Input", {-1, 1});
      EnforceLevelsAtMost(ctx, "Input", 1);
      if (ctx.IsRuntime()) {
        return;  // the kernel knows how many rows stay
      }
      SetOutput(ctx, "Output", {-1, 1}, ctx.InputType("Input"));
      ctx.SetOutputLoDLevel("Output", ctx.InputLoDLevel("Input"));
    })
    .Kernel<int32_t>(CtcAlignKernel<int32_t>)
    .Kernel<int64_t>(CtcAlignKernel<int64_t>);

}  // namespace headrace::ops
