// What the operators share that move rows of sequences.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/ddim.h"
#include "framework/lod_tensor.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/index_map.h"

namespace headrace::ops {

// Which row of the input each row of the result is (-1: none), the dims of the result, and its LoD.
struct SequenceRows {
  PoolVector<int64_t> from;
  DDim dims;
  LoD lod;
};

// The base of operators that make their result of rows of X. Each adds kOut, the slot of the result, Of(ctx), its rows,
// LoDLevel(ctx), how many levels of LoD it has, and, if there is more to check before the run, Check(ctx).
struct SequenceRowsOp {
  // The input as a list of rows of the width that those of the result have.
  static DDim RowDims(const DDim& x) { return x; }
  // The dims of the result as far as the program knows them.
  static DDim DeclaredDims(const InferShapeContext& ctx);
};

// A level of the LoD of an input, checked. -1: the deepest.
const LoDOffsets& CheckedLevel(const ExecutionContext& ctx, HashedName slot, int64_t level = -1);

// Appends the numbers of rows [begin, end).
void AppendRange(PoolVector<int64_t>* rows, int64_t begin, int64_t end);

// Rows of input `slot`, with a LoD.
SequenceRows TakeRows(const ExecutionContext& ctx, HashedName slot, PoolVector<int64_t> from, LoD lod);

// The lengths that an int64 input [n, 1] or [n] holds, one for each of `n` sequences.
const int64_t* PerSequence(const ExecutionContext& ctx, HashedName slot, int64_t n);

template <typename Op>
IndexMap RowMap(const ExecutionContext& ctx, const SequenceRows& rows) {
  return IndexMap::OfRows(Op::RowDims(ctx.Input("X").dims()), rows.from);
}

template <typename T, typename Op>
void SequenceRowsKernel(const ExecutionContext& ctx) {
  const SequenceRows rows = Op::Of(ctx);
  LoDTensor* out = ctx.Output(Op::kOut);
  out->Resize(rows.dims);
  RowMap<Op>(ctx, rows).Move(ctx.Input("X"), out);
  out->set_lod(rows.lod);
}

template <typename T, typename Op>
void SequenceRowsGradKernel(const ExecutionContext& ctx) {
  const SequenceRows rows = Op::Of(ctx);
  const LoDTensor& out_grad = ctx.Input(Grad(Op::kOut));
  HR_ENFORCE(out_grad.dims() == rows.dims, InvalidArgument, "input ", Grad(Op::kOut), ": expected dims ",
             ToString(rows.dims), ", got ", ToString(out_grad.dims()));
  RowMap<Op>(ctx, rows).template AddBack<T>(out_grad, ctx.Output("X@GRAD"));
}

template <typename Op>
void CheckSequenceRows(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  if constexpr (requires { Op::Check(ctx); }) {
    Op::Check(ctx);
  }
}

template <typename Op>
void InferSequenceRows(InferShapeContext& ctx) {
  CheckSequenceRows<Op>(ctx);
  if (ctx.IsRuntime()) {
    return;  // the kernel knows how many rows there are
  }
  SetOutput(ctx, Op::kOut, Op::DeclaredDims(ctx), ctx.InputType("X"));
  ctx.SetOutputLoDLevel(Op::kOut, Op::LoDLevel(ctx));
}

template <typename Op>
void InferSequenceRowsGrad(InferShapeContext& ctx) {
  CheckSequenceRows<Op>(ctx);
  EnforceSameType(ctx, Grad(Op::kOut), "X");
  InferGradients(ctx, {"X"});
  ctx.ShareLoD("X", "X@GRAD");
}

// Registers an operator with the inputs X and `others`, and its gradient.
template <typename Op, typename Declare>
void RegisterSequenceRows(const std::string& type, const std::string& comment, const std::string& x,
                          const std::string& out, Declare declare,
                          const std::vector<std::pair<std::string, std::string>>& others) {
  GradientUses uses{.inputs = {"X"}, .outputs = {}, .no_gradient = {}};
  OpRegistrar forward(type);
  OpRegistrar backward(type + "_grad");
  (void)More(forward).Comment(comment).Input("X", x);
  (void)More(backward)
      .Comment("Gradient of " + type + ".")
      .Input("X", "as in the operator; only its dims and its LoD are used", kShapeOnly);
  for (const auto& [slot, text] : others) {
    uses.inputs.push_back(slot);
    uses.no_gradient.push_back(slot);
    (void)More(forward).Input(slot, text);
    (void)More(backward).Input(slot, "as in the operator");
  }
  More(forward)
      .Output(Op::kOut, out)
      .With(declare)
      .KernelTypeFrom("X")
      .InferShape(InferSequenceRows<Op>)
      .template Kernel<float>(SequenceRowsKernel<float, Op>)
      .template Kernel<double>(SequenceRowsKernel<double, Op>)
      .template Kernel<int32_t>(SequenceRowsKernel<int32_t, Op>)
      .template Kernel<int64_t>(SequenceRowsKernel<int64_t, Op>)
      .Gradient(DefaultGradient(uses))
      .Register();
  More(backward)
      .Input(GradVarName(Op::kOut), std::string("gradient of ") + Op::kOut)
      .Output("X@GRAD", "dims of X")
      .With(declare)
      .KernelTypeFrom("X")
      .InferShape(InferSequenceRowsGrad<Op>)
      .template Kernel<float>(SequenceRowsGradKernel<float, Op>)
      .template Kernel<double>(SequenceRowsGradKernel<double, Op>)
      .Register();
}

// For operators without attributes.
inline OpRegistrar&& NoAttrs(OpRegistrar&& op) { return std::move(op); }

}  // namespace headrace::ops
