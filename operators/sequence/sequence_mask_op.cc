// sequence_mask: from the lengths of sequences to rows of ones and zeros.
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/tensor/visit_type.h"

namespace headrace::ops {
namespace {

// The length of a row: that of the input or the attribute, or the greatest of the lengths.
template <typename T>
int64_t RowLength(const ExecutionContext& ctx) {
  const int64_t wanted = OpArgs(ctx).Int("maxlen", "MaxLenTensor");
  HR_ENFORCE(wanted > 0 || !ctx.HasInput("MaxLenTensor"), InvalidArgument,
             "input MaxLenTensor: expected a positive number, got ", wanted);
  if (wanted > 0) {
    return wanted;
  }
  const LoDTensor& x = ctx.Input("X");
  const T* length = x.data<T>();
  const T longest = x.numel() == 0 ? T(0) : *std::max_element(length, length + x.numel());
  return std::max<int64_t>(longest, 0);
}

template <typename T>
void SequenceMaskKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const T* length = x.data<T>();
  const int64_t cols = RowLength<T>(ctx);
  DDim dims = x.dims();
  dims.push_back(cols);
  LoDTensor* y = ctx.Output("Y");
  y->Resize(dims);
  VisitType(static_cast<DataType>(ctx.Attr<int32_t>("out_dtype")), "out_dtype", [&](auto zero) {
    using Out = decltype(zero);
    Out* out = y->mutable_data<Out>();
    const auto fill_row = [=](int64_t r) {
      const int64_t ones = std::clamp<int64_t>(length[r], 0, cols);
      std::fill_n(out + r * cols, ones, Out(1));
      std::fill_n(out + r * cols + ones, cols - ones, Out(0));
    };
    ParallelForEach(x.numel(), fill_row, cols);
  });
}

}  // namespace

HEADRACE_REGISTER_OP(sequence_mask)
    .Comment("A row for each length: that many ones, then zeros.")
    .Input("X", "int32 or int64, any shape: lengths")
    .Input("MaxLenTensor", "int32 or int64 [1]: maxlen, instead of the attribute", kDispensable)
    .Output("Y", "[dims of X..., maxlen], of dtype out_dtype")
    .Attr<int32_t>("maxlen", "length of the rows; -1: the greatest of the lengths", -1,
                   [](const int32_t& maxlen) {
                     HR_ENFORCE(maxlen == -1 || maxlen > 0, InvalidArgument,
                                "attribute maxlen: expected -1 or a positive number, got ", maxlen);
                   })
    .Attr<int32_t>("out_dtype", "DataType of Y: float32, float64, int32, int64, uint8 or bool",
                   static_cast<int32_t>(DataType::kInt64))
    .InferShape([](InferShapeContext& ctx) {
      const DataType type = TypeAttr(ctx, "out_dtype");
      VisitType(type, "out_dtype", [](auto) {});
      const int64_t cols = OpArgs(ctx).Int("maxlen", "MaxLenTensor");
      if (ctx.IsRuntime()) {
        return;  // the kernel knows the greatest length
      }
      DDim dims = ctx.InputDim("X");
      dims.push_back(std::max<int64_t>(cols, -1));
      SetOutput(ctx, "Y", dims, type);
    })
    .Kernel<int32_t>(SequenceMaskKernel<int32_t>)
    .Kernel<int64_t>(SequenceMaskKernel<int64_t>);

}  // namespace headrace::ops
