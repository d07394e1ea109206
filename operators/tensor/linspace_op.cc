// linspace: so many evenly spaced numbers.
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"

namespace headrace::ops {
namespace {

template <typename T>
void LinspaceKernel(const ExecutionContext& ctx) {
  const T start = *ctx.Input("Start").data<T>();
  const T stop = *ctx.Input("Stop").data<T>();
  const int64_t count = *ctx.Input("Num").data<int32_t>();
  HR_ENFORCE(count > 0, InvalidArgument, "input Num: expected 1 or more, got ", count);
  T* out = ctx.Output("Out")->Resize({count}).mutable_data<T>();
  const T step = count > 1 ? (stop - start) / static_cast<T>(count - 1) : T(0);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = start + static_cast<T>(i) * step;
  }
  if (count > 1) {
    out[count - 1] = stop;  // whatever rounding has made of it
  }
}

}  // namespace

HEADRACE_REGISTER_OP(linspace)
    .Comment("Num evenly spaced numbers, the first of which is Start and the last Stop.")
    .Input("Start", "[1]")
    .Input("Stop", "[1], dtype of Start")
    .Input("Num", "int32 [1], 1 or more")
    .Output("Out", "[Num], dtype of Start")
    .KernelTypeFrom("Start")
    .InferShape([](InferShapeContext& ctx) {
      for (const HashedName slot : HashedNames{"Start", "Stop", "Num"}) {
        EnforceDims(ctx, slot, {1});
      }
      EnforceSameType(ctx, "Stop", "Start");
      EnforceType(ctx, "Num", DataType::kInt32);
      if (!ctx.IsRuntime()) {  // the kernel knows how many there are
        SetOutput(ctx, "Out", {-1}, ctx.InputType("Start"));
      }
    })
    .Kernel<float>(LinspaceKernel<float>)
    .Kernel<double>(LinspaceKernel<double>);

}  // namespace headrace::ops
