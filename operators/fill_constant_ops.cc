// fill_constant, fill_constant_batch_size_like, fill_zeros_like: every element is the same.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/batch_size_like.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

template <typename T, typename Number>
T ConstantOf(Number value) {
  if constexpr (std::is_integral_v<T> && std::is_floating_point_v<Number>) {
    // The bounds are powers of two, hence exact in floating point.
    const auto low = static_cast<Number>(std::numeric_limits<T>::min());
    const Number high = 2 * static_cast<Number>(std::numeric_limits<T>::max() / 2 + 1);
    HR_ENFORCE(value >= low && value < high, InvalidArgument, "attribute value: expected a number that fits ",
               DataTypeName(DataTypeOf<T>::value), ", got ", value);
  } else if constexpr (std::is_integral_v<T>) {
    HR_ENFORCE(std::in_range<T>(value), InvalidArgument, "attribute str_value: expected a number that fits ",
               DataTypeName(DataTypeOf<T>::value), ", got ", value);
  }
  return static_cast<T>(value);
}

template <typename Number>
bool Parse(const std::string& text, Number* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end;
}

template <typename T>
T ConstantAttr(const ExecutionContext& ctx) {
  const auto& text = ctx.Attr<std::string>("str_value");
  if (text.empty()) {
    const double value = ctx.Attr<double>("value");
    if constexpr (std::is_same_v<T, bool>) {
      return value != 0;
    } else {
      return ConstantOf<T>(value);
    }
  }
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    int64_t integer = 0;
    if (Parse(text, &integer)) {
      return ConstantOf<T>(integer);
    }
  }
  double number = 0;
  HR_ENFORCE(Parse(text, &number), InvalidArgument, "attribute str_value: expected a number, got '", text, "'");
  if constexpr (std::is_same_v<T, bool>) {
    return number != 0;
  } else {
    return ConstantOf<T>(number);
  }
}

template <typename T>
void FillConstantKernel(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("Out");
  if (ctx.HasInput("Input")) {
    ResizeLikeBatch(ctx, out);
  }
  const T value = ConstantAttr<T>(ctx);
  std::fill_n(out->mutable_data<T>(), out->numel(), value);
}

void InferFillConstant(InferShapeContext& ctx) {
  const DDim shape = ctx.Attr<std::vector<int64_t>>("shape");
  HR_ENFORCE(Numel(shape) >= 0, InvalidArgument, "attribute shape: expected known dimensions, got ", ToString(shape));
  SetOutput(ctx, "Out", shape, TypeAttr(ctx, "dtype"));
}

OpRegistrar&& ConstantAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Output("Out", "the constant tensor")
      .Attr<std::vector<int64_t>>("shape", "dims of Out")
      .Attr<int32_t>("dtype", "DataType of Out", static_cast<int32_t>(DataType::kFloat32))
      .Attr<double>("value", "the constant; as a double", 0.0)
      .Attr<std::string>("str_value", "the constant as text, where a double is not precise enough; overrides value", "")
      .KernelTypeFromAttr("dtype")
      .Kernel<bool>(FillConstantKernel<bool>)
      .Kernel<uint8_t>(FillConstantKernel<uint8_t>)
      .Kernel<int8_t>(FillConstantKernel<int8_t>)
      .Kernel<int16_t>(FillConstantKernel<int16_t>)
      .Kernel<int32_t>(FillConstantKernel<int32_t>)
      .Kernel<int64_t>(FillConstantKernel<int64_t>)
      .Kernel<float>(FillConstantKernel<float>)
      .Kernel<double>(FillConstantKernel<double>);
}

void FillZerosLikeKernel(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("Out");
  void* data = out->mutable_data(ctx.Input("X").dtype());
  std::memset(data, 0, out->nbytes());
}

}  // namespace

HEADRACE_REGISTER_OP(fill_constant)
    .Comment("A tensor of which every element is the same.")
    .With(ConstantAttrs)
    .InferShape(InferFillConstant);

HEADRACE_REGISTER_OP(fill_constant_batch_size_like)
    .Comment("As fill_constant, with one dimension taken from another tensor.")
    .With(BatchSizeLikeSlots)
    .With(ConstantAttrs)
    .InferShape(InferBatchSizeLike);

HEADRACE_REGISTER_OP(fill_zeros_like)
    .Comment("Zeros.")
    .Input("X", "any tensor")
    .Output("Out", "dims and dtype of X")
    .InPlace("Out", "X")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .With(KernelForAllTypes, FillZerosLikeKernel);

}  // namespace headrace::ops
