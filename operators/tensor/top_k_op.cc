// top_k: the greatest elements of each row.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/op_args.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ranking.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// The dims of the results for X of dims `x`; the last one is -1 in shape inference, if an input holds k.
DDim TopKDims(const OpArgs& args, const DDim& x) {
  const int64_t k = args.Int("k", "K");
  HR_ENFORCE(k == kUnknown || (k > 0 && (x.back() < 0 || k <= x.back())), InvalidArgument,
             args.HasInput("K") ? "input K" : "attribute k", ": expected 1 or more, and no more than X of dims ",
             ToString(x), " has in a row, got ", k);
  DDim dims = x;
  dims.back() = k == kUnknown ? -1 : k;
  return dims;
}

// So many are found faster by comparing each element with the least of those found before.
constexpr int64_t kFew = 16;

template <typename T>
void TopKKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const MatrixSize size(x_tensor);
  const DDim dims = TopKDims(ctx, x_tensor.dims());
  const int64_t k = dims.back();
  const T* x = x_tensor.data<T>();
  T* out = ctx.Output("Out")->Resize(dims).template mutable_data<T>();
  int64_t* indices = ctx.Output("Indices")->Resize(dims).template mutable_data<int64_t>();
  ParallelFor(size.rows, RowsPerBlock(4 * size.cols), [=](int64_t begin, int64_t end) {
    PoolVector<int64_t> order(static_cast<size_t>(size.cols));
    for (int64_t r = begin; r < end; ++r) {
      const T* row = x + r * size.cols;
      std::iota(order.begin(), order.end(), 0);
      const auto before = [row](int64_t a, int64_t b) {
        return Before(row[a], row[b]) || (!Before(row[b], row[a]) && a < b);
      };
      const auto end_of_k = order.begin() + k;
      if (k <= kFew) {
        std::partial_sort(order.begin(), end_of_k, order.end(), before);
      } else {
        std::nth_element(order.begin(), end_of_k - 1, order.end(), before);
        std::sort(order.begin(), end_of_k, before);
      }
      for (int64_t i = 0; i < k; ++i) {
        indices[r * k + i] = order[static_cast<size_t>(i)];
        out[r * k + i] = row[indices[r * k + i]];
      }
    }
  });
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
  const auto spread = [=](int64_t r) {
    T* row = dx + r * cols;
    std::fill_n(row, cols, T(0));
    for (int64_t i = r * k; i < (r + 1) * k; ++i) {
      HR_ENFORCE(0 <= indices[i] && indices[i] < cols, OutOfRange, "input Indices: row ", r, " has index ", indices[i],
                 ", expected one in [0, ", cols, ")");
      row[indices[i]] = d[i];
    }
  };
  ParallelForEach(MatrixSize(*x_grad).rows, spread, cols + k);
}

OpRegistrar&& TopKAttrs(OpRegistrar&& op) { return std::move(op).Attr<int32_t>("k", "how many", 1); }

}  // namespace

HEADRACE_REGISTER_OP(top_k)
    .Comment(
        "The k greatest elements of each row, in descending order; of equal ones the first comes first, NaN before "
        "everything.")
    .Input("X", "[..., n]")
    .Input("K", "int32 or int64 [1]: k, instead of the attribute", kDispensable)
    .Output("Out", "[..., k]")
    .Output("Indices", "int64 [..., k], where they are in their row")
    .With(TopKAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRankAtLeast(ctx, "X", 1);
      const DDim dims = TopKDims(ctx, ctx.InputDim("X"));
      SetKnownOutput(ctx, "Out", dims, ctx.InputType("X"));
      SetKnownOutput(ctx, "Indices", dims, DataType::kInt64);
      ctx.ShareLoD("X", "Out");
      ctx.ShareLoD("X", "Indices");
    })
    .Kernel<float>(TopKKernel<float>)
    .Kernel<double>(TopKKernel<double>)
    .Kernel<int32_t>(TopKKernel<int32_t>)
    .Kernel<int64_t>(TopKKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Indices"}, .no_gradient = {"K"}}));

HEADRACE_REGISTER_OP(top_k_grad)
    .Comment("Gradient of top_k.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Indices", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("Indices@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .With(TopKAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRankAtLeast(ctx, "X", 1);
      DDim dims = ctx.InputDim("X");
      dims.back() = -1;
      EnforceDims(ctx, "Indices", dims);
      EnforceType(ctx, "Indices", DataType::kInt64);
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("Indices"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(TopKGradKernel<float>)
    .Kernel<double>(TopKGradKernel<double>);

}  // namespace headrace::ops
