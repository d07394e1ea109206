// transpose, transpose2: the dimensions in another order, of any dtype.
#include <cstddef>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/permute.h"

namespace headrace::ops {
namespace {

// `axis[d]` is the dimension of X that becomes dimension d of Out.
PoolVector<size_t> Permutation(const AttributeIndex& op, size_t rank) {
  const auto& axis = op.Attr<std::vector<int32_t>>("axis");
  PoolVector<size_t> permutation;
  PoolVector<bool> seen(rank, false);
  for (const int32_t a : axis) {
    permutation.push_back(FrontAxis(a, rank, "axis"));
    HR_ENFORCE(!seen[permutation.back()], InvalidArgument, "attribute axis: dimension ", a, " is given twice, in ",
               ToString(Attribute(axis)));
    seen[permutation.back()] = true;
  }
  HR_ENFORCE(permutation.size() == rank, InvalidArgument, "attribute axis: expected ", rank,
             " dimensions, as many as X has, got ", ToString(Attribute(axis)));
  return permutation;
}

PoolVector<size_t> Inverse(const PoolVector<size_t>& permutation) {
  PoolVector<size_t> inverse(permutation.size());
  for (size_t d = 0; d < permutation.size(); ++d) {
    inverse[permutation[d]] = d;
  }
  return inverse;
}

DDim Permuted(const DDim& dims, const PoolVector<size_t>& permutation) {
  DDim out;
  for (const size_t d : permutation) {
    out.push_back(dims[d]);
  }
  return out;
}

void Transpose(const LoDTensor& x, const PoolVector<size_t>& permutation, LoDTensor* out) {
  void* to = out->mutable_data(x.dtype());
  if (x.numel() != 0) {
    Permute(x.dims(), permutation, SizeOf(x.dtype()), x.raw_data(), to);
  }
}

void PermuteKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  if (LoDTensor* x_shape = ctx.OutputOrNull("XShape")) {
    x_shape->mutable_data(x.dtype());
  }
  Transpose(x, Permutation(ctx.attrs(), x.dims().size()), ctx.Output("Out"));
}

void PermuteGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  Transpose(out_grad, Inverse(Permutation(ctx.attrs(), out_grad.dims().size())), ctx.Output("X@GRAD"));
}

void InferPermuted(InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const PoolVector<size_t> permutation = Permutation(ctx.attrs(), x.size());
  SetOutput(ctx, "Out", Permuted(x, permutation), ctx.InputType("X"));
  if (ctx.HasOutput("XShape")) {
    DDim x_shape = {0};
    x_shape.insert(x_shape.end(), x.begin(), x.end());
    SetOutput(ctx, "XShape", x_shape, ctx.InputType("X"));
  }
}

void InferPermutedGrad(InferShapeContext& ctx) {
  const DDim out_grad = ctx.InputDim("Out@GRAD");
  SetOutput(ctx, "X@GRAD", Permuted(out_grad, Inverse(Permutation(ctx.attrs(), out_grad.size()))),
            ctx.InputType("Out@GRAD"));
}

OpRegistrar&& PermutationAttr(OpRegistrar&& op) {
  return std::move(op).Attr<std::vector<int32_t>>("axis",
                                                  "the dimensions of X in the order in which they are those of Out");
}

}  // namespace

HEADRACE_REGISTER_OP(transpose)
    .Comment("The dimensions in another order.")
    .Input("X", "any shape")
    .Output("Out", "dims of X in the order of axis")
    .With(PermutationAttr)
    .InferShape(InferPermuted)
    .With(KernelForAllTypes, PermuteKernel)
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(transpose_grad)
    .Comment("Gradient of transpose.")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(PermutationAttr)
    .InferShape(InferPermutedGrad)
    .With(KernelForAllTypes, PermuteGradKernel)
    .Gradient(GradientOfLinear("transpose"));

HEADRACE_REGISTER_OP(transpose2)
    .Comment("The dimensions in another order.")
    .Input("X", "any shape")
    .Output("Out", "dims of X in the order of axis")
    .Output("XShape", "without elements; its dims are 0 and those of X", kDispensable)
    .With(PermutationAttr)
    .InferShape(InferPermuted)
    .With(KernelForAllTypes, PermuteKernel)
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(transpose2_grad)
    .Comment("Gradient of transpose2.")
    .Input("Out@GRAD", "gradient of Out")
    .Input("XShape@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .With(PermutationAttr)
    .InferShape(InferPermutedGrad)
    .With(KernelForAllTypes, PermuteGradKernel)
    .Gradient(GradientOfLinear("transpose2"));

}  // namespace headrace::ops
