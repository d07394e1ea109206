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

// A batch of sequences has the size of their number, not of their rows.
bool CountsSequences(const OpDesc& op, size_t lod_level) {
  return lod_level > 0 && op.Attr<int32_t>("input_dim_idx") == 0;
}

void ResizeToSequences(const ExecutionContext& ctx, const LoDTensor& like, LoDTensor* out) {
  if (CountsSequences(ctx.op(), like.lod_level())) {
    DDim dims = out->dims();
    dims[FrontAxis(ctx.Attr<int32_t>("output_dim_idx"), dims.size(), "output_dim_idx")] =
        static_cast<int64_t>(like.lod().back().size()) - 1;
    out->Resize(dims);
  }
}

template <typename T>
void FillConstantKernel(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("Out");
  if (const LoDTensor* like = ctx.InputOrNull("Input")) {
    ResizeToSequences(ctx, *like, out);
  }
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
  const bool sequences = CountsSequences(ctx.op(), static_cast<size_t>(ctx.InputLoDLevel("Input")));
  shape[to] = sequences && !ctx.IsRuntime() ? -1 : like[from];
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
    .Input("Input", "the tensor whose dimension is taken; of one with a LoD, dimension 0 counts its sequences")
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

}  // namespace headrace::ops
