// lod_tensor_to_array: sequences cut into steps. The gradient lays rows out by the LoD of the forward pass.
#include <algorithm>
#include <string_view>
#include <utility>

#include "framework/lod_rank_table.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/rank_table_op.h"
#include "operators/sequence/lod_units.h"

namespace headrace::ops {
namespace {

class LoDTensorToArrayOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& x = ctx.Input("X");
    const LoDRankTable& table = ctx.InputAs<LoDRankTable>("RankTable");
    PartsOf(table, x);
    LoDTensorArray& out = *ctx.OutputAs<LoDTensorArray>("Out");
    out.resize(std::max<size_t>(table.max_length(), 1));  // if all are empty, one empty step has the shape of the rows
    for (size_t t = 0; t < out.size(); ++t) {
      PoolVector<Piece> pieces;
      LoD lod = NoUnits(x, table.level() + 1);
      ForEachPartOfStep(table, x, t, &lod, [&](RowRange rows) { pieces.push_back({&x, rows}); });
      WritePieces(pieces, x, &out[t]);
      out[t].set_lod(std::move(lod));
    }
  }
};

class LoDTensorToArrayGradOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& x = ctx.Input("X");
    const LoDRankTable& table = ctx.InputAs<LoDRankTable>("RankTable");
    const LoDOffsets& parts = PartsOf(table, x);
    LoDTensorArray& array = *ctx.OutputAs<LoDTensorArray>("Out@GRAD");
    if (ctx.HasOutput("X@GRAD")) {
      // Where the rows of a part are in the gradient of their step.
      PoolVector<Piece> pieces(parts.back(), Piece{nullptr, {0, 0}});
      for (size_t t = 0; t < table.max_length(); ++t) {
        size_t row = 0;
        size_t rank = 0;
        const LoDTensor* from = t < array.size() && array[t].initialized() ? &array[t] : nullptr;
        ForEachPartOfStep(table, x, t, nullptr, [&](RowRange rows) {
          pieces[parts[table.items()[rank++].index] + t] = {from, {row, row + rows.size()}};
          row += rows.size();
        });
      }
      LoDTensor* x_gradient = ctx.Output("X@GRAD");
      RowWriter writer(x, static_cast<size_t>(x.dims()[0]), x_gradient);
      for (const Piece& piece : pieces) {
        if (piece.from != nullptr) {
          writer.Write(*piece.from, piece.rows);
        } else {
          writer.WriteZeros(piece.rows.size());
        }
      }
      x_gradient->set_lod(x.lod());
    }
    array.clear();
  }
};

}  // namespace

HEADRACE_REGISTER_OP(lod_tensor_to_array)
    .Comment("Cuts sequences into steps: element t has part t of each sequence that is so long, longest first.")
    .Input("X", "a tensor with the LoD that the table was made of")
    .With(TableSlot)
    .Output("Out", "a LoDTensorArray, one element for each step")
    .InferShape([](InferShapeContext& ctx) {
      EnforceTable(ctx);
      EnforceKind(ctx.OutputDesc("Out"), VarKind::kLoDTensorArray, "output Out");
      SetOutput(ctx, "Out", StepDims(ctx, "X"), ctx.InputType("X"));
      ctx.SetOutputLoDLevel("Out", std::max(ctx.InputLoDLevel("X") - 1, 0));
    })
    .Operator<LoDTensorToArrayOp>()
    .Gradient(RankGradient({"X", "RankTable"}, "Out"));

HEADRACE_REGISTER_OP(lod_tensor_to_array_grad)
    .Comment("Gradient of lod_tensor_to_array: takes the gradients of the elements out of that of the array.")
    .Input("X", "as in the operator; only its dims and LoD are used", kShapeOnly)
    .With(TableSlot)
    .Input("Out@GRAD", "gradients of the array's elements")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Out@GRAD", "the same array, empty")
    .InPlace("Out@GRAD", "Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforceTable(ctx);
      EnforceKind(ctx.OutputDesc("Out@GRAD"), VarKind::kLoDTensorArray, "output Out@GRAD");
      InferGradients(ctx, {"X"});
    })
    .Operator<LoDTensorToArrayGradOp>();

}  // namespace headrace::ops
