// fill_constant, fill_constant_batch_size_like, fill_any_like, fill_zeros_like, fill_zeros_like2: every element is the
// same. fill: elements that are part of the program.
#include <Eigen/Core>
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"
#include "operators/tensor/batch_size_like.h"
#include "operators/tensor/filled_output.h"
#include "operators/tensor/visit_type.h"

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
T ElementOf(double value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_same_v<T, float16>) {
    return {Eigen::numext::bit_cast<uint16_t>(Eigen::half(static_cast<float>(value)))};
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return {Eigen::numext::bit_cast<uint16_t>(Eigen::bfloat16(static_cast<float>(value)))};
  } else {
    return ConstantOf<T>(value);
  }
}

template <typename T>
T ConstantAttr(const AttributeIndex& op) {
  const auto& text = op.Attr<std::string>("str_value");
  if (text.empty()) {
    return ElementOf<T>(op.Attr<double>("value"));
  }
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    int64_t integer = 0;
    if (Parse(text, &integer)) {
      return ConstantOf<T>(integer);
    }
  }
  double number = 0;
  HR_ENFORCE(Parse(text, &number), InvalidArgument, "attribute str_value: expected a number, got '", text, "'");
  return ElementOf<T>(number);
}

template <typename T>
void FillConstantKernel(const ExecutionContext& ctx) {
  const bool is_rows = ctx.OutputVar("Out")->IsType<SelectedRows>();
  LoDTensor* out = is_rows ? RowsToFill(ctx) : ctx.Output("Out");
  if (ctx.HasInput("Input")) {
    ResizeLikeBatch(ctx, out);
  } else if (const OpArgs args(ctx); !is_rows && args.FromInputs(kShapeSlots)) {
    out->Resize(args.Shape());
  }
  const T value = ConstantAttr<T>(ctx.attrs());
  ParallelFill(out->mutable_data<T>(), out->numel(), value);
}

// Throws InvalidArgument naming the attribute unless the constant is a number that the dtype holds.
void CheckConstant(const InferShapeContext& ctx) {
  const AttributeIndex& op = ctx.attrs();
  switch (TypeAttr(ctx, "dtype")) {
    case DataType::kUInt8:
      (void)ConstantAttr<uint8_t>(op);
      break;
    case DataType::kInt8:
      (void)ConstantAttr<int8_t>(op);
      break;
    case DataType::kInt16:
      (void)ConstantAttr<int16_t>(op);
      break;
    case DataType::kInt32:
      (void)ConstantAttr<int32_t>(op);
      break;
    case DataType::kInt64:
      (void)ConstantAttr<int64_t>(op);
      break;
    default:  // any number will do, or there is no kernel
      (void)ConstantAttr<double>(op);
  }
}

void InferFillConstant(InferShapeContext& ctx) {
  CheckConstant(ctx);
  SetKnownOutput(ctx, "Out", OpArgs(ctx).Shape(), TypeAttr(ctx, "dtype"));
  KeepSelectedRows(ctx);
}

OpRegistrar&& ConstantAttrs(OpRegistrar&& op) {
  return std::move(op)
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

void FillZeros(const ExecutionContext& ctx, DataType type) {
  LoDTensor* out = ctx.Output("Out");
  auto* data = static_cast<std::byte*>(out->mutable_data(type));
  ParallelFill(data, static_cast<int64_t>(out->nbytes()), std::byte{0});
}

void FillZerosLikeKernel(const ExecutionContext& ctx) { FillZeros(ctx, ctx.Input("X").dtype()); }
void FillZerosLike2Kernel(const ExecutionContext& ctx) {
  FillZeros(ctx, static_cast<DataType>(ctx.Attr<int32_t>("dtype")));
}

void FillAnyLikeKernel(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("Out");
  const int32_t type = ctx.Attr<int32_t>("dtype");
  VisitEveryType(type == -1 ? ctx.Input("X").dtype() : static_cast<DataType>(type), [&]<typename T>(T) {
    const auto value = ElementOf<T>(ctx.Attr<double>("value"));
    ParallelFill(out->mutable_data<T>(), out->numel(), value);
  });
}

void InferFillAnyLike(InferShapeContext& ctx) {
  const DataType type = ctx.Attr<int32_t>("dtype") == -1 ? ctx.InputType("X") : TypeAttr(ctx, "dtype");
  VisitEveryType(type, [&]<typename T>(T) { (void)ElementOf<T>(ctx.Attr<double>("value")); });
  SetOutput(ctx, "Out", ctx.InputDim("X"), type);
  ctx.ShareLoD("X", "Out");
}

template <typename T>
void FillKernel(const ExecutionContext& ctx) {
  const auto& values = ctx.Attr<std::vector<float>>("value");
  T* out = ctx.Output("Out")->mutable_data<T>();
  std::transform(values.begin(), values.end(), out, [](float value) { return ElementOf<T>(value); });
}

void InferFill(InferShapeContext& ctx) {
  const auto& shape = ctx.Attr<std::vector<int32_t>>("shape");
  const DDim dims(shape.begin(), shape.end());
  const auto& values = ctx.Attr<std::vector<float>>("value");
  const auto count = static_cast<int64_t>(values.size());
  HR_ENFORCE(Numel(dims) >= 0, InvalidArgument, "attribute shape: expected known dimensions, got ", ToString(dims));
  HR_ENFORCE(Numel(dims) == count, InvalidArgument, "attribute value: expected ", Numel(dims), " numbers for dims ",
             ToString(dims), ", got ", count);
  const DataType type = TypeAttr(ctx, "dtype");
  VisitType(type, "dtype", [&]<typename T>(T) {
    std::for_each(values.begin(), values.end(), [](float value) { (void)ElementOf<T>(value); });
  });
  SetOutput(ctx, "Out", dims, type);
}

}  // namespace

HEADRACE_REGISTER_OP(fill_constant)
    .Comment("A tensor of which every element is the same.")
    .With(IntsInputs, kShapeSlots)
    .Attr<std::vector<int64_t>>("shape", "dims of Out", {})
    .Output("Out", "the constant tensor, or SelectedRows with that value", kSelectedRows)
    .With(ConstantAttrs)
    .InferShape(InferFillConstant);

HEADRACE_REGISTER_OP(fill_constant_batch_size_like)
    .Comment("As fill_constant, with one dimension taken from another tensor.")
    .With(BatchSizeLikeSlots)
    .Output("Out", "the constant tensor")
    .With(ConstantAttrs)
    .InferShape([](InferShapeContext& ctx) {
      CheckConstant(ctx);
      InferBatchSizeLike(ctx);
    });

HEADRACE_REGISTER_OP(fill)
    .Comment("A tensor of numbers that are part of the program.")
    .Output("Out", "the tensor")
    .Attr<std::vector<float>>("value", "the elements, row by row")
    .Attr<std::vector<int32_t>>("shape", "dims of Out")
    .Attr<int32_t>("dtype", "DataType of Out", static_cast<int32_t>(DataType::kFloat32))
    .Attr<bool>("force_cpu", "not used", false)
    .KernelTypeFromAttr("dtype")
    .InferShape(InferFill)
    .Kernel<bool>(FillKernel<bool>)
    .Kernel<uint8_t>(FillKernel<uint8_t>)
    .Kernel<int32_t>(FillKernel<int32_t>)
    .Kernel<int64_t>(FillKernel<int64_t>)
    .Kernel<float>(FillKernel<float>)
    .Kernel<double>(FillKernel<double>);

namespace {

// The elements of what is read do not matter.
std::vector<OpDesc> NoGradient(const OpDesc&) { return {}; }

}  // namespace

HEADRACE_REGISTER_OP(fill_any_like)
    .Comment("A tensor of the dims of another, of which every element is the same.")
    .Input("X", "any tensor; only its dims, dtype and LoD are used", kShapeOnly)
    .Output("Out", "dims and LoD of X")
    .Attr<double>("value", "the constant", 0.0)
    .Attr<int32_t>("dtype", "DataType of Out; -1: that of X", -1)
    .InferShape(InferFillAnyLike)
    .With(KernelForAllTypes, FillAnyLikeKernel)
    .Gradient(NoGradient);

HEADRACE_REGISTER_OP(fill_zeros_like2)
    .Comment("Zeros of a given dtype.")
    .Input("X", "any tensor; only its dims and LoD are used", kShapeOnly)
    .Output("Out", "dims and LoD of X")
    .Attr<int32_t>("dtype", "DataType of Out", static_cast<int32_t>(DataType::kFloat32))
    .KernelTypeFromAttr("dtype")
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Out", ctx.InputDim("X"), TypeAttr(ctx, "dtype"));
      ctx.ShareLoD("X", "Out");
    })
    .With(KernelForAllTypes, FillZerosLike2Kernel)
    .Gradient(NoGradient);

HEADRACE_REGISTER_OP(fill_zeros_like)
    .Comment("Zeros.")
    .Input("X", "any tensor")
    .Output("Out", "dims and dtype of X")
    .InPlace("Out", "X")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .With(KernelForAllTypes, FillZerosLikeKernel)
    .Gradient(NoGradient);

}  // namespace headrace::ops
