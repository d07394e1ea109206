// assign, assign_value: copies of a tensor, or of constants that are part of the program.
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

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

template <typename T>
void AssignValueKernel(const ExecutionContext& ctx, const char* attr) {
  const auto& values = ctx.Attr<std::vector<T>>(attr);
  std::copy(values.begin(), values.end(), ctx.Output("Out")->mutable_data<T>());
}

// Checks that one of the lists of values has as many as `dims` have elements, `attr`, and that the others are empty.
void CheckValues(const InferShapeContext& ctx, const DDim& dims, HashedName attr) {
  const std::pair<std::string_view, size_t> lists[] = {
      {"fp32_values", ctx.Attr<std::vector<float>>("fp32_values").size()},
      {"int32_values", ctx.Attr<std::vector<int32_t>>("int32_values").size()},
      {"int64_values", ctx.Attr<std::vector<int64_t>>("int64_values").size()},
  };
  for (const auto& [name, count] : lists) {
    const int64_t expected = name == attr ? Numel(dims) : 0;
    HR_ENFORCE(static_cast<int64_t>(count) == expected, InvalidArgument, "attribute ", name, ": expected ", expected,
               " values for dims ", ToString(dims), " and dtype ", DataTypeName(TypeAttr(ctx, "dtype")), ", got ",
               count);
  }
}

void InferAssignValue(InferShapeContext& ctx) {
  const auto& shape = ctx.Attr<std::vector<int32_t>>("shape");
  const DDim dims(shape.begin(), shape.end());
  HR_ENFORCE(Numel(dims) >= 0, InvalidArgument, "attribute shape: expected known dimensions, got ", ToString(dims));
  const DataType type = TypeAttr(ctx, "dtype");
  if (type == DataType::kFloat32) {
    CheckValues(ctx, dims, "fp32_values");
  } else if (type == DataType::kInt32) {
    CheckValues(ctx, dims, "int32_values");
  } else if (type == DataType::kInt64) {
    CheckValues(ctx, dims, "int64_values");
  }  // there is no kernel for others
  SetOutput(ctx, "Out", dims, type);
}

}  // namespace

HEADRACE_REGISTER_OP(assign)
    .Comment("A copy.")
    .Input("X", "any tensor")
    .Output("Out", "dims, dtype, LoD and elements of X")
    .InPlace("Out", "X")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .With(KernelForAllTypes, AssignKernel)
    .Gradient(PassGradientOn);

HEADRACE_REGISTER_OP(rnn_memory_helper)
    .Comment("A copy. Fluid's recurrent networks have it in their steps.")
    .Input("X", "any tensor")
    .Output("Out", "dims, dtype, LoD and elements of X")
    .Attr<int32_t>("dtype", "Fluid's; makes no difference", static_cast<int32_t>(DataType::kFloat32))
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
    .InferShape(InferAssignValue)
    .Kernel<float>([](const ExecutionContext& ctx) { AssignValueKernel<float>(ctx, "fp32_values"); })
    .Kernel<int32_t>([](const ExecutionContext& ctx) { AssignValueKernel<int32_t>(ctx, "int32_values"); })
    .Kernel<int64_t>([](const ExecutionContext& ctx) { AssignValueKernel<int64_t>(ctx, "int64_values"); });

}  // namespace headrace::ops
