// What the operators share that move elements, dimension by dimension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/ddim.h"
#include "framework/lod_tensor.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/common/registration.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/index_map.h"

namespace headrace::ops {

using Ints = std::vector<int32_t>;

// Checks how many numbers there are for a tensor of dims `x`: of attribute `attr`, or of what may be an input.
inline void EnforceSize(const Ints& values, const char* attr, size_t expected, const DDim& x) {
  HR_ENFORCE(values.size() == expected, InvalidArgument, "attribute ", attr, ": expected ", expected,
             " numbers for a tensor of dims ", ToString(x), ", got ", ToString(Attribute(values)));
}
inline void EnforceSize(const IntsArg& values, size_t expected, const DDim& x) {
  HR_ENFORCE(values.size() == expected, InvalidArgument, values.Name(), ": expected ", expected,
             " numbers for a tensor of dims ", ToString(x), ", got ", values.Values());
}

// Each operator is a move: of the elements of input kMoved, with the dims of input kOther unless that is "". It is made
// from the arguments of the operator, the dims of what is moved, and those of the other input, if it has one. `out` are
// the dims of the result; -1 where they are not known yet. From(d, i): see IndexMap.

template <typename Move>
Move MoveOf(const InferShapeContext& ctx) {
  return Move(ctx, ctx.InputDim(Move::kMoved), ctx.HasInput(Move::kOther) ? ctx.InputDim(Move::kOther) : DDim{});
}
template <typename Move>
Move MoveOf(const ExecutionContext& ctx) {
  const LoDTensor* other = ctx.InputOrNull(Move::kOther);
  return Move(ctx, ctx.Input(Move::kMoved).dims(), other == nullptr ? DDim{} : other->dims());
}

// The dims of Out. Those that a move has for the elements have as many dimensions as the input.
template <typename Move>
const DDim& MoveResult(const Move& move) {
  if constexpr (requires { move.result; }) {
    return move.result;
  } else {
    return move.out;
  }
}

// Whether the rows stay, as they never do unless a move says so, and their sequences with them: those of what is moved,
// unless the move names another input (kSequences).
template <typename Move>
bool KeepsRows([[maybe_unused]] const OpArgs& args, [[maybe_unused]] size_t rank) {
  if constexpr (requires { Move::KeepsRows(args, rank); }) {
    return Move::KeepsRows(args, rank);
  } else {
    return false;
  }
}

// `x`: the dims of what is moved.
template <typename Move>
IndexMap MoveMap(const Move& move, const DDim& x) {
  return IndexMap(x, move.out, [&move](size_t d, int64_t i) { return move.From(d, i); });
}

// The attribute pad_value as an element.
template <typename T>
T PadValueOf(const AttributeIndex& op) {
  const double value = op.Attr<double>("pad_value");
  if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_integral_v<T>) {
    // The bounds are powers of two, hence exact.
    const double high = 2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
    HR_ENFORCE(value >= static_cast<double>(std::numeric_limits<T>::min()) && value < high, InvalidArgument,
               "attribute pad_value: expected a number that fits ", DataTypeName(DataTypeOf<T>::value), ", got ",
               value);
  }
  return static_cast<T>(value);
}

// Throws InvalidArgument if there is a pad_value that `type` does not hold.
inline void CheckPadValue(const AttributeIndex& op, DataType type) {
  if (!op.Has("pad_value")) {
    return;
  }
  if (type == DataType::kUInt8) {
    (void)PadValueOf<uint8_t>(op);
  } else if (type == DataType::kInt32) {
    (void)PadValueOf<int32_t>(op);
  } else if (type == DataType::kInt64) {
    (void)PadValueOf<int64_t>(op);
  }
}

template <typename T, typename Move>
void MoveKernel(const ExecutionContext& ctx) {
  T fill{};
  if (ctx.attrs().Has("pad_value")) {
    fill = PadValueOf<T>(ctx.attrs());
  }
  const LoDTensor& x = ctx.Input(Move::kMoved);
  const Move move = MoveOf<Move>(ctx);
  LoDTensor* out = ctx.Output("Out");
  out->Resize(MoveResult(move));  // as shape inference did, unless inputs say which dims they are
  MoveMap(move, x.dims()).Move(x, out, &fill);
}

template <typename T, typename Move>
void MoveGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  const Move move = MoveOf<Move>(ctx);
  HR_ENFORCE(out_grad.dims() == MoveResult(move), InvalidArgument, "input Out@GRAD: expected dims ",
             ToString(MoveResult(move)), ", got ", ToString(out_grad.dims()));
  MoveMap(move, ctx.Input(Move::kMoved).dims()).template AddBack<T>(out_grad, ctx.Output(GradVarName(Move::kMoved)));
}

inline OpRegistrar&& AllIntsInputs(OpRegistrar&& op, std::initializer_list<IntsSlots> ints) {
  for (const IntsSlots& slots : ints) {
    (void)IntsInputs(More(op), slots);
  }
  return More(op);
}

template <typename Move>
OpRegistrar&& OtherInput(OpRegistrar&& op, const char* comment) {
  if (*Move::kOther == 0) {
    return std::move(op);
  }
  // Attributes take its place unless the move says otherwise.
  constexpr bool needed = requires { Move::kNeedsOther; };
  return std::move(op).Input(Move::kOther, comment, needed ? kPlain : kDispensable);
}

// Registers an operator and its gradient. `ints`: what inputs may say in place of attributes.
template <typename Move, typename Attrs>
void RegisterMove(const std::string& type, const std::string& comment, const std::string& out, Attrs attrs,
                  const char* other = "", std::initializer_list<IntsSlots> ints = {}) {
  GradientUses uses = WithInts({.inputs = {Move::kMoved}, .outputs = {}, .no_gradient = {}}, ints, true);
  if (*Move::kOther != 0) {
    uses.inputs.emplace_back(Move::kOther);
    uses.no_gradient.emplace_back(Move::kOther);
  }
  OpRegistrar(type)
      .Comment(comment)
      .Input(Move::kMoved, "any shape")
      .With(OtherInput<Move>, other)
      .With(AllIntsInputs, ints)
      .Output("Out", out)
      .With(attrs)
      .KernelTypeFrom(Move::kMoved)
      .InferShape([](InferShapeContext& ctx) {
        CheckPadValue(ctx.attrs(), ctx.InputType(Move::kMoved));
        SetKnownOutput(ctx, "Out", MoveResult(MoveOf<Move>(ctx)), ctx.InputType(Move::kMoved));
        if (KeepsRows<Move>(ctx, ctx.InputDim(Move::kMoved).size())) {
          ctx.ShareLoD(Move::kMoved, "Out");
        }
        if constexpr (requires { Move::kSequences; }) {
          ctx.ShareLoD(Move::kSequences, "Out");
        }
      })
      .template Kernel<bool>(MoveKernel<bool, Move>)
      .template Kernel<uint8_t>(MoveKernel<uint8_t, Move>)
      .template Kernel<int32_t>(MoveKernel<int32_t, Move>)
      .template Kernel<int64_t>(MoveKernel<int64_t, Move>)
      .template Kernel<float>(MoveKernel<float, Move>)
      .template Kernel<double>(MoveKernel<double, Move>)
      .Gradient(DefaultGradient(uses))
      .Register();
  OpRegistrar(type + "_grad")
      .Comment("Gradient of " + type + ".")
      .Input(Move::kMoved, "as in the operator; only its dims are used", kShapeOnly)
      .With(OtherInput<Move>, "as in the operator; only its dims are used")
      .With(AllIntsInputs, ints)
      .Input("Out@GRAD", "gradient of Out")
      .Output(GradVarName(Move::kMoved), std::string("dims of ") + Move::kMoved)
      .With(attrs)
      .KernelTypeFrom(Move::kMoved)
      .InferShape([](InferShapeContext& ctx) {
        EnforceDims(ctx, "Out@GRAD", MoveResult(MoveOf<Move>(ctx)));
        EnforceSameType(ctx, "Out@GRAD", Move::kMoved);
        InferGradients(ctx, {Move::kMoved});
      })
      .template Kernel<float>(MoveGradKernel<float, Move>)
      .template Kernel<double>(MoveGradKernel<double, Move>)
      .Gradient(GradientOfLinear(type, Move::kMoved, "Out", "pad_value"))
      .Register();
}

}  // namespace headrace::ops
