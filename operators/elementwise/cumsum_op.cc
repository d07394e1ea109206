// cumsum: running sums along a dimension.
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

template <typename T>
void CumsumKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Out");
  const DDim& dims = out_tensor->dims();
  T* out = out_tensor->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), dims.size(), "axis");
  const AxisSize size(dims, axis);
  const bool exclusive = ctx.Attr<bool>("exclusive");
  const bool reverse = ctx.Attr<bool>("reverse");
  ForEachLine(size, /*work=*/1, [=](int64_t, int64_t first) {
    Wrapping<T> sum = 0;
    for (int64_t a = 0; a < size.extent; ++a) {
      const int64_t at = first + (reverse ? size.extent - 1 - a : a) * size.inner;
      const auto value = static_cast<Wrapping<T>>(x[at]);
      out[at] = static_cast<T>(exclusive ? sum : sum + value);
      sum += value;
    }
  });
}

// The sums of the gradients that follow: the same, the other way round.
std::vector<OpDesc> CumsumGradient(const OpDesc& op) {
  OpDesc grad{
      "cumsum", {{"X", {GradVarName(op.Output("Out")[0])}}}, {{"Out", {GradVarName(op.Input("X")[0])}}}, op.attrs};
  grad.attrs["reverse"] = !op.Attr<bool>("reverse");
  return {grad};
}

}  // namespace

HEADRACE_REGISTER_OP(cumsum)
    .Comment("The sum of the elements up to each one, along a dimension. Out may be X.")
    .Input("X", "any shape of rank 1 or more")
    .Output("Out", "dims, dtype and LoD of X")
    .InPlace("Out", "X")
    .Attr<int32_t>("axis", "the dimension; negative ones count from the back", -1)
    .Attr<bool>("exclusive", "whether the element itself is left out", false)
    .Attr<bool>("reverse", "whether the elements after it are added up instead", false)
    .InferShape([](InferShapeContext& ctx) {
      FrontAxis(ctx.Attr<int32_t>("axis"), ctx.InputDim("X").size(), "axis");
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(CumsumKernel<float>)
    .Kernel<double>(CumsumKernel<double>)
    .Kernel<int32_t>(CumsumKernel<int32_t>)
    .Kernel<int64_t>(CumsumKernel<int64_t>)
    .Gradient(CumsumGradient);

}  // namespace headrace::ops
