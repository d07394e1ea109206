// scale, increment: linear, element by element, and safe in place.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// What `name` gives as a T. Integers take whole numbers only: truncating a scale of 0.5 would be silence about an
// error.
template <typename T>
T Exactly(double value, const char* what, HashedName name) {
  if constexpr (std::is_integral_v<T>) {
    // Minus the least value is a power of two, hence exact in floating point; the greatest is not.
    constexpr auto kBound = -static_cast<double>(std::numeric_limits<T>::min());
    HR_ENFORCE(std::trunc(value) == value && -kBound <= value && value < kBound, InvalidArgument, what, " ", name,
               ": expected an integer that fits ", DataTypeName(DataTypeOf<T>::value), ", which the tensor holds, got ",
               value);
  }
  return static_cast<T>(value);
}

template <typename T>
T NumberAttr(const AttributeIndex& op, HashedName name) {
  return Exactly<T>(op.Attr<double>(name), "attribute", name);
}

// The factor.
template <typename T>
T ScaleOf(const ExecutionContext& ctx) {
  return ctx.HasInput("ScaleTensor") ? Exactly<T>(ScalarInput(ctx, "ScaleTensor"), "input", "ScaleTensor")
                                     : NumberAttr<T>(ctx.attrs(), "scale");
}

void CheckNumberAttr(const InferShapeContext& ctx, HashedName name) {
  if (ctx.InputType("X") == DataType::kInt32) {
    (void)NumberAttr<int32_t>(ctx.attrs(), name);
  } else if (ctx.InputType("X") == DataType::kInt64) {
    (void)NumberAttr<int64_t>(ctx.attrs(), name);
  }
}

template <typename T>
void ScaleElements(const ExecutionContext& ctx, const LoDTensor& x, LoDTensor* out) {
  const auto scale = static_cast<Wrapping<T>>(ScaleOf<T>(ctx));
  auto bias = static_cast<Wrapping<T>>(NumberAttr<T>(ctx.attrs(), "bias"));
  if (!ctx.Attr<bool>("bias_after_scale")) {
    bias *= scale;
  }
  T* to = out->mutable_data<T>();
  const T* from = x.data<T>();
  ParallelFor(x.numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      to[i] = static_cast<T>(static_cast<Wrapping<T>>(from[i]) * scale + bias);
    }
  });
}

template <typename T>
void ScaleKernel(const ExecutionContext& ctx) {
  if (!ctx.IsSelectedRows("X")) {
    ScaleElements<T>(ctx, ctx.Input("X"), ctx.Output("Out"));
    return;
  }
  const SelectedRows& x = ctx.InputRows("X");
  SelectedRows scaled;  // Out may be X
  *scaled.mutable_rows() = x.rows();
  scaled.set_height(x.height());
  scaled.mutable_value()->Resize(x.value().dims());
  ScaleElements<T>(ctx, x.value(), scaled.mutable_value());
  *ctx.OutputRows("Out") = std::move(scaled);
}

void InferScale(InferShapeContext& ctx) {
  CheckNumberAttr(ctx, "scale");
  CheckNumberAttr(ctx, "bias");
  if (ctx.HasInput("ScaleTensor")) EnforceScalar(ctx, "ScaleTensor");
  ctx.ShareAll("X", "Out");
  if (ctx.InputIsSelectedRows("X")) {
    const double bias = ctx.Attr<double>("bias");
    HR_ENFORCE(bias == 0, InvalidArgument,
               "attribute bias: expected 0, as input X holds SelectedRows and the rows that they lack stay zero, got ",
               bias);
    ctx.SetOutputSelectedRows("Out");
  }
}

std::vector<OpDesc> ScaleGradient(const OpDesc& op) {
  OpDesc gradient{"scale",
                  {{"X", {GradVarName(op.Output("Out")[0])}}},
                  {{"Out", {GradVarName(op.Input("X")[0])}}},
                  {{"scale", op.attrs.at("scale")}}};
  if (!op.Input("ScaleTensor").empty()) {
    gradient.inputs["ScaleTensor"] = op.Input("ScaleTensor");
  }
  return {gradient};
}

template <typename T>
void IncrementKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output("Out");
  const auto step = static_cast<Wrapping<T>>(NumberAttr<T>(ctx.attrs(), "step"));
  T* to = out->mutable_data<T>();
  *to = static_cast<T>(static_cast<Wrapping<T>>(*x.data<T>()) + step);
}

}  // namespace

HEADRACE_REGISTER_OP(scale)
    .Comment("scale · X + bias, or scale · (X + bias). Out may be X.")
    .Input("X", "any shape, or SelectedRows", kSelectedRows)
    .Input("ScaleTensor", "float32 or float64 [1]: the factor, instead of the attribute; gets no gradient",
           kDispensable)
    .Output("Out", "dims and dtype of X; SelectedRows if X is", kSelectedRows)
    .InPlace("Out", "X")
    .Attr<double>("scale", "factor", 1.0)
    .Attr<double>("bias", "summand", 0.0)
    .Attr<bool>("bias_after_scale", "whether the bias is added to the product", true)
    .InferShape(InferScale)
    .Kernel<float>(ScaleKernel<float>)
    .Kernel<double>(ScaleKernel<double>)
    .Kernel<int32_t>(ScaleKernel<int32_t>)
    .Kernel<int64_t>(ScaleKernel<int64_t>)
    .Gradient(ScaleGradient);

HEADRACE_REGISTER_OP(increment)
    .Comment("X + step, for a counter. Out may be X.")
    .Input("X", "a single element")
    .Output("Out", "dims and dtype of X")
    .InPlace("Out", "X")
    .Attr<double>("step", "the number to add", 1.0)
    .InferShape([](InferShapeContext& ctx) {
      const int64_t numel = Numel(ctx.InputDim("X"));
      HR_ENFORCE(Fits(numel, 1), InvalidArgument, "input X: expected a single element, got dims ",
                 ToString(ctx.InputDim("X")));
      CheckNumberAttr(ctx, "step");
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(IncrementKernel<float>)
    .Kernel<double>(IncrementKernel<double>)
    .Kernel<int32_t>(IncrementKernel<int32_t>)
    .Kernel<int64_t>(IncrementKernel<int64_t>);

}  // namespace headrace::ops
