// max_sequence_len: the length of the longest sequence of a rank table.
#include <cstdint>

#include "framework/lod_rank_table.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/rank_table_op.h"

namespace headrace::ops {
namespace {

class MaxSequenceLenOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    LoDTensor* out = ctx.Output("Out");
    out->Resize({1});
    *out->mutable_data<int64_t>() = static_cast<int64_t>(ctx.InputAs<LoDRankTable>("RankTable").max_length());
  }
};

}  // namespace

HEADRACE_REGISTER_OP(max_sequence_len)
    .Comment("The length of the longest sequence of a rank table.")
    .Input("RankTable", "a LoDRankTable")
    .Output("Out", "int64 [1]")
    .InferShape([](InferShapeContext& ctx) {
      EnforceTable(ctx);
      SetOutput(ctx, "Out", {1}, DataType::kInt64);
    })
    .Operator<MaxSequenceLenOp>();

}  // namespace headrace::ops
