// scale, increment, sum: linear, element by element, and safe in place.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/row_merge.h"

namespace headrace::ops {
namespace {

// The attribute as a T. Integers take whole numbers only: truncating a scale of 0.5 would be silence about an error.
template <typename T>
T NumberAttr(const ExecutionContext& ctx, const char* name) {
  const double value = ctx.Attr<double>(name);
  if constexpr (std::is_integral_v<T>) {
    // Minus the least value is a power of two, hence exact in floating point; the greatest is not.
    constexpr auto kBound = -static_cast<double>(std::numeric_limits<T>::min());
    HR_ENFORCE(std::trunc(value) == value && -kBound <= value && value < kBound, InvalidArgument, "attribute ", name,
               ": expected an integer that fits ", DataTypeName(DataTypeOf<T>::value), ", which the tensor holds, got ",
               value);
  }
  return static_cast<T>(value);
}

template <typename T>
void ScaleKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output("Out");
  const auto scale = static_cast<Wrapping<T>>(NumberAttr<T>(ctx, "scale"));
  auto bias = static_cast<Wrapping<T>>(NumberAttr<T>(ctx, "bias"));
  if (!ctx.Attr<bool>("bias_after_scale")) {
    bias *= scale;
  }
  T* to = out->mutable_data<T>();
  const T* from = x.data<T>();
  for (int64_t i = 0, n = x.numel(); i < n; ++i) {
    to[i] = static_cast<T>(static_cast<Wrapping<T>>(from[i]) * scale + bias);
  }
}

std::vector<OpDesc> ScaleGradient(const OpDesc& op) {
  return {OpDesc{"scale",
                 {{"X", {GradVarName(op.Output("Out")[0])}}},
                 {{"Out", {GradVarName(op.Input("X")[0])}}},
                 {{"scale", op.attrs.at("scale")}}}};
}

template <typename T>
void IncrementKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output("Out");
  const auto step = static_cast<Wrapping<T>>(NumberAttr<T>(ctx, "step"));
  T* to = out->mutable_data<T>();
  *to = static_cast<T>(static_cast<Wrapping<T>>(*x.data<T>()) + step);
}

// All X are SelectedRows.
template <typename T>
void SumRows(const ExecutionContext& ctx) {
  SelectedRows all;
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (ctx.HasInput("X", k)) {
      const SelectedRows& x = ctx.InputRows("X", k);
      all.set_height(x.height());
      all.mutable_rows()->insert(all.mutable_rows()->end(), x.rows().begin(), x.rows().end());
      *all.mutable_value() = x.value();
    }
  }
  LoDTensor values;
  DDim dims = all.value().dims();
  dims[0] = static_cast<int64_t>(all.rows().size());
  T* to = values.Resize(dims).template mutable_data<T>();
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (ctx.HasInput("X", k)) {
      const Tensor& value = ctx.InputRows("X", k).value();
      to = std::copy_n(value.data<T>(), value.numel(), to);
    }
  }
  *all.mutable_value() = std::move(values);
  MergeRows<T>(all, ctx.OutputRows("Out"));
}

// Some X are SelectedRows, in which all rows but theirs are zero.
template <typename T>
void AddSelectedRows(const ExecutionContext& ctx, T* to) {
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (!ctx.IsSelectedRows("X", k)) {
      continue;
    }
    const SelectedRows& x = ctx.InputRows("X", k);
    const int64_t width = RowWidth(x);
    const T* from = x.value().data<T>();
    for (const int64_t row : x.rows()) {
      for (int64_t c = 0; c < width; ++c) {
        T& sum = to[row * width + c];
        sum = static_cast<T>(static_cast<Wrapping<T>>(sum) + static_cast<Wrapping<T>>(*from++));
      }
    }
  }
}

// Adds block by block, so that Out may be any of the X and each element is added in the order of the inputs.
template <typename T>
void SumKernel(const ExecutionContext& ctx) {
  constexpr int64_t kBlock = 1024;
  if (ctx.OutputVar("Out")->IsType<SelectedRows>()) {
    SumRows<T>(ctx);
    return;
  }
  LoDTensor* out = ctx.Output("Out");
  T* to = out->mutable_data<T>();
  std::vector<const T*> from;
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (ctx.IsSelectedRows("X", k)) {
      continue;
    }
    if (const LoDTensor* x = ctx.InputOrNull("X", k)) {
      from.push_back(x->data<T>());
    }
  }
  for (int64_t begin = 0, numel = out->numel(); begin < numel; begin += kBlock) {
    const int64_t n = std::min(kBlock, numel - begin);
    Wrapping<T> block[kBlock] = {};
    for (const T* x : from) {
      for (int64_t i = 0; i < n; ++i) {
        block[i] += static_cast<Wrapping<T>>(x[begin + i]);
      }
    }
    std::transform(block, block + n, to + begin, [](auto value) { return static_cast<T>(value); });
  }
  AddSelectedRows(ctx, to);
}

void InferSum(InferShapeContext& ctx) {
  DDim dims;
  bool found = false;
  bool all_rows = true;
  size_t first = 0;
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (!ctx.HasInput("X", k)) {
      continue;
    }
    all_rows = all_rows && ctx.InputIsSelectedRows("X", k);
    if (!found) {
      found = true;
      first = k;
      dims = ctx.InputDim("X", k);
      continue;
    }
    EnforceDims(ctx, "X", dims, k);
    EnforceType(ctx, "X", ctx.InputType("X", first), k);
    const DDim other = ctx.InputDim("X", k);
    for (size_t d = 0; d < dims.size(); ++d) {
      dims[d] = std::max(dims[d], other[d]);
    }
  }
  HR_ENFORCE(found, InvalidArgument, "input X: expected at least one variable, got none");
  SetOutput(ctx, "Out", dims, ctx.InputType("X", first));
  ctx.ShareLoD("X", "Out", first);
  if (all_rows) {
    ctx.SetOutputSelectedRows("Out");
  }
}

std::vector<OpDesc> SumGradient(const OpDesc& op) {
  std::vector<OpDesc> grads;
  for (const std::string& x : op.Input("X")) {
    if (x != kEmptyVarName) {
      grads.push_back({"assign", {{"X", {GradVarName(op.Output("Out")[0])}}}, {{"Out", {GradVarName(x)}}}, {}});
    }
  }
  return grads;
}

}  // namespace

HEADRACE_REGISTER_OP(scale)
    .Comment("scale · X + bias, or scale · (X + bias). Out may be X.")
    .Input("X", "any shape")
    .Output("Out", "dims and dtype of X")
    .InPlace("Out", "X")
    .Attr<double>("scale", "factor", 1.0)
    .Attr<double>("bias", "summand", 0.0)
    .Attr<bool>("bias_after_scale", "whether the bias is added to the product", true)
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
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
    .Attr<double>("step", "what is added", 1.0)
    .InferShape([](InferShapeContext& ctx) {
      const int64_t numel = Numel(ctx.InputDim("X"));
      HR_ENFORCE(Fits(numel, 1), InvalidArgument, "input X: expected a single element, got dims ",
                 ToString(ctx.InputDim("X")));
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(IncrementKernel<float>)
    .Kernel<double>(IncrementKernel<double>)
    .Kernel<int32_t>(IncrementKernel<int32_t>)
    .Kernel<int64_t>(IncrementKernel<int64_t>);

HEADRACE_REGISTER_OP(sum)
    .Comment(
        "The sum of tensors, element by element, in the order of the slot; SelectedRows come last. Out may be one of "
        "them.")
    .Input("X", "tensors or SelectedRows of the same dims and dtype", kDuplicable | kSelectedRows)
    .Output("Out", "dims and dtype of X, LoD of the first X; SelectedRows, each once, if all X are", kSelectedRows)
    .InPlace("Out", "X")
    .InferShape(InferSum)
    .Kernel<float>(SumKernel<float>)
    .Kernel<double>(SumKernel<double>)
    .Kernel<int32_t>(SumKernel<int32_t>)
    .Kernel<int64_t>(SumKernel<int64_t>)
    .Gradient(SumGradient);

}  // namespace headrace::ops
