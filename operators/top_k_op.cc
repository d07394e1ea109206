// top_k: the greatest elements of each row.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/ranking.h"

namespace headrace::ops {
namespace {

template <typename T>
void TopKKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const auto [rows, cols] = MatrixSize(x_tensor);
  const int64_t k = ctx.Attr<int32_t>("k");
  const T* x = x_tensor.data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  int64_t* indices = ctx.Output("Indices")->mutable_data<int64_t>();
  PoolVector<int64_t> order(static_cast<size_t>(rows == 0 ? 0 : cols));
  for (int64_t r = 0; r < rows; ++r, x += cols, out += k, indices += k) {
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(),
                      [x](int64_t a, int64_t b) { return Before(x[a], x[b]) || (!Before(x[b], x[a]) && a < b); });
    for (int64_t i = 0; i < k; ++i) {
      indices[i] = order[static_cast<size_t>(i)];
      out[i] = x[indices[i]];
    }
  }
}

template <typename T>
void TopKGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& indices_tensor = ctx.Input("Indices");
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  T* dx = x_grad->mutable_data<T>();
  const int64_t cols = x_grad->dims().back();
  const int64_t k = indices_tensor.dims().back();
  const int64_t* indices = indices_tensor.data<int64_t>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  std::fill_n(dx, x_grad->numel(), T(0));
  for (int64_t i = 0; i < indices_tensor.numel(); ++i) {
    HR_ENFORCE(0 <= indices[i] && indices[i] < cols, OutOfRange, "input Indices: row ", i / k, " has index ",
               indices[i], ", expected one in [0, ", cols, ")");
    dx[i / k * cols + indices[i]] = d[i];
  }
}

DDim TopKDims(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 1);
  DDim dims = ctx.InputDim("X");
  const int64_t k = ctx.Attr<int32_t>("k");
  HR_ENFORCE(k > 0 && (dims.back() < 0 || k <= dims.back()), InvalidArgument,
             "attribute k: expected 1 or more, and no more than X of dims ", ToString(dims), " has in a row, got ", k);
  dims.back() = k;
  return dims;
}

OpRegistrar&& TopKAttrs(OpRegistrar&& op) { return std::move(op).Attr<int32_t>("k", "how many", 1); }

}  // namespace

HEADRACE_REGISTER_OP(top_k)
    .Comment(
        "The k greatest elements of each row, in descending order; of equal ones the first comes first, NaN before "
        "everything.")
    .Input("X", "[..., n]")
    .Output("Out", "[..., k]")
    .Output("Indices", "int64 [..., k], where they are in their row")
    .With(TopKAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = TopKDims(ctx);
      SetOutput(ctx, "Out", dims, ctx.InputType("X"));
      SetOutput(ctx, "Indices", dims, DataType::kInt64);
      ctx.ShareLoD("X", "Out");
      ctx.ShareLoD("X", "Indices");
    })
    .Kernel<float>(TopKKernel<float>)
    .Kernel<double>(TopKKernel<double>)
    .Kernel<int32_t>(TopKKernel<int32_t>)
    .Kernel<int64_t>(TopKKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Indices"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(top_k_grad)
    .Comment("Gradient of top_k.")
    .Input("X", "as in the operator; only its dims are used")
    .Input("Indices", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("Indices@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .With(TopKAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = TopKDims(ctx);
      EnforceDims(ctx, "Indices", dims);
      EnforceType(ctx, "Indices", DataType::kInt64);
      EnforceDims(ctx, "Out@GRAD", dims);
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(TopKGradKernel<float>)
    .Kernel<double>(TopKGradKernel<double>);

}  // namespace headrace::ops
