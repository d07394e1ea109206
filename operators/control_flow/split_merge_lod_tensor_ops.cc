// split_lod_tensor, merge_lod_tensor: rows or sequences parted by a mask, and put together again.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/sequence/lod_units.h"

namespace headrace::ops {
namespace {

size_t LevelOf(const ExecutionContext& ctx) { return static_cast<size_t>(ctx.Attr<int32_t>("level")); }

// Checks the inputs X and Mask. Below the deepest level of the LoD of X, its rows are parted.
void CheckMask(const InferShapeContext& ctx) {
  if (!MayBeFedOtherwise(ctx, "Mask")) {
    EnforceType(ctx, "Mask", DataType::kBool);
  }
  EnforceDims(ctx, "Mask", ctx.InputDim("Mask").size() == 1 ? DDim{-1} : DDim{-1, 1});
  if (!ctx.HasInput("X")) {
    return;
  }
  EnforceRankAtLeast(ctx, "X", 1);
  const int32_t levels = ctx.InputLoDLevel("X");
  const int32_t level = ctx.Attr<int32_t>("level");
  const bool is_known = ctx.IsRuntime() || levels > 0;  // a program need not declare the LoD of what it is fed
  HR_ENFORCE(level <= levels || !is_known, InvalidArgument,
             "attribute level: expected a level of the LoD of X, which has ", levels, ", or that of its rows, ", levels,
             ", got ", level);
}

// The mask, with an element for each of `units`.
const bool* MaskOf(const ExecutionContext& ctx, size_t units) {
  const LoDTensor& mask = ctx.Input("Mask");
  HR_ENFORCE(static_cast<size_t>(mask.numel()) == units, InvalidArgument, "input Mask: expected ", units,
             " elements, one for each row or sequence, got dims ", ToString(mask.dims()));
  return mask.data<bool>();
}

// The units of `x` that the mask takes for `value`.
void WriteMasked(const LoDTensor& x, const bool* mask, size_t units, size_t level, bool value, LoDTensor* out) {
  LoD lod = NoUnits(x, level);
  PoolVector<Piece> pieces;
  for (size_t i = 0; i < units; ++i) {
    if (mask[i] == value) {
      pieces.push_back({&x, Unit(x, level, i, &lod)});
    }
  }
  WritePieces(pieces, x, out);
  // Where no sequence belongs, there are as many as in `x`, but empty: operators expect one for each image, say.
  if (pieces.empty() && lod.size() == 1) lod[0].assign(units + 1, 0);
  out->set_lod(std::move(lod));
}

void SplitByMaskKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const size_t level = LevelOf(ctx);
  const size_t units = NumUnits(x, level);
  const bool* mask = MaskOf(ctx, units);
  WriteMasked(x, mask, units, level, true, ctx.Output("OutTrue"));
  WriteMasked(x, mask, units, level, false, ctx.Output("OutFalse"));
}

// A gradient that is missing is zero.
void SplitByMaskGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const size_t level = LevelOf(ctx);
  const size_t units = NumUnits(x, level);
  const bool* mask = MaskOf(ctx, units);
  const LoDTensor* gradients[] = {ctx.InputOrNull("OutFalse@GRAD"), ctx.InputOrNull("OutTrue@GRAD")};
  size_t rows[] = {0, 0};
  RowWriter writer(x, static_cast<size_t>(x.dims()[0]), ctx.Output("X@GRAD"));
  for (size_t i = 0; i < units; ++i) {
    const size_t side = mask[i] ? 1 : 0;
    const size_t size = Unit(x, level, i).size();
    if (gradients[side] == nullptr) {
      writer.WriteZeros(size);
    } else {
      writer.Write(*gradients[side], {rows[side], rows[side] + size});
      rows[side] += size;
    }
  }
}

void MergeByMaskKernel(const ExecutionContext& ctx) {
  const LoDTensor* inputs[] = {&ctx.Input("InFalse"), &ctx.Input("InTrue")};
  const auto units = static_cast<size_t>(ctx.Input("Mask").numel());
  const bool* mask = MaskOf(ctx, units);
  const auto trues = static_cast<size_t>(std::count(mask, mask + units, true));
  // Of a side without elements in Mask, nothing but that it has no rows counts.
  const auto is_passed_over = [&](size_t side) {
    return (side == 1 ? trues : units - trues) == 0 && !inputs[side]->dims().empty() && inputs[side]->dims()[0] == 0;
  };
  const bool passed_over[] = {is_passed_over(0), is_passed_over(1)};
  HR_ENFORCE(passed_over[0] || passed_over[1] || inputs[0]->lod_level() == inputs[1]->lod_level(), InvalidArgument,
             "inputs InTrue and InFalse: expected as many levels of LoD, got ", inputs[1]->lod_level(), " and ",
             inputs[0]->lod_level());
  const size_t available[] = {passed_over[0] ? 0 : NumUnits(*inputs[0], 0),
                              passed_over[1] ? 0 : NumUnits(*inputs[1], 0)};
  size_t used[] = {0, 0};
  LoD lod = NoUnits(*inputs[passed_over[0] ? 1 : 0], 0);
  PoolVector<Piece> pieces;
  pieces.reserve(units);
  for (size_t i = 0; i < units; ++i) {
    const size_t side = mask[i] ? 1 : 0;
    HR_ENFORCE(used[side] < available[side], InvalidArgument, side == 1 ? "input InTrue" : "input InFalse",
               ": expected a row or sequence for each ", side == 1 ? "true" : "false", " element of Mask, got ",
               available[side]);
    pieces.push_back({inputs[side], Unit(*inputs[side], 0, used[side]++, &lod)});
  }
  HR_ENFORCE(used[0] == available[0] && used[1] == available[1], InvalidArgument,
             "inputs InTrue and InFalse: expected ", used[1], " and ", used[0], " rows or sequences, as Mask has, got ",
             available[1], " and ", available[0]);
  LoDTensor* out = ctx.Output("Out");
  WritePieces(pieces, *inputs[used[1] == 0 ? 0 : 1], out);
  const LoD& coarse = ctx.Input("X").lod();
  const size_t level = LevelOf(ctx);
  lod.insert(lod.begin(), coarse.begin(), coarse.begin() + static_cast<std::ptrdiff_t>(level));
  out->set_lod(std::move(lod));
}

void MergeByMaskGradKernel(const ExecutionContext& ctx) {
  const LoDTensor* inputs[] = {&ctx.Input("InFalse"), &ctx.Input("InTrue")};
  const LoDTensor& gradient = ctx.Input("Out@GRAD");
  const auto units = static_cast<size_t>(ctx.Input("Mask").numel());
  const bool* mask = MaskOf(ctx, units);
  const auto trues = static_cast<size_t>(std::count(mask, mask + units, true));
  for (const size_t side : {0, 1}) {
    const size_t wanted = side == 1 ? trues : units - trues;
    HR_ENFORCE(wanted == 0 || wanted <= NumUnits(*inputs[side], 0), InvalidArgument, "input Mask: it has changed");
  }
  size_t used[] = {0, 0};
  size_t row = 0;
  PoolVector<Piece> pieces[2];
  for (size_t i = 0; i < units; ++i) {
    const size_t side = mask[i] ? 1 : 0;
    const size_t size = Unit(*inputs[side], 0, used[side]++).size();
    pieces[side].push_back({&gradient, {row, row + size}});
    row += size;
  }
  for (const size_t side : {0, 1}) {
    if (LoDTensor* out = ctx.OutputOrNull(side == 1 ? "InTrue@GRAD" : "InFalse@GRAD")) {
      WritePieces(pieces[side], *inputs[side], out);
    }
  }
}

DDim AnyRows(const InferShapeContext& ctx, HashedName slot) {
  EnforceRankAtLeast(ctx, slot, 1);
  DDim dims = ctx.InputDim(slot);
  dims[0] = -1;
  return dims;
}

// `levels`: how many levels of LoD it has more than `like`.
void SetAnyRows(InferShapeContext& ctx, HashedName slot, HashedName like, int32_t levels) {
  if (!ctx.IsRuntime()) {
    SetOutput(ctx, slot, AnyRows(ctx, like), ctx.InputType(like));
    ctx.SetOutputLoDLevel(slot, std::max(ctx.InputLoDLevel(like) + levels, 0));
  }
}

OpRegistrar&& MaskSlot(OpRegistrar&& op) {
  return std::move(op)
      .Input("Mask", "bool, one element for each row of X or, with a LoD, each sequence of its level")
      .Attr<int32_t>("level", "the level of the sequences that are parted", 0, [](const int32_t& level) {
        HR_ENFORCE(level >= 0, InvalidArgument, "attribute level: expected 0 or more, got ", level);
      });
}

}  // namespace

// The rows of the outputs depend on the mask, so that the kernels give them their dims and their LoDs.
HEADRACE_REGISTER_OP(split_lod_tensor)
    .Comment("Parts the rows or sequences of X by a mask.")
    .Input("X", "[rows, ...]")
    .With(MaskSlot)
    .Output("OutTrue", "those for which the mask is true")
    .Output("OutFalse", "the others")
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      CheckMask(ctx);
      SetAnyRows(ctx, "OutTrue", "X", -ctx.Attr<int32_t>("level"));
      SetAnyRows(ctx, "OutFalse", "X", -ctx.Attr<int32_t>("level"));
    })
    .With(KernelForAllTypes, SplitByMaskKernel)
    .Gradient(DefaultGradient({.inputs = {"X", "Mask"}, .outputs = {}, .no_gradient = {"Mask"}}));

HEADRACE_REGISTER_OP(split_lod_tensor_grad)
    .Comment("Gradient of split_lod_tensor. A gradient that is missing is zero.")
    .Input("X", "as in the operator; only its dims and LoD are used", kShapeOnly)
    .With(MaskSlot)
    .Input("OutTrue@GRAD", "gradient of OutTrue", kDispensable)
    .Input("OutFalse@GRAD", "gradient of OutFalse", kDispensable)
    .Output("X@GRAD", "dims of X")
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      CheckMask(ctx);
      InferGradients(ctx, {"X"});
    })
    .With(KernelForAllTypes, SplitByMaskGradKernel);

HEADRACE_REGISTER_OP(merge_lod_tensor)
    .Comment("Puts the rows or sequences of two tensors together, taking the next of either as a mask says.")
    .Input("X", "what split_lod_tensor parted; only the levels of its LoD above `level` are used")
    .With(MaskSlot)
    .Input("InTrue", "as many rows or sequences as the mask has true elements")
    .Input("InFalse", "as many as it has false ones")
    .Output("Out", "all of them")
    .KernelTypeFrom("InTrue")
    .InferShape([](InferShapeContext& ctx) {
      CheckMask(ctx);
      EnforceSameType(ctx, "InFalse", "InTrue");
      // The kernel compares their rows: it takes what has none, whatever its dims are, and the branch that a program
      // does not choose need not be declared like the other one.
      EnforceRankAtLeast(ctx, "InFalse", 1);
      const bool is_deeper = ctx.InputLoDLevel("InFalse") > ctx.InputLoDLevel("InTrue");
      SetAnyRows(ctx, "Out", is_deeper ? "InFalse" : "InTrue", ctx.Attr<int32_t>("level"));
    })
    .With(KernelForAllTypes, MergeByMaskKernel)
    .Gradient(
        DefaultGradient({.inputs = {"X", "Mask", "InTrue", "InFalse"}, .outputs = {}, .no_gradient = {"X", "Mask"}}));

HEADRACE_REGISTER_OP(merge_lod_tensor_grad)
    .Comment("Gradient of merge_lod_tensor.")
    .Input("X", "as in the operator; not used", kDispensable)
    .With(MaskSlot)
    .Input("InTrue", "as in the operator; only its dims and LoD are used", kShapeOnly)
    .Input("InFalse", "as in the operator; only its dims and LoD are used", kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("InTrue@GRAD", "dims of InTrue", kDispensable)
    .Output("InFalse@GRAD", "dims of InFalse", kDispensable)
    .KernelTypeFrom("InTrue")
    .InferShape([](InferShapeContext& ctx) {
      CheckMask(ctx);
      InferGradients(ctx, {"InTrue", "InFalse"});
    })
    .With(KernelForAllTypes, MergeByMaskGradKernel);

}  // namespace headrace::ops
