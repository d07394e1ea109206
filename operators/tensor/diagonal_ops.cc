// diag, eye: matrices that are zero but for their diagonal.
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

template <typename T>
void DiagKernel(const ExecutionContext& ctx) {
  const LoDTensor& diagonal = ctx.Input("Diagonal");
  const T* from = diagonal.data<T>();
  T* out = ZerosOrNull<T>(ctx, "Out");
  for (int64_t i = 0; i < diagonal.numel(); ++i) {
    out[i * (diagonal.numel() + 1)] = from[i];
  }
}

template <typename T>
void EyeKernel(const ExecutionContext& ctx) {
  T* out = ZerosOrNull<T>(ctx, "Out");
  const DDim& dims = ctx.Output("Out")->dims();
  for (int64_t i = 0; i < std::min(dims[0], dims[1]); ++i) {
    out[i * (dims[1] + 1)] = T(1);
  }
}

void InferEye(InferShapeContext& ctx) {
  const int64_t rows = ctx.Attr<int64_t>("num_rows");
  const int64_t columns = ctx.Attr<int64_t>("num_columns");
  HR_ENFORCE(rows >= 0, InvalidArgument, "attribute num_rows: expected 0 or more, got ", rows);
  HR_ENFORCE(columns >= -1, InvalidArgument, "attribute num_columns: expected 0 or more, or -1 for num_rows, got ",
             columns);
  const DDim dims = {rows, columns == -1 ? rows : columns};
  (void)Numel(dims);  // throws if there are too many elements
  SetOutput(ctx, "Out", dims, TypeAttr(ctx, "dtype"));
}

}  // namespace

HEADRACE_REGISTER_OP(diag)
    .Comment("The square matrix with a given diagonal.")
    .Input("Diagonal", "[n]")
    .Output("Out", "[n, n]")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "Diagonal", 1);
      const int64_t n = ctx.InputDim("Diagonal")[0];
      const DDim dims = {n, n};
      (void)Numel(dims);
      SetOutput(ctx, "Out", dims, ctx.InputType("Diagonal"));
    })
    .Kernel<float>(DiagKernel<float>)
    .Kernel<double>(DiagKernel<double>)
    .Kernel<int32_t>(DiagKernel<int32_t>)
    .Kernel<int64_t>(DiagKernel<int64_t>);

HEADRACE_REGISTER_OP(eye)
    .Comment("A matrix with ones on its diagonal.")
    .Output("Out", "[num_rows, num_columns]")
    .Attr<int64_t>("num_rows", "how many rows it has")
    .Attr<int64_t>("num_columns", "how many columns; -1: as many", -1)
    .Attr<int32_t>("dtype", "DataType of Out: float32, float64, int32 or int64",
                   static_cast<int32_t>(DataType::kFloat32))
    .KernelTypeFromAttr("dtype")
    .InferShape(InferEye)
    .Kernel<float>(EyeKernel<float>)
    .Kernel<double>(EyeKernel<double>)
    .Kernel<int32_t>(EyeKernel<int32_t>)
    .Kernel<int64_t>(EyeKernel<int64_t>);

}  // namespace headrace::ops
