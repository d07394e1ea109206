// array_to_lod_tensor: steps put together to sequences. The gradient lays rows out by the LoD of the forward pass.
#include <algorithm>
#include <iterator>
#include <utility>

#include "framework/lod_rank_table.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/array_gradient.h"
#include "operators/control_flow/rank_table_op.h"
#include "operators/sequence/lod_units.h"

namespace headrace::ops {
namespace {

class ArrayToLoDTensorOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const auto& array = ctx.InputAs<LoDTensorArray>("X");
    const LoDRankTable& table = ctx.InputAs<LoDRankTable>("RankTable");
    HR_ENFORCE(!array.empty() || table.max_length() > 0, InvalidArgument,
               "input X: all sequences are empty: no step has run, so the shape of the result is unknown");
    HR_ENFORCE(array.size() >= table.max_length(), InvalidArgument, "input X: expected ", table.max_length(),
               " steps, as many as the longest sequence has, got ", array.size());
    for (size_t t = 0; t < std::max<size_t>(table.max_length(), 1); ++t) {
      HR_ENFORCE(array[t].initialized(), FailedPrecondition, "input X: nothing has been written to '", Input("X"),
                 "' at ", t);
      const size_t units = NumUnits(array[t], 0);
      HR_ENFORCE(units == table.ActiveAt(t) && array[t].lod_level() == array[0].lod_level(), InvalidArgument,
                 "input X: expected ", table.ActiveAt(t), " parts at step ", t, " with ", array[0].lod_level(),
                 " levels of LoD, got ", units, " with ", array[t].lod_level());
    }
    PoolVector<size_t> rank(table.items().size());
    for (size_t r = 0; r < rank.size(); ++r) {
      rank[table.items()[r].index] = r;
    }
    PoolVector<Piece> pieces;
    LoDOffsets offsets = {0};
    LoD fine = NoUnits(array[0], 0);
    for (const size_t r : rank) {
      const size_t length = table.items()[r].length;
      offsets.push_back(offsets.back() + length);
      for (size_t t = 0; t < length; ++t) {
        pieces.push_back({&array[t], Unit(array[t], 0, r, &fine)});
      }
    }
    LoDTensor* out = ctx.Output("Out");
    WritePieces(pieces, array[0], out);
    LoD lod = table.coarse_lod();
    lod.push_back(std::move(offsets));
    std::move(fine.begin(), fine.end(), std::back_inserter(lod));
    out->set_lod(std::move(lod));
  }
};

class ArrayToLoDTensorGradOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& out = ctx.Input("Out");
    const LoDTensor& gradient = ctx.Input("Out@GRAD");
    HR_ENFORCE(gradient.dims() == out.dims(), InvalidArgument, "input Out@GRAD: expected dims ", ToString(out.dims()),
               ", got ", ToString(gradient.dims()));
    const LoDRankTable& table = ctx.InputAs<LoDRankTable>("RankTable");
    PartsOf(table, out);
    LoDTensorArray& array = *ctx.OutputAs<LoDTensorArray>("X@GRAD");
    for (size_t t = 0; t < table.max_length(); ++t) {
      PoolVector<Piece> pieces;
      LoD lod = NoUnits(out, table.level() + 1);
      ForEachPartOfStep(table, out, t, &lod, [&](RowRange rows) { pieces.push_back({&gradient, rows}); });
      LoDTensor step;
      WritePieces(pieces, gradient, &step);
      step.set_lod(std::move(lod));
      AddToPlace(step, t, &array);
    }
  }
};

}  // namespace

HEADRACE_REGISTER_OP(array_to_lod_tensor)
    .Comment("Puts steps together to sequences, in the order that they had before lod_tensor_to_array.")
    .Input("X", "a LoDTensorArray, one element for each step")
    .With(TableSlot)
    .Output("Out", "the sequences, with the LoD that the table was made of")
    .InferShape([](InferShapeContext& ctx) {
      EnforceTable(ctx);
      EnforceKind(ctx.InputDesc("X"), VarKind::kLoDTensorArray, "input X");
      SetOutput(ctx, "Out", StepDims(ctx, "X"), ctx.InputType("X"));
      ctx.SetOutputLoDLevel("Out", ctx.InputLoDLevel("X") + 1);
    })
    .Operator<ArrayToLoDTensorOp>()
    .Gradient(RankGradient({"Out", "RankTable"}, "X"));

HEADRACE_REGISTER_OP(array_to_lod_tensor_grad)
    .Comment("Gradient of array_to_lod_tensor: adds to the gradients of the array's elements.")
    .Input("Out", "the result of the operator; only its dims and LoD are used", kShapeOnly)
    .With(TableSlot)
    .Input("Out@GRAD", "gradient of Out")
    .Input("X@GRAD", "gradients of the array's elements, so far")
    .Output("X@GRAD", "the same array")
    .InPlace("X@GRAD", "X@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforceTable(ctx);
      EnforceKind(ctx.OutputDesc("X@GRAD"), VarKind::kLoDTensorArray, "output X@GRAD");
    })
    .Operator<ArrayToLoDTensorGradOp>();

}  // namespace headrace::ops
