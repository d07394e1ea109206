// shape, size, is_empty, isfinite, isinf, isnan, where: facts about a tensor.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"

namespace headrace::ops {
namespace {

// What an input holds; of SelectedRows, the rows that they have.
const LoDTensor& ElementsIn(const ExecutionContext& ctx, HashedName slot) {
  return ctx.IsSelectedRows(slot) ? ctx.InputRows(slot).value() : ctx.Input(slot);
}

void ShapeKernel(const ExecutionContext& ctx) {
  const DDim& dims = ElementsIn(ctx, "Input").dims();
  int32_t* out = ctx.Output("Out")->mutable_data<int32_t>();
  for (size_t d = 0; d < dims.size(); ++d) {
    out[d] = static_cast<int32_t>(dims[d]);
  }
}

void SizeKernel(const ExecutionContext& ctx) {
  *ctx.Output("Out")->mutable_data<int64_t>() = ctx.Input("Input").numel();
}

void IsEmptyKernel(const ExecutionContext& ctx) {
  *ctx.Output("Out")->mutable_data<bool>() = ctx.Input("X").numel() == 0;
}

void WhereKernel(const ExecutionContext& ctx) {
  const LoDTensor& condition = ctx.Input("Condition");
  const DDim& dims = condition.dims();
  const auto rank = static_cast<int64_t>(dims.size());
  const bool* holds = condition.data<bool>();
  const int64_t count = std::count(holds, holds + condition.numel(), true);
  int64_t* coordinate = ctx.Output("Out")->Resize({count, rank}).mutable_data<int64_t>();
  for (int64_t at = 0; at < condition.numel(); ++at) {
    if (!holds[at]) {
      continue;
    }
    int64_t rest = at;
    for (size_t d = dims.size(); d-- > 0; rest /= dims[d]) {
      coordinate[d] = rest % dims[d];
    }
    coordinate += rank;
  }
}

enum class Finding { kAllFinite, kAnyInfinite, kAnyNaN };

template <typename T, Finding kFinding>
void FindKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ElementsIn(ctx, "X");
  const T* x = x_tensor.data<T>();
  const T* end = x + x_tensor.numel();
  bool* out = ctx.Output("Out")->mutable_data<bool>();
  switch (kFinding) {
    case Finding::kAllFinite:
      *out = std::all_of(x, end, [](T value) { return std::isfinite(static_cast<double>(value)); });
      break;
    case Finding::kAnyInfinite:
      *out = std::any_of(x, end, [](T value) { return std::isinf(static_cast<double>(value)); });
      break;
    case Finding::kAnyNaN:
      *out = std::any_of(x, end, [](T value) { return std::isnan(static_cast<double>(value)); });
      break;
  }
}

void InferOneBool(InferShapeContext& ctx) { SetOutput(ctx, "Out", {1}, DataType::kBool); }

template <Finding kFinding>
OpRegistrar&& Find(OpRegistrar&& op, const char* comment) {
  return std::move(op)
      .Comment(comment)
      .Input("X", "any shape, or SelectedRows", kSelectedRows)
      .Output("Out", "bool [1]")
      .InferShape(InferOneBool)
      .template Kernel<float>(FindKernel<float, kFinding>)
      .template Kernel<double>(FindKernel<double, kFinding>)
      .template Kernel<int32_t>(FindKernel<int32_t, kFinding>)
      .template Kernel<int64_t>(FindKernel<int64_t, kFinding>);
}

}  // namespace

HEADRACE_REGISTER_OP(shape)
    .Comment("The dims of a tensor; of SelectedRows, those of the rows that they have.")
    .Input("Input", "any shape, or SelectedRows", kSelectedRows | kShapeOnly)
    .Output("Out", "int32 [rank of Input]")
    .InferShape([](InferShapeContext& ctx) {
      DDim dims = ctx.InputDim("Input");
      if (ctx.InputIsSelectedRows("Input") && !dims.empty()) {
        dims[0] = -1;  // how many rows they have, only the run knows
      }
      HR_ENFORCE(std::all_of(dims.begin(), dims.end(), [](int64_t extent) { return extent <= INT32_MAX; }),
                 InvalidArgument, "input Input: expected dims that fit an int32, got ", ToString(dims));
      SetOutput(ctx, "Out", {static_cast<int64_t>(dims.size())}, DataType::kInt32);
    })
    .With(KernelForAllTypes, ShapeKernel);

HEADRACE_REGISTER_OP(size)
    .Comment("The number of elements of a tensor.")
    .Input("Input", "any shape", kShapeOnly)
    .Output("Out", "int64 [1]")
    .InferShape([](InferShapeContext& ctx) { SetOutput(ctx, "Out", {1}, DataType::kInt64); })
    .With(KernelForAllTypes, SizeKernel);

HEADRACE_REGISTER_OP(is_empty)
    .Comment("Whether a tensor has no elements.")
    .Input("X", "any shape", kShapeOnly)
    .Output("Out", "bool [1]")
    .InferShape(InferOneBool)
    .With(KernelForAllTypes, IsEmptyKernel);

HEADRACE_REGISTER_OP(isfinite).With(Find<Finding::kAllFinite>, "Whether all elements are finite.");
HEADRACE_REGISTER_OP(isinf).With(Find<Finding::kAnyInfinite>, "Whether any element is infinite.");
HEADRACE_REGISTER_OP(isnan).With(Find<Finding::kAnyNaN>, "Whether any element is NaN.");

HEADRACE_REGISTER_OP(where)
    .Comment("The coordinates of the elements that are true, in the order of the elements.")
    .Input("Condition", "bool, rank 1 or more")
    .Output("Out", "int64 [number of true elements, rank of Condition]")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRankAtLeast(ctx, "Condition", 1);
      EnforceType(ctx, "Condition", DataType::kBool);
      if (ctx.IsRuntime()) {
        return;  // the kernel knows how many are true
      }
      SetOutput(ctx, "Out", {-1, static_cast<int64_t>(ctx.InputDim("Condition").size())}, DataType::kInt64);
    })
    .Kernel<bool>(WhereKernel);

}  // namespace headrace::ops
