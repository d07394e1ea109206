// top_k, accuracy, arg_max.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

// Whether a comes before b in a ranking: greater first, NaN before everything.
template <typename T>
bool Before(T a, T b) {
  return a > b || (IsNaN(a) && !IsNaN(b));
}

template <typename T>
void TopKKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const auto [rows, cols] = MatrixSize(x_tensor);
  const int64_t k = ctx.Attr<int32_t>("k");
  const T* x = x_tensor.data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  int64_t* indices = ctx.Output("Indices")->mutable_data<int64_t>();
  std::vector<int64_t> order(static_cast<size_t>(rows == 0 ? 0 : cols));
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

// A row counts as correct if its label is among its indices. The type of Out does not matter.
void AccuracyKernel(const ExecutionContext& ctx) {
  const LoDTensor& indices_tensor = ctx.Input("Indices");
  const int64_t rows = indices_tensor.dims()[0];
  const int64_t k = indices_tensor.dims()[1];
  const int64_t* indices = indices_tensor.data<int64_t>();
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  int32_t correct = 0;
  for (int64_t r = 0; r < rows; ++r, indices += k) {
    HR_ENFORCE(label[r] >= 0, OutOfRange, "input Label: row ", r, " has class ", label[r], ", expected 0 or more");
    correct += std::find(indices, indices + k, label[r]) != indices + k ? 1 : 0;
  }
  *ctx.Output("Accuracy")->mutable_data<float>() = static_cast<float>(correct) / static_cast<float>(rows);
  *ctx.Output("Correct")->mutable_data<int32_t>() = correct;
  *ctx.Output("Total")->mutable_data<int32_t>() = static_cast<int32_t>(rows);
}

void InferAccuracy(InferShapeContext& ctx) {
  EnforceRank(ctx, "Indices", 2);
  EnforceType(ctx, "Indices", DataType::kInt64);
  const DDim indices = ctx.InputDim("Indices");
  EnforceDims(ctx, "Out", indices);
  EnforceDims(ctx, "Label", {indices[0], 1});
  EnforceType(ctx, "Label", DataType::kInt64);
  HR_ENFORCE(indices[0] != 0 && indices[0] <= INT32_MAX, InvalidArgument,
             "input Indices: expected at least one row and at most 2^31 - 1, got dims ", ToString(indices));
  SetOutput(ctx, "Accuracy", {1}, DataType::kFloat32);
  SetOutput(ctx, "Correct", {1}, DataType::kInt32);
  SetOutput(ctx, "Total", {1}, DataType::kInt32);
}

template <typename T>
void ArgMaxKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& dims = x_tensor.dims();
  const size_t axis = FrontAxis(ctx.Attr<int64_t>("axis"), dims.size(), "axis");
  const int64_t outer = Numel(dims, 0, axis);
  const int64_t extent = dims[axis];
  const int64_t inner = Numel(dims, axis + 1, dims.size());
  const T* x = x_tensor.data<T>();
  int64_t* out = ctx.Output("Out")->mutable_data<int64_t>();
  for (int64_t o = 0; o < outer; ++o, x += extent * inner, out += inner) {
    for (int64_t i = 0; i < inner; ++i) {
      int64_t best = 0;
      for (int64_t a = 1; a < extent; ++a) {
        if (Before(x[a * inner + i], x[best * inner + i])) {
          best = a;
        }
      }
      out[i] = best;
    }
  }
}

void InferArgMax(InferShapeContext& ctx) {
  DDim dims = ctx.InputDim("X");
  const size_t axis = FrontAxis(ctx.Attr<int64_t>("axis"), dims.size(), "axis");
  HR_ENFORCE(dims[axis] != 0, InvalidArgument, "input X: expected at least one element along axis ", axis,
             ", got dims ", ToString(dims));
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
  if (axis != 0) {
    ctx.ShareLoD("X", "Out");
  }
  SetOutput(ctx, "Out", dims.empty() ? DDim{1} : dims, DataType::kInt64);
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

HEADRACE_REGISTER_OP(accuracy)
    .Comment("How many rows have their label among their top k.")
    .Input("Out", "[N, k], the Out of top_k")
    .Input("Indices", "int64 [N, k], the Indices of top_k")
    .Input("Label", "int64 [N, 1]")
    .Output("Accuracy", "float32 [1], Correct / Total")
    .Output("Correct", "int32 [1]")
    .Output("Total", "int32 [1], N")
    .InferShape(InferAccuracy)
    .Kernel<float>(AccuracyKernel)
    .Kernel<double>(AccuracyKernel);

HEADRACE_REGISTER_OP(arg_max)
    .Comment(
        "Where the greatest element along a dimension is; the first of equal ones; NaN is greater than everything.")
    .Input("X", "any shape with at least one element along axis")
    .Output("Out", "int64, dims of X without axis; [1] if none is left")
    .Attr<int64_t>("axis", "the dimension; negative ones count from the back", -1)
    .InferShape(InferArgMax)
    .Kernel<float>(ArgMaxKernel<float>)
    .Kernel<double>(ArgMaxKernel<double>)
    .Kernel<int32_t>(ArgMaxKernel<int32_t>)
    .Kernel<int64_t>(ArgMaxKernel<int64_t>);

}  // namespace headrace::ops
