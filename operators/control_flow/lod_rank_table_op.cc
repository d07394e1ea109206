// lod_rank_table: the table of the sequences of a tensor, longest first.
#include <algorithm>
#include <cstdint>

#include "framework/lod_rank_table.h"
#include "framework/op_registry.h"
#include "operators/control_flow/rank_table_op.h"
#include "operators/sequence/lod_units.h"

namespace headrace::ops {
namespace {

class LoDRankTableOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& x = ctx.Input("X");
    (void)NumUnits(x, 0);
    const int32_t level = Attr<int32_t>("level");
    HR_ENFORCE(level >= 0, InvalidArgument, "attribute level: expected 0 or more, got ", level);
    ctx.OutputAs<LoDRankTable>("Out")->Reset(x.lod(), static_cast<size_t>(level));
  }
};

}  // namespace

HEADRACE_REGISTER_OP(lod_rank_table)
    .Comment("The sequences of a level of the LoD of X with their lengths, longest first.")
    .Input("X", "a tensor with a LoD")
    .Output("Out", "a LoDRankTable")
    .Attr<int32_t>("level", "the level of the sequences", 0)
    .InferShape([](InferShapeContext& ctx) {
      EnforceKind(ctx.OutputDesc("Out"), VarKind::kLoDRankTable, "output Out");
      const int32_t level = ctx.Attr<int32_t>("level");
      const int32_t levels = ctx.InputLoDLevel("X");  // 0: a program need not declare the LoD of what it is fed
      HR_ENFORCE(level >= 0 && (level < levels || levels == 0), InvalidArgument,
                 "attribute level: expected a level of the LoD of X, which has ", levels, ", got ", level);
    })
    .Operator<LoDRankTableOp>();

}  // namespace headrace::ops
