// merge_selected_rows, get_tensor_from_selected_rows: what can be done with a sparse gradient.
#include <algorithm>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/row_merge.h"

namespace headrace::ops {
namespace {

const SelectedRows& RowsOf(const ExecutionContext& ctx) {
  HR_ENFORCE(ctx.IsSelectedRows("X"), TypeMismatch, "input X: expected SelectedRows, got a LoDTensor");
  return ctx.InputRows("X");
}

void EnforceRows(const InferShapeContext& ctx) {
  HR_ENFORCE(ctx.InputIsSelectedRows("X"), TypeMismatch, "input X: expected SelectedRows, got a LoDTensor");
}

template <typename T>
void MergeRowsKernel(const ExecutionContext& ctx) {
  MergeRows<T>(RowsOf(ctx), ctx.OutputRows("Out"));
}

template <typename T>
void GetTensorKernel(const ExecutionContext& ctx) {
  const Tensor& value = RowsOf(ctx).value();
  LoDTensor* out = ctx.Output("Out");
  out->Resize(value.dims());
  ParallelCopy(value.data<T>(), value.numel(), out->mutable_data<T>());
}

}  // namespace

HEADRACE_REGISTER_OP(merge_selected_rows)
    .Comment("SelectedRows with each row once, in ascending order: rows that occur several times are added up.")
    .Input("X", "SelectedRows", kSelectedRows)
    .Output("Out", "SelectedRows of the same tensor", kSelectedRows)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRows(ctx);
      SetOutput(ctx, "Out", ctx.InputDim("X"), ctx.InputType("X"));
      ctx.SetOutputSelectedRows("Out");
    })
    .Kernel<float>(MergeRowsKernel<float>)
    .Kernel<double>(MergeRowsKernel<double>)
    .Kernel<int32_t>(MergeRowsKernel<int32_t>)
    .Kernel<int64_t>(MergeRowsKernel<int64_t>);

HEADRACE_REGISTER_OP(get_tensor_from_selected_rows)
    .Comment("The rows that SelectedRows have, as they are, without their numbers.")
    .Input("X", "SelectedRows", kSelectedRows)
    .Output("Out", "[rows, ...]")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRows(ctx);
      DDim dims = ctx.InputDim("X");
      if (!ctx.IsRuntime() && !dims.empty()) {
        dims[0] = -1;
        ctx.SetOutputDim("Out", dims);
      }
      ctx.SetOutputType("Out", ctx.InputType("X"));
    })
    .Kernel<float>(GetTensorKernel<float>)
    .Kernel<double>(GetTensorKernel<double>)
    .Kernel<int32_t>(GetTensorKernel<int32_t>)
    .Kernel<int64_t>(GetTensorKernel<int64_t>);

}  // namespace headrace::ops
