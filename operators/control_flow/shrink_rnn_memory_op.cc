// shrink_rnn_memory: the states of the sequences that have not ended at a step.
#include <cstdint>
#include <utility>

#include "framework/lod_rank_table.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/rank_table_op.h"
#include "operators/math/tensor_size.h"
#include "operators/sequence/lod_units.h"

namespace headrace::ops {
namespace {

class ShrinkRnnMemoryOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  static size_t StepIn(const ExecutionContext& ctx) {
    const LoDTensor& step = ctx.Input("I");
    HR_ENFORCE(step.numel() == 1, InvalidArgument, "input I: expected a single element, got dims ",
               ToString(step.dims()));
    const int64_t value = *step.data<int64_t>();
    HR_ENFORCE(value >= 0, OutOfRange, "input I: expected a step, got ", value);
    return static_cast<size_t>(value);
  }

  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& x = ctx.Input("X");
    const size_t active = ctx.InputAs<LoDRankTable>("RankTable").ActiveAt(StepIn(ctx));
    const size_t units = NumUnits(x, 0);
    HR_ENFORCE(active <= units, InvalidArgument, "input X: expected at least ", active,
               " rows or sequences, as many as there are at this step, got ", units);
    LoD lod = NoUnits(x, 0);
    size_t rows = 0;
    for (size_t i = 0; i < active; ++i) {
      rows = Unit(x, 0, i, &lod).end;
    }
    *ctx.Output("Out") = LoDTensor(x.Slice(0, static_cast<int64_t>(rows)), std::move(lod));
  }
};

class ShrinkRnnMemoryGradOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& x = ctx.Input("X");
    const LoDTensor& gradient = ctx.Input("Out@GRAD");
    HR_ENFORCE(!x.dims().empty() && !gradient.dims().empty() && gradient.dims()[0] <= x.dims()[0], InvalidArgument,
               "input Out@GRAD: expected at most as many rows as X of dims ", ToString(x.dims()), " has, got dims ",
               ToString(gradient.dims()));
    const auto rows = static_cast<size_t>(x.dims()[0]);
    const auto active = static_cast<size_t>(gradient.dims()[0]);
    LoDTensor* x_gradient = ctx.Output("X@GRAD");
    RowWriter writer(x, rows, x_gradient);
    writer.Write(gradient, {0, active});
    writer.WriteZeros(rows - active);
    x_gradient->set_lod(x.lod());
  }
};

}  // namespace

HEADRACE_REGISTER_OP(shrink_rnn_memory)
    .Comment("The first rows or sequences of X, as many as there are sequences that have a step I.")
    .Input("X", "one row or sequence for each sequence of the table that had the step before, longest first")
    .With(TableSlot)
    .Input("I", "int64, a single element: the step")
    .Output("Out", "shares the memory of X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceTable(ctx);
      EnforceType(ctx, "I", DataType::kInt64);
      HR_ENFORCE(Fits(Numel(ctx.InputDim("I")), 1), InvalidArgument, "input I: expected a single element, got dims ",
                 ToString(ctx.InputDim("I")));
      SetOutput(ctx, "Out", StepDims(ctx, "X"), ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Operator<ShrinkRnnMemoryOp>()
    .Gradient(RankGradient({"X"}, ""));

HEADRACE_REGISTER_OP(shrink_rnn_memory_grad)
    .Comment("Gradient of shrink_rnn_memory: zero for the rows that were left out.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) { InferGradients(ctx, {"X"}); })
    .Operator<ShrinkRnnMemoryGradOp>();

}  // namespace headrace::ops
