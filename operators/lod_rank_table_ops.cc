// lod_rank_table, max_sequence_len, lod_tensor_to_array, array_to_lod_tensor, shrink_rnn_memory and
// reorder_lod_tensor_by_rank: sequences taken step by step, the longest first, so that those which have ended are
// always the last and nothing is padded. With their gradients, which lay rows out by the LoD of the forward pass.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/lod_rank_table.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/array_gradient.h"
#include "operators/kernel_util.h"
#include "operators/lod_units.h"

namespace headrace::ops {
namespace {

// An operator on a rank table and tensors.
class RankOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 protected:
  const LoDRankTable& Table(const Scope& scope) const { return scope.GetVar(Input("RankTable")).Get<LoDRankTable>(); }

  const LoDTensor& Tensor(const Scope& scope, std::string_view slot) const {
    const auto& tensor = scope.GetVar(Input(slot)).Get<LoDTensor>();
    HR_ENFORCE(tensor.initialized(), FailedPrecondition, "'", Input(slot), "' has not been written yet");
    return tensor;
  }

  LoDTensor* OutputTensor(const Scope& scope, std::string_view slot) const {
    return scope.GetVar(Output(slot)).GetMutable<LoDTensor>();
  }

  LoDTensorArray* OutputArray(const Scope& scope, std::string_view slot) const {
    return scope.GetVar(Output(slot)).GetMutable<LoDTensorArray>();
  }

  bool HasOutput(std::string_view slot) const {
    return !Outputs(slot).empty() && Outputs(slot).front() != kEmptyVarName;
  }

  size_t StepIn(const Scope& scope) const {
    const LoDTensor& step = Tensor(scope, "I");
    HR_ENFORCE(step.numel() == 1, InvalidArgument, "input I: expected a single element, got dims ",
               ToString(step.dims()));
    const int64_t value = *step.data<int64_t>();
    HR_ENFORCE(value >= 0, OutOfRange, "input I: expected a step, got ", value);
    return static_cast<size_t>(value);
  }
};

// Checks that `x` has the sequences of the table. Returns the offsets of their parts.
const LoDOffsets& PartsOf(const LoDRankTable& table, const LoDTensor& x) {
  const size_t level = table.level();
  const size_t sequences = NumUnits(x, level);
  HR_ENFORCE(level < x.lod().size() && sequences == table.items().size(), InvalidArgument,
             "input X: expected a LoD with ", table.items().size(), " sequences in level ", level,
             ", as the rank table has, got ", ToString(x.lod()));
  for (const auto& item : table.items()) {
    const size_t length = x.lod()[level][item.index + 1] - x.lod()[level][item.index];
    HR_ENFORCE(length == item.length, InvalidArgument, "input X: expected sequence ", item.index, " of length ",
               item.length, ", as in the rank table, got ", length);
  }
  return x.lod()[level];
}

// Calls visit(part, rows, lod) for the parts of step `step`, in the order of the table; `lod` as of
// operators/lod_units.h.
template <typename Visit>
void ForEachPartOfStep(const LoDRankTable& table, const LoDTensor& x, size_t step, LoD* lod, Visit&& visit) {
  const LoDOffsets& parts = x.lod()[table.level()];
  for (const auto& item : table.items()) {
    if (item.length <= step) {
      return;
    }
    visit(Unit(x, table.level() + 1, parts[item.index] + step, lod));
  }
}

class LoDRankTableOp : public RankOp {
 public:
  using RankOp::RankOp;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const LoDTensor& x = Tensor(scope, "X");
    (void)NumUnits(x, 0);
    const int32_t level = Attr<int32_t>("level");
    HR_ENFORCE(level >= 0, InvalidArgument, "attribute level: expected 0 or more, got ", level);
    scope.GetVar(Output("Out")).GetMutable<LoDRankTable>()->Reset(x.lod(), static_cast<size_t>(level));
  }
};

class MaxSequenceLenOp : public RankOp {
 public:
  using RankOp::RankOp;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    LoDTensor* out = OutputTensor(scope, "Out");
    out->Resize({1});
    *out->mutable_data<int64_t>() = static_cast<int64_t>(Table(scope).max_length());
  }
};

class LoDTensorToArrayOp : public RankOp {
 public:
  using RankOp::RankOp;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const LoDTensor& x = Tensor(scope, "X");
    const LoDRankTable& table = Table(scope);
    PartsOf(table, x);
    LoDTensorArray& out = *OutputArray(scope, "Out");
    out.resize(table.max_length());
    for (size_t t = 0; t < out.size(); ++t) {
      PoolVector<Piece> pieces;
      LoD lod = NoUnits(x, table.level() + 1);
      ForEachPartOfStep(table, x, t, &lod, [&](RowRange rows) { pieces.push_back({&x, rows}); });
      WritePieces(pieces, x, &out[t]);
      out[t].set_lod(std::move(lod));
    }
  }
};

class LoDTensorToArrayGradOp : public RankOp {
 public:
  using RankOp::RankOp;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const LoDTensor& x = Tensor(scope, "X");
    const LoDRankTable& table = Table(scope);
    const LoDOffsets& parts = PartsOf(table, x);
    LoDTensorArray& array = *OutputArray(scope, "Out@GRAD");
    if (HasOutput("X@GRAD")) {
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
      RowWriter writer(x, static_cast<size_t>(x.dims()[0]), OutputTensor(scope, "X@GRAD"));
      for (const Piece& piece : pieces) {
        if (piece.from != nullptr) {
          writer.Write(*piece.from, piece.rows);
        } else {
          writer.WriteZeros(piece.rows.size());
        }
      }
    }
    array.clear();
  }
};

class ArrayToLoDTensorOp : public RankOp {
 public:
  using RankOp::RankOp;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const auto& array = scope.GetVar(Input("X")).Get<LoDTensorArray>();
    const LoDRankTable& table = Table(scope);
    HR_ENFORCE(array.size() >= table.max_length() && !array.empty(), InvalidArgument, "input X: expected ",
               std::max<size_t>(table.max_length(), 1), " steps, as many as the longest sequence has, got ",
               array.size());
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
    LoDTensor* out = OutputTensor(scope, "Out");
    WritePieces(pieces, array[0], out);
    LoD lod = table.coarse_lod();
    lod.push_back(std::move(offsets));
    std::move(fine.begin(), fine.end(), std::back_inserter(lod));
    out->set_lod(std::move(lod));
  }
};

class ArrayToLoDTensorGradOp : public RankOp {
 public:
  using RankOp::RankOp;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const LoDTensor& out = Tensor(scope, "Out");
    const LoDTensor& gradient = Tensor(scope, "Out@GRAD");
    HR_ENFORCE(gradient.dims() == out.dims(), InvalidArgument, "input Out@GRAD: expected dims ", ToString(out.dims()),
               ", got ", ToString(gradient.dims()));
    const LoDRankTable& table = Table(scope);
    PartsOf(table, out);
    LoDTensorArray& array = *OutputArray(scope, "X@GRAD");
    for (size_t t = 0; t < table.max_length(); ++t) {
      PoolVector<Piece> pieces;
      ForEachPartOfStep(table, out, t, nullptr, [&](RowRange rows) { pieces.push_back({&gradient, rows}); });
      LoDTensor step;
      WritePieces(pieces, gradient, &step);
      AddToPlace(step, t, &array);
    }
  }
};

class ShrinkRnnMemoryOp : public RankOp {
 public:
  using RankOp::RankOp;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const LoDTensor& x = Tensor(scope, "X");
    const size_t active = Table(scope).ActiveAt(StepIn(scope));
    const size_t units = NumUnits(x, 0);
    HR_ENFORCE(active <= units, InvalidArgument, "input X: expected at least ", active,
               " rows or sequences, as many as there are at this step, got ", units);
    LoD lod = NoUnits(x, 0);
    size_t rows = 0;
    for (size_t i = 0; i < active; ++i) {
      rows = Unit(x, 0, i, &lod).end;
    }
    *OutputTensor(scope, "Out") = LoDTensor(x.Slice(0, static_cast<int64_t>(rows)), std::move(lod));
  }
};

class ShrinkRnnMemoryGradOp : public RankOp {
 public:
  using RankOp::RankOp;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const LoDTensor& x = Tensor(scope, "X");
    const LoDTensor& gradient = Tensor(scope, "Out@GRAD");
    HR_ENFORCE(!x.dims().empty() && !gradient.dims().empty() && gradient.dims()[0] <= x.dims()[0], InvalidArgument,
               "input Out@GRAD: expected at most as many rows as X of dims ", ToString(x.dims()), " has, got dims ",
               ToString(gradient.dims()));
    const auto rows = static_cast<size_t>(x.dims()[0]);
    const auto active = static_cast<size_t>(gradient.dims()[0]);
    RowWriter writer(x, rows, OutputTensor(scope, "X@GRAD"));
    writer.Write(gradient, {0, active});
    writer.WriteZeros(rows - active);
  }
};

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

class ReorderByRankOp : public RankOp {
 public:
  using RankOp::RankOp;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const LoDTensor& x = Tensor(scope, "X");
    LoD lod = NoUnits(x, 0);
    PoolVector<Piece> pieces;
    for (const RowRange rows : RowsByRank(Table(scope), x, &lod)) {
      pieces.push_back({&x, rows});
    }
    LoDTensor* out = OutputTensor(scope, "Out");
    WritePieces(pieces, x, out);
    out->set_lod(std::move(lod));
  }
};

class ReorderByRankGradOp : public RankOp {
 public:
  using RankOp::RankOp;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const LoDTensor& x = Tensor(scope, "X");
    const LoDTensor& gradient = Tensor(scope, "Out@GRAD");
    const LoDRankTable& table = Table(scope);
    const PoolVector<RowRange> by_rank = RowsByRank(table, x, nullptr);
    PoolVector<Piece> pieces(by_rank.size());
    size_t row = 0;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      pieces[table.items()[rank].index] = {&gradient, {row, row + by_rank[rank].size()}};
      row += by_rank[rank].size();
    }
    WritePieces(pieces, x, OutputTensor(scope, "X@GRAD"));
  }
};

void EnforceKind(const VarDesc* desc, VarKind kind, std::string_view slot) {
  HR_ENFORCE(desc == nullptr || desc->kind == kind, TypeMismatch, slot, ": expected a ", VarKindName(kind), ", '",
             desc->name, "' is a ", VarKindName(desc->kind));
}

void EnforceTable(const InferShapeContext& ctx) {
  EnforceKind(ctx.InputDesc("RankTable"), VarKind::kLoDRankTable, "input RankTable");
}

// Dims of X, but for the rows.
DDim StepDims(const InferShapeContext& ctx, std::string_view slot) {
  DDim dims = ctx.InputDim(slot);
  HR_ENFORCE(!dims.empty(), InvalidArgument, "input ", slot, ": expected a tensor with rows, got a scalar");
  dims[0] = -1;
  return dims;
}

OpRegistrar&& TableSlot(OpRegistrar&& op) {
  return std::move(op).Input("RankTable", "the table of the sequences that the steps are of");
}

// A gradient operator that reads some slots of the operator; if one of X and Out is an array, its gradient is changed
// in place.
GradientMaker RankGradient(std::vector<std::string> inputs, std::string array_slot) {
  return [inputs = std::move(inputs), array_slot = std::move(array_slot)](const OpDesc& op) {
    OpDesc grad;
    grad.type = op.type + "_grad";
    for (const std::string& slot : inputs) {
      grad.inputs[slot] = slot == "Out" ? op.Output(slot) : op.Input(slot);
    }
    grad.inputs["Out@GRAD"] = {GradVarName(op.Output("Out")[0])};
    grad.outputs["X@GRAD"] = {GradVarName(op.Input("X")[0])};
    if (array_slot == "Out") {
      grad.outputs["Out@GRAD"] = grad.inputs["Out@GRAD"];
    } else if (array_slot == "X") {
      grad.inputs["X@GRAD"] = grad.outputs["X@GRAD"];
    }
    return std::vector<OpDesc>{std::move(grad)};
  };
}

}  // namespace

HEADRACE_REGISTER_OP(lod_rank_table)
    .Comment("The sequences of a level of the LoD of X with their lengths, longest first.")
    .Input("X", "a tensor with a LoD")
    .Output("Out", "a LoDRankTable")
    .Attr<int32_t>("level", "the level of the sequences", 0)
    .InferShape([](InferShapeContext& ctx) {
      EnforceKind(ctx.OutputDesc("Out"), VarKind::kLoDRankTable, "output Out");
      const int32_t level = ctx.Attr<int32_t>("level");
      HR_ENFORCE(level >= 0 && level < std::max(ctx.InputLoDLevel("X"), 1), InvalidArgument,
                 "attribute level: expected a level of the LoD of X, which has ", ctx.InputLoDLevel("X"), ", got ",
                 level);
    })
    .Operator<LoDRankTableOp>();

HEADRACE_REGISTER_OP(max_sequence_len)
    .Comment("The length of the longest sequence of a rank table.")
    .Input("RankTable", "a LoDRankTable")
    .Output("Out", "int64 [1]")
    .InferShape([](InferShapeContext& ctx) {
      EnforceTable(ctx);
      SetOutput(ctx, "Out", {1}, DataType::kInt64);
    })
    .Operator<MaxSequenceLenOp>();

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
    .Input("X", "as in the operator; only its dims and LoD are used")
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
    .Input("Out", "the result of the operator; only its dims and LoD are used")
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

HEADRACE_REGISTER_OP(shrink_rnn_memory)
    .Comment("The first rows or sequences of X, as many as there are sequences that have a step I.")
    .Input("X", "one row or sequence for each sequence of the table that had the step before, longest first")
    .With(TableSlot)
    .Input("I", "int64, a single element: the step")
    .Output("Out", "shares the memory of X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceTable(ctx);
      EnforceType(ctx, "I", DataType::kInt64);
      SetOutput(ctx, "Out", StepDims(ctx, "X"), ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Operator<ShrinkRnnMemoryOp>()
    .Gradient(RankGradient({"X"}, ""));

HEADRACE_REGISTER_OP(shrink_rnn_memory_grad)
    .Comment("Gradient of shrink_rnn_memory: zero for the rows that were left out.")
    .Input("X", "as in the operator; only its dims are used")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) { InferGradients(ctx, {"X"}); })
    .Operator<ShrinkRnnMemoryGradOp>();

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
    .Input("X", "as in the operator; only its dims and LoD are used")
    .With(TableSlot)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) { InferGradients(ctx, {"X"}); })
    .Operator<ReorderByRankGradOp>();

}  // namespace headrace::ops
