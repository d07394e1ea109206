// ctc_align: from the labels of frames to those of the sequence (A. Graves, S. Fernández, F. Gomez and J. Schmidhuber,
// Connectionist temporal classification, 2006).
#include <cstdint>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/sequences.h"

namespace headrace::ops {
namespace {

template <typename T>
void CtcAlignKernel(const ExecutionContext& ctx) {
  const LoDTensor& input = ctx.Input("Input");
  const LoDOffsets& offsets = SequencesOf(ctx, "Input");
  HR_ENFORCE(input.lod_level() == 1, InvalidArgument, "input Input: expected a LoD of one level, got ",
             input.lod_level());
  const auto blank = static_cast<T>(ctx.Attr<int32_t>("blank"));
  const bool merge = ctx.Attr<bool>("merge_repeated");
  const T* x = input.data<T>();
  const auto stays = [&](int64_t begin, int64_t i) {
    return x[i] != blank && !(merge && i > begin && x[i] == x[i - 1]);
  };
  LoDOffsets kept = {0};
  ForEachSequence(offsets, [&](int64_t, int64_t begin, int64_t end) {
    size_t n = 0;
    for (int64_t i = begin; i < end; ++i) {
      n += stays(begin, i) ? 1 : 0;
    }
    kept.push_back(kept.back() + n);
  });
  LoDTensor* out = ctx.Output("Output");
  if (kept.back() == 0) {  // Fluid's
    *out->Resize({1, 1}).template mutable_data<T>() = T(-1);
    out->set_lod({});
    return;
  }
  T* to = out->Resize({static_cast<int64_t>(kept.back()), 1}).template mutable_data<T>();
  ForEachSequence(offsets, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (stays(begin, i)) {
        *to++ = x[i];
      }
    }
  });
  out->set_lod({std::move(kept)});
}

}  // namespace

HEADRACE_REGISTER_OP(ctc_align)
    .Comment("The labels of each sequence without blanks and, before that, without repetitions.")
    .Input("Input", "int32 or int64 [rows, 1] with LoD")
    .Output("Output",
            "[rows that stay, 1], dtype of Input, with LoD; if no row of any sequence stays, [[-1]] without a LoD")
    .Attr<int32_t>("blank", "the label of nothing", 0)
    .Attr<bool>("merge_repeated", "whether equal labels in a row make one", true)
    .InferShape([](InferShapeContext& ctx) {
      EnforceSequences(ctx, "Input", 2);
      EnforceDims(ctx, "Input", {-1, 1});
      if (ctx.IsRuntime()) {
        return;  // the kernel knows how many rows stay
      }
      SetOutput(ctx, "Output", {-1, 1}, ctx.InputType("Input"));
      ctx.SetOutputLoDLevel("Output", ctx.InputLoDLevel("Input"));
    })
    .Kernel<int32_t>(CtcAlignKernel<int32_t>)
    .Kernel<int64_t>(CtcAlignKernel<int64_t>);

}  // namespace headrace::ops
