// stack, unstack: tensors as slices of one of a higher rank; each is the gradient of the other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/join_and_cut.h"

namespace headrace::ops {
namespace {

DDim WithAxis(DDim dims, size_t axis, int64_t extent) {
  dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), extent);
  return dims;
}

DDim WithoutAxis(DDim dims, size_t axis) {
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
  return dims;
}

// The axis of a tensor of rank `rank`.
size_t StackAxis(const AttributeIndex& op, size_t rank) { return FrontAxis(op.Attr<int32_t>("axis"), rank, "axis"); }

template <const char* kPieces, const char* kWhole>
void StackKernel(const ExecutionContext& ctx) {
  PoolVector<const LoDTensor*> pieces;
  for (size_t k = 0; k < ctx.InputSize(kPieces); ++k) {
    pieces.push_back(ctx.InputOrNull(kPieces, k));  // a slice whose gradient was not computed has the gradient zero
  }
  LoDTensor* whole = ctx.Output(kWhole);
  const LoDTensor* first = nullptr;
  for (size_t k = 0; first == nullptr; ++k) {
    first = pieces[k];
  }
  Join(pieces, PoolVector<int64_t>(pieces.size(), 1), whole, first->dtype(),
       StackAxis(ctx.attrs(), whole->dims().size()));
}

template <const char* kWhole, const char* kPieces>
void UnstackKernel(const ExecutionContext& ctx) {
  const LoDTensor& whole = ctx.Input(kWhole);
  PoolVector<LoDTensor*> pieces;
  for (size_t k = 0; k < ctx.OutputSize(kPieces); ++k) {
    pieces.push_back(ctx.OutputOrNull(kPieces, k));
  }
  Cut(whole, pieces, PoolVector<int64_t>(pieces.size(), 1), StackAxis(ctx.attrs(), whole.dims().size()));
}

template <const char* kPieces, const char* kWhole>
void InferStack(InferShapeContext& ctx) {
  const size_t count = ctx.InputSize(kPieces);
  size_t first = 0;
  while (first < count && !ctx.HasInput(kPieces, first)) {
    ++first;
  }
  HR_ENFORCE(first < count, InvalidArgument, "input ", kPieces, ": expected at least one variable, got none");
  DDim dims = ctx.InputDim(kPieces, first);
  for (size_t k = first + 1; k < count; ++k) {
    if (ctx.HasInput(kPieces, k)) {
      EnforceDims(ctx, kPieces, dims, k);
      EnforceType(ctx, kPieces, ctx.InputType(kPieces, first), k);
      for (size_t d = 0; d < dims.size(); ++d) {
        dims[d] = std::max(dims[d], ctx.InputDim(kPieces, k)[d]);
      }
    }
  }
  const size_t axis = StackAxis(ctx.attrs(), dims.size() + 1);
  SetOutput(ctx, kWhole, WithAxis(dims, axis, static_cast<int64_t>(count)), ctx.InputType(kPieces, first));
  if (axis != 0) {  // the rows stay
    ctx.ShareLoD(kPieces, kWhole, first);
  }
}

template <const char* kWhole, const char* kPieces>
void InferUnstack(InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, kWhole, 1);
  const DDim dims = ctx.InputDim(kWhole);
  const size_t axis = StackAxis(ctx.attrs(), dims.size());
  const auto count = static_cast<int64_t>(ctx.OutputSize(kPieces));
  HR_ENFORCE(Fits(dims[axis], count), InvalidArgument, "input ", kWhole, ": expected ", count, " for dimension ", axis,
             ", the number of variables of output ", kPieces, ", got dims ", ToString(dims));
  for (size_t k = 0; k < ctx.OutputSize(kPieces); ++k) {
    SetOutput(ctx, kPieces, WithoutAxis(dims, axis), ctx.InputType(kWhole), k);
  }
}

constexpr char kX[] = "X";
constexpr char kY[] = "Y";
constexpr char kXGrad[] = "X@GRAD";
constexpr char kYGrad[] = "Y@GRAD";

OpRegistrar&& StackAttrs(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("axis", "the dimension of the whole; negative ones count from the back", 0);
}
OpRegistrar&& UnstackAttrs(OpRegistrar&& op) {
  return StackAttrs(std::move(op)).Attr<int32_t>("num", "Fluid's: the number of slices, which is that of Y", 0);
}

}  // namespace

HEADRACE_REGISTER_OP(stack)
    .Comment("Tensors as slices of one that has a dimension more.")
    .Input("X", "tensors of the same dims and dtype", kDuplicable)
    .Output("Y", "their dims, with their number at axis")
    .With(StackAttrs)
    .InferShape(InferStack<kX, kY>)
    .With(KernelForAllTypes, StackKernel<kX, kY>)
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(stack_grad)
    .Comment("Gradient of stack.")
    .Input("Y@GRAD", "gradient of Y")
    .Output("X@GRAD", "dims of X each", kDuplicable)
    .With(StackAttrs)
    .InferShape(InferUnstack<kYGrad, kXGrad>)
    .With(KernelForAllTypes, UnstackKernel<kYGrad, kXGrad>);

HEADRACE_REGISTER_OP(unstack)
    .Comment("The slices of a tensor.")
    .Input("X", "any shape of rank 1 or more")
    .Output("Y", "dims of X without axis; as many as axis is long", kDuplicable)
    .With(UnstackAttrs)
    .InferShape(InferUnstack<kX, kY>)
    .With(KernelForAllTypes, UnstackKernel<kX, kY>)
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(unstack_grad)
    .Comment("Gradient of unstack.")
    .Input("Y@GRAD", "gradients of Y", kDuplicable)
    .Output("X@GRAD", "dims of X")
    .With(UnstackAttrs)
    .InferShape(InferStack<kYGrad, kXGrad>)
    .With(KernelForAllTypes, StackKernel<kYGrad, kXGrad>);

}  // namespace headrace::ops
