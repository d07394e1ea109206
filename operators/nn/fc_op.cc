// fc: mul, elementwise_add and relu as one operator, to which Fluid's inference passes join them.
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

template <typename T>
void FcKernel(const ExecutionContext& ctx) {
  const DDim& w = ctx.Input("W").dims();
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const int64_t rows = Numel(out_tensor->dims(), 0, out_tensor->dims().size() - 1);
  Gemm<T>(false, false, rows, w[1], w[0], T(1), ctx.Input("Input").data<T>(), ctx.Input("W").data<T>(), false, out);
  const T* bias = ElementsOrNull<T>(ctx, "Bias");
  const bool relu = ctx.Text("activation_type") == "relu";
  if (bias == nullptr && !relu) {
    return;
  }
  ParallelFor(rows, RowsPerBlock(w[1]), [=, width = w[1]](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* row = out + r * width;
      for (int64_t c = 0; c < width; ++c) {
        const T sum = bias == nullptr ? row[c] : row[c] + bias[c];
        row[c] = relu && sum < 0 ? T(0) : sum;
      }
    }
  });
}

void InferFc(InferShapeContext& ctx) {
  const DDim input = ctx.InputDim("Input");
  const int32_t split = ctx.Attr<int32_t>("in_num_col_dims");
  HR_ENFORCE(0 < split && static_cast<size_t>(split) < input.size(), InvalidArgument, "input Input of dims ",
             ToString(input), ": attribute in_num_col_dims must split them in two parts that are not empty, got ",
             split);
  EnforceRank(ctx, "W", 2);
  EnforceDims(ctx, "W", {Numel(input, static_cast<size_t>(split), input.size()), -1});
  EnforceSameType(ctx, "W", "Input");
  const int64_t width = ctx.InputDim("W")[1];
  if (ctx.HasInput("Bias")) {
    EnforceDims(ctx, "Bias", ctx.InputDim("Bias").size() == 1 ? DDim{width} : DDim{1, width});
    EnforceSameType(ctx, "Bias", "Input");
  }
  DDim out(input.begin(), input.begin() + split);
  out.push_back(width);
  SetOutput(ctx, "Out", out, ctx.InputType("Input"));
  ctx.ShareLoD("Input", "Out");
}

}  // namespace

HEADRACE_REGISTER_OP(fc)
    .Comment("Input W + Bias, and its relu if asked for. For inference: it has no gradient, nor has it in Fluid.")
    .Input("Input", "rank 2 or more; seen as [product of the first in_num_col_dims dims, product of the others]")
    .Input("W", "[product of the other dims of Input, D]")
    .Input("Bias", "[1, D] or [D]", kDispensable)
    .Output("Out", "the first in_num_col_dims dims of Input, then D; LoD of Input")
    .Attr<int32_t>("in_num_col_dims", "how many leading dimensions of Input make the rows of its matrix", 1)
    .Attr<std::string>("activation_type", "'relu', or '' for none", "",
                       [](const std::string& type) {
                         HR_ENFORCE(type.empty() || type == "relu", InvalidArgument,
                                    "attribute activation_type: expected '' or 'relu', got '", type, "'");
                       })
    .InferShape(InferFc)
    .KernelTypeFrom("Input")
    .Kernel<float>(FcKernel<float>)
    .Kernel<double>(FcKernel<double>);

}  // namespace headrace::ops
