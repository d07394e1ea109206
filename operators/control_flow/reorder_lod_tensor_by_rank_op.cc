// reorder_lod_tensor_by_rank: rows or sequences in the order of a rank table.
#include <utility>

#include "framework/lod_rank_table.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/rank_table_op.h"
#include "operators/sequence/lod_units.h"

namespace headrace::ops {
namespace {

// Sequence i of the result is that with rank i; without a LoD, row i.
PoolVector<RowRange> RowsByRank(const LoDRankTable& table, const LoDTensor& x, LoD* lod) {
  const size_t units = NumUnits(x, 0);
  HR_ENFORCE(units == table.items().size(), InvalidArgument, "input X: expected ", table.items().size(),
             " rows or sequences, as the rank table has, got ", units);
  PoolVector<RowRange> rows;
  rows.reserve(units);
  for (const auto& item : table.items()) {
    rows.push_back(Unit(x, 0, item.index, lod));
  }
  return rows;
}

class ReorderByRankOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& x = ctx.Input("X");
    LoD lod = NoUnits(x, 0);
    PoolVector<Piece> pieces;
    for (const RowRange rows : RowsByRank(ctx.InputAs<LoDRankTable>("RankTable"), x, &lod)) {
      pieces.push_back({&x, rows});
    }
    LoDTensor* out = ctx.Output("Out");
    WritePieces(pieces, x, out);
    out->set_lod(std::move(lod));
  }
};

class ReorderByRankGradOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& x = ctx.Input("X");
    const LoDTensor& gradient = ctx.Input("Out@GRAD");
    const LoDRankTable& table = ctx.InputAs<LoDRankTable>("RankTable");
    const PoolVector<RowRange> by_rank = RowsByRank(table, x, nullptr);
    PoolVector<Piece> pieces(by_rank.size());
    size_t row = 0;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      pieces[table.items()[rank].index] = {&gradient, {row, row + by_rank[rank].size()}};
      row += by_rank[rank].size();
    }
    LoDTensor* x_gradient = ctx.Output("X@GRAD");
    WritePieces(pieces, x, x_gradient);
    x_gradient->set_lod(x.lod());
  }
};

}  // namespace

HEADRACE_REGISTER_OP(reorder_lod_tensor_by_rank)
    .Comment("The rows or, with a LoD, the sequences of X in the order of a rank table.")
    .Input("X", "as many rows or sequences as the table has")
    .With(TableSlot)
    .Output("Out", "dims and dtype of X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceTable(ctx);
      ctx.ShareAll("X", "Out");
    })
    .Operator<ReorderByRankOp>()
    .Gradient(RankGradient({"X", "RankTable"}, ""));

HEADRACE_REGISTER_OP(reorder_lod_tensor_by_rank_grad)
    .Comment("Gradient of reorder_lod_tensor_by_rank.")
    .Input("X", "as in the operator; only its dims and LoD are used", kShapeOnly)
    .With(TableSlot)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) { InferGradients(ctx, {"X"}); })
    .Operator<ReorderByRankGradOp>();

}  // namespace headrace::ops
