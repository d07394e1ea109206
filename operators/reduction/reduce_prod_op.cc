// reduce_prod, reduce_all, reduce_any: products, and whether all or any elements are true, along some dimensions.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/math/element_loop.h"
#include "operators/reduction/reduce.h"

namespace headrace::ops {
namespace {

template <typename T>
void ReduceProdKernel(const ExecutionContext& ctx) {
  ReduceWith<T>(ctx, T(1),
                [](T a, T b) { return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b)); });
}

// The product of the other elements: the product over the element, unless there is a zero.
template <typename T>
void ReduceProdGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const auto results = static_cast<size_t>(ctx.Input("Out@GRAD").numel());
  PoolVector<T> product(results, T(1));  // without the zeros
  PoolVector<int64_t> zeros(results, 0);
  BroadcastPlan(x_tensor.dims(), KeptDims(ctx.attrs(), x_tensor.dims()))
      .ForEachRunInParallelBySmall([&, of_zeros = zeros.data(), of_others = product.data()](int64_t at, int64_t out_at,
                                                                                            int64_t n, bool kept) {
        const T* from = x + at;
        if (!kept) {
          of_zeros[out_at] += std::count(from, from + n, T(0));
          of_others[out_at] = Fold(
              n, of_others[out_at], [from](int64_t i) { return from[i] == 0 ? T(1) : from[i]; }, std::multiplies<>());
          return;
        }
        for (int64_t i = 0; i < n; ++i) {
          of_zeros[out_at + i] += from[i] == 0 ? 1 : 0;
          of_others[out_at + i] *= from[i] == 0 ? T(1) : from[i];
        }
      });
  SpreadGradient<T>(ctx, [&](int64_t element, int64_t result) {
    const int64_t others = zeros[static_cast<size_t>(result)] - (x[element] == 0 ? 1 : 0);
    const T all = product[static_cast<size_t>(result)];
    return others > 0 ? T(0) : d[result] * (x[element] == 0 ? all : all / x[element]);
  });
}

}  // namespace

HEADRACE_REGISTER_OP(reduce_prod)
    .Comment("The product along some dimensions.")
    .With(ReduceSlots)
    .InferShape(InferReduce)
    .Kernel<float>(ReduceProdKernel<float>)
    .Kernel<double>(ReduceProdKernel<double>)
    .Kernel<int32_t>(ReduceProdKernel<int32_t>)
    .Kernel<int64_t>(ReduceProdKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(reduce_prod_grad)
    .Comment("Gradient of reduce_prod.")
    .With(ReduceGradSlots, kPlain)
    .Kernel<float>(ReduceProdGradKernel<float>)
    .Kernel<double>(ReduceProdGradKernel<double>);

HEADRACE_REGISTER_OP(reduce_all)
    .Comment("Whether all elements along some dimensions are true.")
    .With(ReduceSlots)
    .InferShape(InferReduce)
    .Kernel<bool>([](const ExecutionContext& ctx) { ReduceWith<bool>(ctx, true, std::logical_and<>()); });

HEADRACE_REGISTER_OP(reduce_any)
    .Comment("Whether any element along some dimensions is true.")
    .With(ReduceSlots)
    .InferShape(InferReduce)
    .Kernel<bool>([](const ExecutionContext& ctx) { ReduceWith<bool>(ctx, false, std::logical_or<>()); });

}  // namespace headrace::ops
