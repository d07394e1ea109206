// range: evenly spaced numbers.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// How many numbers there are from start on before end; 0 if there are none.
template <typename T>
int64_t StepsBetween(T start, T end, T step) {
  const bool leads_there = step > 0 ? start < end : step < 0 && start > end;
  if (!leads_there) {
    return 0;
  }
  if constexpr (std::is_integral_v<T>) {  // a difference may not fit
    const auto from = static_cast<uint64_t>(step > 0 ? start : end);
    const auto to = static_cast<uint64_t>(step > 0 ? end : start);
    const uint64_t by = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
    const uint64_t steps = (to - from - 1) / by + 1;
    HR_ENFORCE(steps <= uint64_t{std::numeric_limits<int64_t>::max()}, InvalidArgument,
               "inputs Start, End and Step: expected numbers that fit a tensor, got ", start, ", ", end, " and ", step);
    return static_cast<int64_t>(steps);
  } else {
    const T steps = std::ceil((end - start) / step);
    HR_ENFORCE(steps < T(0x1p62), InvalidArgument,
               "inputs Start, End and Step: expected numbers that fit a tensor, got ", start, ", ", end, " and ", step);
    return static_cast<int64_t>(steps);
  }
}

template <typename T>
void RangeKernel(const ExecutionContext& ctx) {
  const T start = *ctx.Input("Start").data<T>();
  const T end = *ctx.Input("End").data<T>();
  const T step = *ctx.Input("Step").data<T>();
  const int64_t count = StepsBetween(start, end, step);
  HR_ENFORCE(count > 0, InvalidArgument,
             "inputs Start, End and Step: expected steps that lead from one to the other, got ", start, ", ", end,
             " and ", step);
  T* out = ctx.Output("Out")->Resize({count}).mutable_data<T>();
  ParallelForEach(count, [=](int64_t i) {
    out[i] =
        static_cast<T>(static_cast<Wrapping<T>>(start) + static_cast<Wrapping<T>>(i) * static_cast<Wrapping<T>>(step));
  });
}

}  // namespace

HEADRACE_REGISTER_OP(range)
    .Comment("Start, Start + Step, Start + 2 Step, ... before End.")
    .Input("Start", "a single element: the first number")
    .Input("End", "a single element, dtype of Start: where the numbers end, exclusive")
    .Input("Step", "a single element, dtype of Start, not 0")
    .Output("Out", "[how many there are], dtype of Start")
    .InferShape([](InferShapeContext& ctx) {
      for (const HashedName slot : {HashedName("Start"), HashedName("End"), HashedName("Step")}) {
        const DDim dims = ctx.InputDim(slot);
        HR_ENFORCE(Fits(Numel(dims), 1), InvalidArgument, "input ", slot, ": expected a single element, got dims ",
                   ToString(dims));
        EnforceSameType(ctx, slot, "Start");
      }
      if (!ctx.IsRuntime()) {  // the kernel knows how many there are
        SetOutput(ctx, "Out", {-1}, ctx.InputType("Start"));
      }
    })
    .KernelTypeFrom("Start")
    .Kernel<float>(RangeKernel<float>)
    .Kernel<double>(RangeKernel<double>)
    .Kernel<int32_t>(RangeKernel<int32_t>)
    .Kernel<int64_t>(RangeKernel<int64_t>);

}  // namespace headrace::ops
