// sequence_enumerate: each element with those behind it, as n-grams.
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

template <typename T>
void SequenceEnumerateKernel(const ExecutionContext& ctx) {
  const int64_t size = ctx.Attr<int32_t>("win_size");
  const T pad = static_cast<T>(ctx.Attr<int32_t>("pad_value"));
  const T* x = ctx.Input("X").data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  ForEachSequenceInParallel(SequencesOf(ctx, "X"), size, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t k = 0; k < size; ++k) {
        out[row * size + k] = row + k < end ? x[row + k] : pad;
      }
    }
  });
}

}  // namespace

HEADRACE_REGISTER_OP(sequence_enumerate)
    .Comment("Each element of a sequence with the win_size - 1 behind it; pad_value stands for those beyond its end.")
    .Input("X", "int32 or int64 [rows, 1] with LoD")
    .Output("Out", "[rows, win_size], dtype and LoD of X")
    .Attr<int32_t>("win_size", "how many elements make a row", 2,
                   [](const int32_t& size) {
                     HR_ENFORCE(size >= 2, InvalidArgument, "attribute win_size: expected 2 or more, got ", size);
                   })
    .Attr<int32_t>("pad_value", "what stands for elements beyond the end", 0)
    .InferShape([](InferShapeContext& ctx) {
      EnforceSequences(ctx, "X", 2);
      EnforceDims(ctx, "X", {-1, 1});
      SetOutput(ctx, "Out", {ctx.InputDim("X")[0], ctx.Attr<int32_t>("win_size")}, ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Kernel<int32_t>(SequenceEnumerateKernel<int32_t>)
    .Kernel<int64_t>(SequenceEnumerateKernel<int64_t>);

}  // namespace headrace::ops
