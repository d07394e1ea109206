// average_accumulates: sums of a parameter over a window of its last values, for its average (B. Polyak and A.
// Juditsky, Acceleration of stochastic approximation by averaging, 1992).
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// Sums of more values lose precision: they are moved on.
constexpr int64_t kMaxTerms = 16384;

int64_t Count(const ExecutionContext& ctx, HashedName slot) { return *ctx.Input(slot).data<int64_t>(); }

template <typename T>
void AverageAccumulatesKernel(const ExecutionContext& ctx) {
  const auto max_window = static_cast<double>(ctx.Attr<int64_t>("max_average_window"));
  const int64_t updates = Count(ctx, "in_num_updates") + 1;
  int64_t terms = Count(ctx, "in_num_accumulates") + 1;
  int64_t old_terms = Count(ctx, "in_old_num_accumulates");
  const double window = std::min(max_window, static_cast<double>(updates) * ctx.Attr<double>("average_window"));
  const bool is_full = terms >= ctx.Attr<int64_t>("min_average_window") && static_cast<double>(terms) >= window;
  const bool moves_on = updates % kMaxTerms == 0;
  const int64_t n = ctx.Input("param").numel();
  T* out_1 = ctx.Output("out_sum_1")->mutable_data<T>();
  T* out_2 = ctx.Output("out_sum_2")->mutable_data<T>();
  T* out_3 = ctx.Output("out_sum_3")->mutable_data<T>();
  const T* param = ctx.Input("param").data<T>();
  const T* in_1 = ctx.Input("in_sum_1").data<T>();
  const T* in_2 = ctx.Input("in_sum_2").data<T>();
  const T* in_3 = ctx.Input("in_sum_3").data<T>();
  ParallelForEach(n, [=](int64_t i) {
    T sum_1 = in_1[i] + param[i];
    T sum_2 = in_2[i];
    T sum_3 = in_3[i];
    if (moves_on) {
      sum_2 += sum_1;
      sum_1 = 0;
    }
    if (is_full) {
      sum_3 = sum_1 + sum_2;
      sum_1 = sum_2 = 0;
    }
    out_1[i] = sum_1;
    out_2[i] = sum_2;
    out_3[i] = sum_3;
  });
  if (is_full) {
    old_terms = terms;
    terms = 0;
  }
  *ctx.Output("out_num_updates")->mutable_data<int64_t>() = updates;
  *ctx.Output("out_num_accumulates")->mutable_data<int64_t>() = terms;
  *ctx.Output("out_old_num_accumulates")->mutable_data<int64_t>() = old_terms;
}

void InferAverageAccumulates(InferShapeContext& ctx) {
  const int64_t min = ctx.Attr<int64_t>("min_average_window");
  const int64_t max = ctx.Attr<int64_t>("max_average_window");
  HR_ENFORCE(min <= max, InvalidArgument,
             "attributes min_average_window and max_average_window: expected the first to be no greater, got ", min,
             " and ", max);
  for (const char* sum : {"sum_1", "sum_2", "sum_3"}) {
    EnforceDims(ctx, std::string("in_") + sum, ctx.InputDim("param"));
    EnforceSameType(ctx, std::string("in_") + sum, "param");
    SetOutput(ctx, std::string("out_") + sum, ctx.InputDim("param"), ctx.InputType("param"));
  }
  for (const char* count : {"num_accumulates", "old_num_accumulates", "num_updates"}) {
    EnforceDims(ctx, std::string("in_") + count, {1});
    EnforceType(ctx, std::string("in_") + count, DataType::kInt64);
    SetOutput(ctx, std::string("out_") + count, {1}, DataType::kInt64);
  }
}

// An input `in_<name>` and the output `out_<name>`, its next value.
OpRegistrar&& InAndOut(OpRegistrar&& op, const std::string& name, const std::string& comment) {
  return std::move(op)
      .Input("in_" + name, comment)
      .Output("out_" + name, "its next value; may be in_" + name)
      .InPlace("out_" + name, "in_" + name);
}

}  // namespace

HEADRACE_REGISTER_OP(average_accumulates)
    .Comment(
        "Adds a parameter to the sums from which its average over the last updates is computed: (out_sum_1 + out_sum_2 "
        "+ out_sum_3) / (out_num_accumulates + out_old_num_accumulates).")
    .Input("param", "the parameter")
    .With(InAndOut, "sum_1", "dims and dtype of param: the sum of the last values")
    .With(InAndOut, "sum_2", "of the values before, moved on so that the sums stay precise")
    .With(InAndOut, "sum_3", "of the values of the window before")
    .With(InAndOut, "num_accumulates", "int64 [1]: how many values the window has, in sum_1 and sum_2")
    .With(InAndOut, "old_num_accumulates", "int64 [1]: how many the window before had")
    .With(InAndOut, "num_updates", "int64 [1]: how many values there have been")
    .Attr<double>("average_window", "how long a window is, as a part of all updates", 0.0,
                  [](const double& window) {
                    HR_ENFORCE(window >= 0, InvalidArgument,
                               "attribute average_window: expected a number of 0 or more, got ", window);
                  })
    .Attr<int64_t>("max_average_window", "how long it is at most", std::numeric_limits<int64_t>::max())
    .Attr<int64_t>("min_average_window", "how long it is at least", 10000)
    .InferShape(InferAverageAccumulates)
    .KernelTypeFrom("param")
    .Kernel<float>(AverageAccumulatesKernel<float>)
    .Kernel<double>(AverageAccumulatesKernel<double>);

}  // namespace headrace::ops
