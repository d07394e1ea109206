// sequence_erase: sequences without some tokens.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

template <typename T>
void SequenceEraseKernel(const ExecutionContext& ctx) {
  const auto& tokens = ctx.Attr<std::vector<int32_t>>("tokens");
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  const auto stays = [&](T token) {
    return std::none_of(tokens.begin(), tokens.end(), [token](int32_t erased) { return token == erased; });
  };
  const LoDOffsets& offsets = SequencesOrNoneOf(ctx, "X");
  const auto work = static_cast<int64_t>(tokens.size());
  LoDOffsets kept(offsets.size(), 0);
  ForEachSequenceInParallel(offsets, work, [&](int64_t s, int64_t begin, int64_t end) {
    kept[static_cast<size_t>(s + 1)] = static_cast<size_t>(std::count_if(x + begin, x + end, stays));
  });
  std::partial_sum(kept.begin(), kept.end(), kept.begin());
  LoDTensor* out = ctx.Output("Out");
  T* to = out->Resize({static_cast<int64_t>(kept.back()), 1}).template mutable_data<T>();
  ForEachSequenceInParallel(offsets, work, [&](int64_t s, int64_t begin, int64_t end) {
    std::copy_if(x + begin, x + end, to + kept[static_cast<size_t>(s)], stays);
  });
  LoD lod = x_tensor.lod();
  lod.back() = std::move(kept);
  out->set_lod(std::move(lod));
}

}  // namespace

HEADRACE_REGISTER_OP(sequence_erase)
    .Comment("The elements of each sequence that are none of the tokens.")
    .Input("X", "int32 or int64 [rows, 1] with LoD")
    .Output("Out", "[rows that stay, 1], dtype of X, with LoD")
    .Attr<std::vector<int32_t>>("tokens", "the tokens to remove", {})
    .InferShape([](InferShapeContext& ctx) {
      EnforceSequences(ctx, "X", 2);
      EnforceDims(ctx, "X", {-1, 1});
      if (ctx.IsRuntime()) {
        return;  // the kernel knows how many rows stay
      }
      SetOutput(ctx, "Out", {-1, 1}, ctx.InputType("X"));
      ctx.SetOutputLoDLevel("Out", ctx.InputLoDLevel("X"));
    })
    .Kernel<int32_t>(SequenceEraseKernel<int32_t>)
    .Kernel<int64_t>(SequenceEraseKernel<int64_t>);

}  // namespace headrace::ops
