// unique, unique_with_counts: each number once.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// For each element, the place of the first one that equals it. A NaN equals no other.
template <typename T>
PoolVector<size_t> FirstPlaces(const T* x, size_t n) {
  PoolVector<size_t> order(n);
  for (size_t i = 0; i < n; ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.end(), [x](size_t a, size_t b) {
    if (IsNaN(x[a]) || IsNaN(x[b])) {
      return IsNaN(x[a]) && IsNaN(x[b]) ? a < b : IsNaN(x[b]);
    }
    return x[a] < x[b] || (x[a] == x[b] && a < b);
  });
  PoolVector<size_t> first(n);
  for (size_t k = 0; k < n; ++k) {
    const bool same = k > 0 && x[order[k]] == x[order[k - 1]];
    first[order[k]] = same ? first[order[k - 1]] : order[k];
  }
  return first;
}

template <typename T, typename Place>
void Unique(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  const auto n = static_cast<size_t>(x_tensor.numel());
  const PoolVector<size_t> first = FirstPlaces(x, n);
  Place* index = ctx.Output("Index")->mutable_data<Place>();
  PoolVector<size_t> chosen;
  for (size_t i = 0; i < n; ++i) {
    if (first[i] == i) {
      index[i] = static_cast<Place>(chosen.size());
      chosen.push_back(i);
    } else {
      index[i] = index[first[i]];
    }
  }
  const DDim dims = {static_cast<int64_t>(chosen.size())};
  T* out = ctx.Output("Out")->Resize(dims).template mutable_data<T>();
  std::transform(chosen.begin(), chosen.end(), out, [x](size_t i) { return x[i]; });
  if (LoDTensor* count_tensor = ctx.OutputOrNull("Count")) {
    Place* count = count_tensor->Resize(dims).template mutable_data<Place>();
    std::fill_n(count, chosen.size(), Place(0));
    for (size_t i = 0; i < n; ++i) {
      ++count[index[i]];
    }
  }
}

template <typename T>
void UniqueKernel(const ExecutionContext& ctx) {
  if (static_cast<DataType>(ctx.Attr<int32_t>("dtype")) == DataType::kInt32) {
    Unique<T, int32_t>(ctx);
  } else {
    Unique<T, int64_t>(ctx);
  }
}

void InferUnique(InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 1);
  const DDim x = ctx.InputDim("X");
  const DataType type = TypeAttr(ctx, "dtype");
  HR_ENFORCE(type == DataType::kInt32 || type == DataType::kInt64, Unimplemented,
             "attribute dtype: expected int32 or int64, got ", DataTypeName(type));
  HR_ENFORCE(type == DataType::kInt64 || x[0] <= std::numeric_limits<int32_t>::max(), InvalidArgument,
             "input X: expected a number of elements that fits an int32, got dims ", ToString(x));
  SetOutput(ctx, "Index", x, type);
  if (ctx.IsRuntime()) {
    return;  // the kernel knows how many there are
  }
  SetOutput(ctx, "Out", {-1}, ctx.InputType("X"));
  if (ctx.HasOutput("Count")) {
    SetOutput(ctx, "Count", {-1}, type);
  }
}

OpRegistrar&& UniqueOp(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "[n]")
      .Output("Out", "[how many there are], in the order in which they first occur")
      .Output("Index", "[n]: the place in Out of each element")
      .Attr<int32_t>("dtype", "DataType of Index: int32 or int64")
      .InferShape(InferUnique)
      .Kernel<float>(UniqueKernel<float>)
      .Kernel<double>(UniqueKernel<double>)
      .Kernel<int32_t>(UniqueKernel<int32_t>)
      .Kernel<int64_t>(UniqueKernel<int64_t>);
}

}  // namespace

HEADRACE_REGISTER_OP(unique).Comment("Each number of X once.").With(UniqueOp);

HEADRACE_REGISTER_OP(unique_with_counts)
    .Comment("Each number of X once, and how often it occurs.")
    .With(UniqueOp)
    .Output("Count", "as long as Out, dtype of Index: how often each number occurs");

}  // namespace headrace::ops
