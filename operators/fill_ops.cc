// Operators that fill or copy: fill_constant, fill_constant_batch_size_like, fill_zeros_like, assign_value, assign,
// cast.
#include <Eigen/Core>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

// --- constants ---

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
  const T value = ConstantAttr<T>(ctx);
  std::fill_n(out->mutable_data<T>(), out->numel(), value);
}

void InferFillConstant(InferShapeContext& ctx) {
  const auto& shape = ctx.Attr<std::vector<int64_t>>("shape");
  HR_ENFORCE(Numel(shape) >= 0, InvalidArgument, "attribute shape: expected known dimensions, got ", ToString(shape));
  SetOutput(ctx, "Out", shape, TypeAttr(ctx, "dtype"));
}

void InferFillConstantBatchSizeLike(InferShapeContext& ctx) {
  DDim shape = ctx.Attr<std::vector<int64_t>>("shape");
  const DDim like = ctx.InputDim("Input");
  const size_t from = FrontAxis(ctx.Attr<int32_t>("input_dim_idx"), like.size(), "input_dim_idx");
  const size_t to = FrontAxis(ctx.Attr<int32_t>("output_dim_idx"), shape.size(), "output_dim_idx");
  for (size_t d = 0; d < shape.size(); ++d) {
    HR_ENFORCE(d == to || shape[d] >= 0, InvalidArgument,
               "attribute shape: expected known dimensions, apart from dimension ", to, ", got ", ToString(shape));
  }
  shape[to] = like[from];
  SetOutput(ctx, "Out", shape, TypeAttr(ctx, "dtype"));
  if (from == 0 && to == 0) {
    ctx.ShareLoD("Input", "Out");
  }
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

// --- fill_zeros_like, assign ---

void FillZerosLikeKernel(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("Out");
  void* data = out->mutable_data(ctx.Input("X").dtype());
  std::memset(data, 0, out->nbytes());
}

void AssignKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output("Out");
  if (&x != out) {
    out->CopyFrom(x);
  }
}

// The gradient of an operator that passes X on.
std::vector<OpDesc> PassGradientOn(const OpDesc& op) {
  return {
      OpDesc{"assign", {{"X", {GradVarName(op.Output("Out")[0])}}}, {{"Out", {GradVarName(op.Input("X")[0])}}}, {}}};
}

// --- assign_value ---

template <typename T, typename Stored>
void AssignValueKernel(const ExecutionContext& ctx, const char* attr) {
  const auto& values = ctx.Attr<std::vector<Stored>>(attr);
  LoDTensor* out = ctx.Output("Out");
  HR_ENFORCE(static_cast<int64_t>(values.size()) == out->numel(), InvalidArgument, "attribute ", attr, ": expected ",
             out->numel(), " values for dims ", ToString(out->dims()), ", got ", values.size());
  std::copy(values.begin(), values.end(), out->mutable_data<T>());
}

// --- cast ---

// float16 and bfloat16 have no arithmetic of their own.
template <typename T>
constexpr bool kIsFloating = std::is_floating_point_v<T> || std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;

template <typename Wide, typename T>
Wide Widen(T value) {
  if constexpr (std::is_same_v<T, float16>) {
    return static_cast<Wide>(static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(value.bits)));
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return static_cast<Wide>(static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(value.bits)));
  } else {
    return static_cast<Wide>(value);
  }
}

// From floating point to an integer: towards zero, to the nearest one that the type holds; NaN becomes 0.
template <typename T>
T Saturate(double value) {
  constexpr T kMin = std::numeric_limits<T>::min();
  constexpr T kMax = std::numeric_limits<T>::max();
  if (value >= 2 * static_cast<double>(kMax / 2 + 1)) {
    return kMax;
  }
  if (value <= static_cast<double>(kMin)) {
    return kMin;
  }
  return std::isnan(value) ? T{0} : static_cast<T>(value);
}

template <typename T, typename Wide>
T Narrow(Wide value) {
  if constexpr (std::is_same_v<T, float16>) {
    return {Eigen::numext::bit_cast<uint16_t>(Eigen::half(static_cast<float>(value)))};
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return {Eigen::numext::bit_cast<uint16_t>(Eigen::bfloat16(static_cast<float>(value)))};
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<Wide>) {
    return Saturate<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

template <typename Visitor>
void VisitType(DataType type, Visitor&& visit) {
  switch (type) {
    case DataType::kBool:
      return visit(bool{});
    case DataType::kInt16:
      return visit(int16_t{});
    case DataType::kInt32:
      return visit(int32_t{});
    case DataType::kInt64:
      return visit(int64_t{});
    case DataType::kFloat16:
      return visit(float16{});
    case DataType::kFloat32:
      return visit(float{});
    case DataType::kFloat64:
      return visit(double{});
    case DataType::kUInt8:
      return visit(uint8_t{});
    case DataType::kInt8:
      return visit(int8_t{});
    case DataType::kBFloat16:
      return visit(bfloat16{});
    case DataType::kUInt16:
      return visit(uint16_t{});
    case DataType::kUInt32:
      return visit(uint32_t{});
    case DataType::kUInt64:
      return visit(uint64_t{});
  }
  Throw<InvalidArgument>("there is no dtype ", static_cast<int32_t>(type));
}

// Every type goes to every other by way of `Wide`, block by block: 26 loops instead of 169.
template <typename Wide>
void CastThrough(const LoDTensor& x, LoDTensor* out, DataType type) {
  constexpr int64_t kBlock = 1024;
  Wide block[kBlock];
  void* to = out->mutable_data(type);
  const void* from = x.raw_data();
  for (int64_t begin = 0; begin < x.numel(); begin += kBlock) {
    const int64_t n = std::min(kBlock, x.numel() - begin);
    VisitType(x.dtype(), [&](auto tag) {
      const auto* source = static_cast<const decltype(tag)*>(from) + begin;
      std::transform(source, source + n, block, [](auto value) { return Widen<Wide>(value); });
    });
    VisitType(type, [&](auto tag) {
      using T = decltype(tag);
      std::transform(block, block + n, static_cast<T*>(to) + begin, [](Wide value) { return Narrow<T>(value); });
    });
  }
}

bool IsFloating(DataType type) {
  bool floating = false;
  VisitType(type, [&](auto tag) { floating = kIsFloating<decltype(tag)>; });
  return floating;
}

void CastKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output("Out");
  const auto type = static_cast<DataType>(ctx.Attr<int32_t>("out_dtype"));
  if (type == x.dtype()) {
    out->CopyFrom(x);
  } else if (IsFloating(type) || IsFloating(x.dtype())) {
    CastThrough<double>(x, out, type);
  } else {
    CastThrough<int64_t>(x, out, type);
  }
}

std::vector<OpDesc> CastGradient(const OpDesc& op) {
  return {OpDesc{"cast",
                 {{"X", {GradVarName(op.Output("Out")[0])}}},
                 {{"Out", {GradVarName(op.Input("X")[0])}}},
                 {{"in_dtype", op.attrs.at("out_dtype")}, {"out_dtype", op.attrs.at("in_dtype")}}}};
}

}  // namespace

HEADRACE_REGISTER_OP(fill_constant)
    .Comment("A tensor of which every element is the same.")
    .With(ConstantAttrs)
    .InferShape(InferFillConstant);

HEADRACE_REGISTER_OP(fill_constant_batch_size_like)
    .Comment("As fill_constant, with one dimension taken from another tensor.")
    .Input("Input", "the tensor whose dimension is taken")
    .With(ConstantAttrs)
    .Attr<int32_t>("input_dim_idx", "the dimension of Input that is taken", 0)
    .Attr<int32_t>("output_dim_idx", "the dimension of Out that it becomes", 0)
    .InferShape(InferFillConstantBatchSizeLike);

HEADRACE_REGISTER_OP(fill_zeros_like)
    .Comment("Zeros.")
    .Input("X", "any tensor")
    .Output("Out", "dims and dtype of X")
    .InPlace("Out", "X")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .With(KernelForAllTypes, FillZerosLikeKernel);

HEADRACE_REGISTER_OP(assign)
    .Comment("A copy.")
    .Input("X", "any tensor")
    .Output("Out", "dims, dtype, LoD and elements of X")
    .InPlace("Out", "X")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .With(KernelForAllTypes, AssignKernel)
    .Gradient(PassGradientOn);

HEADRACE_REGISTER_OP(assign_value)
    .Comment("A tensor of constants that are part of the program.")
    .Output("Out", "the tensor")
    .Attr<std::vector<int32_t>>("shape", "dims of Out")
    .Attr<int32_t>("dtype", "DataType of Out: float32, int32 or int64", static_cast<int32_t>(DataType::kFloat32))
    .Attr<std::vector<float>>("fp32_values", "the elements of a float32 tensor", {})
    .Attr<std::vector<int32_t>>("int32_values", "the elements of an int32 tensor", {})
    .Attr<std::vector<int64_t>>("int64_values", "the elements of an int64 tensor", {})
    .KernelTypeFromAttr("dtype")
    .InferShape([](InferShapeContext& ctx) {
      const auto& shape = ctx.Attr<std::vector<int32_t>>("shape");
      const DDim dims(shape.begin(), shape.end());
      HR_ENFORCE(Numel(dims) >= 0, InvalidArgument, "attribute shape: expected known dimensions, got ", ToString(dims));
      SetOutput(ctx, "Out", dims, TypeAttr(ctx, "dtype"));
    })
    .Kernel<float>([](const ExecutionContext& ctx) { AssignValueKernel<float, float>(ctx, "fp32_values"); })
    .Kernel<int32_t>([](const ExecutionContext& ctx) { AssignValueKernel<int32_t, int32_t>(ctx, "int32_values"); })
    .Kernel<int64_t>([](const ExecutionContext& ctx) { AssignValueKernel<int64_t, int64_t>(ctx, "int64_values"); });

HEADRACE_REGISTER_OP(cast)
    .Comment(
        "Another dtype. Floating point becomes an integer by truncation, clipped to what the type holds (NaN becomes "
        "0); an integer "
        "becomes a narrower one modulo 2^bits.")
    .Input("X", "any tensor")
    .Output("Out", "dims and LoD of X")
    .Attr<int32_t>("in_dtype", "DataType of X")
    .Attr<int32_t>("out_dtype", "DataType of Out")
    .InferShape([](InferShapeContext& ctx) {
      EnforceType(ctx, "X", TypeAttr(ctx, "in_dtype"));
      SetOutput(ctx, "Out", ctx.InputDim("X"), TypeAttr(ctx, "out_dtype"));
      ctx.ShareLoD("X", "Out");
    })
    .With(KernelForAllTypes, CastKernel)
    .Gradient(CastGradient);

}  // namespace headrace::ops
