// transpose, transpose2: the dimensions in another order, of any dtype.
#include <cstddef>
#include <cstring>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

// `axis[d]` is the dimension of X that becomes dimension d of Out.
PoolVector<size_t> Permutation(const OpDesc& op, size_t rank) {
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

// Elements of kSize bytes: `to` is written in order, `from` read along the strides.
template <size_t kSize>
void CopyStrided(const DDim& extents, const DDim& strides, const std::byte* from, std::byte* to) {
  const int64_t n = extents.back();
  const int64_t stride = strides.back() * static_cast<int64_t>(kSize);
  const int64_t rows = Numel(extents, 0, extents.size() - 1);
  ParallelFor(rows, RowsPerBlock(n), [&, from, to](int64_t begin, int64_t end) {
    DDim index(extents.size() - 1);
    const std::byte* row = from;
    int64_t rest = begin;
    for (size_t d = index.size(); d-- > 0; rest /= extents[d]) {
      index[d] = rest % extents[d];
      row += index[d] * strides[d] * static_cast<int64_t>(kSize);
    }
    std::byte* at = to + begin * n * static_cast<int64_t>(kSize);
    for (int64_t r = begin; r < end; ++r, at += n * static_cast<int64_t>(kSize)) {
      if (stride == static_cast<int64_t>(kSize)) {
        std::memcpy(at, row, static_cast<size_t>(n) * kSize);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          std::memcpy(at + i * static_cast<int64_t>(kSize), row + i * stride, kSize);
        }
      }
      for (size_t d = index.size(); d > 0; --d) {
        row += strides[d - 1] * static_cast<int64_t>(kSize);
        if (++index[d - 1] < extents[d - 1]) {
          break;
        }
        row -= strides[d - 1] * extents[d - 1] * static_cast<int64_t>(kSize);
        index[d - 1] = 0;
      }
    }
  });
}

void Transpose(const LoDTensor& x, const PoolVector<size_t>& permutation, LoDTensor* out) {
  void* to = out->mutable_data(x.dtype());
  if (x.numel() == 0) {
    return;
  }
  DDim x_strides(x.dims().size());
  int64_t stride = 1;
  for (size_t d = x_strides.size(); d-- > 0;) {
    x_strides[d] = stride;
    stride *= x.dims()[d];
  }
  // Dimensions that stay neighbours are one.
  DDim extents;
  DDim strides;
  for (const size_t d : permutation) {
    if (!extents.empty() && strides.back() == x_strides[d] * x.dims()[d]) {
      extents.back() *= x.dims()[d];
      strides.back() = x_strides[d];
    } else {
      extents.push_back(x.dims()[d]);
      strides.push_back(x_strides[d]);
    }
  }
  if (extents.empty()) {
    extents.push_back(1);
    strides.push_back(1);
  }
  const auto* from = static_cast<const std::byte*>(x.raw_data());
  auto* bytes = static_cast<std::byte*>(to);
  switch (SizeOf(x.dtype())) {
    case 1:
      return CopyStrided<1>(extents, strides, from, bytes);
    case 2:
      return CopyStrided<2>(extents, strides, from, bytes);
    case 4:
      return CopyStrided<4>(extents, strides, from, bytes);
    default:
      return CopyStrided<8>(extents, strides, from, bytes);
  }
}

void PermuteKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  if (LoDTensor* x_shape = ctx.OutputOrNull("XShape")) {
    x_shape->mutable_data(x.dtype());
  }
  Transpose(x, Permutation(ctx.op(), x.dims().size()), ctx.Output("Out"));
}

void PermuteGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  Transpose(out_grad, Inverse(Permutation(ctx.op(), out_grad.dims().size())), ctx.Output("X@GRAD"));
}

void InferPermuted(InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const PoolVector<size_t> permutation = Permutation(ctx.op(), x.size());
  SetOutput(ctx, "Out", Permuted(x, permutation), ctx.InputType("X"));
  if (ctx.HasOutput("XShape")) {
    DDim x_shape = {0};
    x_shape.insert(x_shape.end(), x.begin(), x.end());
    SetOutput(ctx, "XShape", x_shape, ctx.InputType("X"));
  }
  if (!x.empty() && permutation[0] == 0) {
    ctx.ShareLoD("X", "Out");
  }
}

void InferPermutedGrad(InferShapeContext& ctx) {
  const DDim out_grad = ctx.InputDim("Out@GRAD");
  SetOutput(ctx, "X@GRAD", Permuted(out_grad, Inverse(Permutation(ctx.op(), out_grad.size()))),
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
    .With(KernelForAllTypes, PermuteGradKernel);

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
    .With(KernelForAllTypes, PermuteGradKernel);

}  // namespace headrace::ops
