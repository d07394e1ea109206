// sequence_expand: sequences repeated as often as those of another input are long.
#include <cstdint>
#include <utility>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/sequence/sequence_rows.h"

namespace headrace::ops {
namespace {

struct SequenceExpand : SequenceRowsOp {
  static constexpr const char* kOut = "Out";
  static SequenceRows Of(const ExecutionContext& ctx) {
    const LoDTensor& x = ctx.Input("X");
    const LoDOffsets& times = CheckedLevel(ctx, "Y", ctx.Attr<int32_t>("ref_level"));
    const LoDOffsets* sequences = x.lod().empty() ? nullptr : &CheckedLevel(ctx, "X");
    const size_t n = sequences == nullptr ? static_cast<size_t>(x.dims()[0]) : sequences->size() - 1;
    HR_ENFORCE(n == times.size() - 1, InvalidArgument, "input X: expected ", times.size() - 1,
               " sequences, as many as the level of Y has, got ", n);
    SequenceRows rows;
    LoDOffsets offsets = {0};
    for (size_t s = 0; s < n; ++s) {
      const auto begin = static_cast<int64_t>(sequences == nullptr ? s : (*sequences)[s]);
      const auto end = static_cast<int64_t>(sequences == nullptr ? s + 1 : (*sequences)[s + 1]);
      for (size_t t = times[s]; t < times[s + 1]; ++t) {
        AppendRange(&rows.from, begin, end);
        offsets.push_back(rows.from.size());
      }
    }
    // Without sequences it is a LoD all the same, as in Fluid.
    return TakeRows(ctx, "X", std::move(rows.from), sequences != nullptr ? LoD{std::move(offsets)} : LoD{});
  }
  static void Check(const InferShapeContext& ctx) {
    EnforceLevelsAtMost(ctx, "X", 1);
    const int32_t levels = ctx.InputLoDLevel("Y");
    const int32_t level = ctx.Attr<int32_t>("ref_level");
    HR_ENFORCE(level < levels || levels == 0, InvalidArgument,  // a program need not declare the LoD of what it is fed
               "attribute ref_level: expected a level of the LoD of Y, which has ", levels, ", or -1, got ", level);
  }
  static int32_t LoDLevel(const InferShapeContext& ctx) { return ctx.InputLoDLevel("X"); }
};

HEADRACE_REGISTER_OPS(sequence_expand) {
  RegisterSequenceRows<SequenceExpand>(
      "sequence_expand", "Each sequence of X as often as the sequence of Y at its place is long.",
      "[rows, ...], with a LoD of one level; without, each row is a sequence", "[..., ...], with a LoD if X has one",
      [](OpRegistrar&& op) -> OpRegistrar&& {
        return std::move(op).Attr<int32_t>(
            "ref_level", "which level of the LoD of Y counts; -1: the deepest", -1, [](const int32_t& level) {
              HR_ENFORCE(level >= -1, InvalidArgument, "attribute ref_level: expected -1 or more, got ", level);
            });
      },
      {{"Y", "any tensor with a LoD; only that is used"}});
}

}  // namespace
}  // namespace headrace::ops
