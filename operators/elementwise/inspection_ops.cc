// shape, size, is_empty, isfinite, isinf, isnan, where: facts about a tensor.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

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
  const int64_t numel = condition.numel();
  // How many hold before each block.
  PoolVector<int64_t> counts(static_cast<size_t>((numel + kElementsPerBlock - 1) / kElementsPerBlock + 1), 0);
  const auto block = [](int64_t begin) { return static_cast<size_t>(begin / kElementsPerBlock); };
  ParallelFor(numel, kElementsPerBlock, [&](int64_t begin, int64_t end) {
    counts[block(begin) + 1] = std::count(holds + begin, holds + end, true);
  });
  std::partial_sum(counts.begin(), counts.end(), counts.begin());
  int64_t* out = ctx.Output("Out")->Resize({counts.back(), rank}).mutable_data<int64_t>();
  ParallelFor(numel, kElementsPerBlock, [&](int64_t begin, int64_t end) {
    int64_t* coordinate = out + counts[block(begin)] * rank;
    for (int64_t at = begin; at < end; ++at) {
      if (!holds[at]) {
        continue;
      }
      int64_t rest = at;
      for (size_t d = dims.size(); d-- > 0; rest /= dims[d]) {
        coordinate[d] = rest % dims[d];
      }
      coordinate += rank;
    }
  });
}

enum class Finding { kAllFinite, kAnyInfinite, kAnyNaN };

// Whether any element is what is looked for: not finite, for kAllFinite.
template <Finding kFinding, typename T>
bool IsFound(T value) {
  const auto number = static_cast<double>(value);
  if constexpr (kFinding == Finding::kAllFinite) {
    return !std::isfinite(number);
  } else if constexpr (kFinding == Finding::kAnyInfinite) {
    return std::isinf(number);
  } else {
    return std::isnan(number);
  }
}

template <typename T, Finding kFinding>
void FindKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ElementsIn(ctx, "X");
  const T* x = x_tensor.data<T>();
  std::atomic<bool> found = false;  // relaxed: ParallelFor's end orders it
  ParallelFor(x_tensor.numel(), kElementsPerBlock, [x, &found](int64_t begin, int64_t end) {
    int any = 0;  // without a branch for each element, so that the compiler can vectorise the loop
    for (int64_t i = begin; i < end; ++i) {
      any |= static_cast<int>(IsFound<kFinding>(x[i]));
    }
    if (any != 0) {
      found.store(true, std::memory_order_relaxed);
    }
  });
  *ctx.Output("Out")->mutable_data<bool>() = found.load(std::memory_order_relaxed) != (kFinding == Finding::kAllFinite);
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
