// clip, clip_by_norm: elements, or a whole tensor, kept small.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/row_merge.h"

namespace headrace::ops {
namespace {

// Selected rows, each once, with `change` applied to their elements.
template <typename T, typename Change>
void ChangeRows(const ExecutionContext& ctx, const Change& change) {
  SelectedRows merged;
  MergeRows<T>(ctx.InputRows("X"), &merged);
  change(static_cast<T*>(merged.mutable_value()->raw_mutable_data()), merged.value().numel());
  *ctx.OutputRows("Out") = std::move(merged);
}

template <typename T>
void ClipKernel(const ExecutionContext& ctx) {
  if (ctx.IsSelectedRows("X")) {
    ChangeRows<T>(ctx, [&ctx](T* x, int64_t n) {
      const auto low = static_cast<T>(ctx.Attr<double>("min"));
      const auto high = static_cast<T>(ctx.Attr<double>("max"));
      std::transform(x, x + n, x, [=](T value) { return value < low ? low : value > high ? high : value; });
    });
    return;
  }
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const auto low = static_cast<T>(ctx.Attr<double>("min"));
  const auto high = static_cast<T>(ctx.Attr<double>("max"));
  ParallelFor(out_tensor->numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = x[i] < low ? low : x[i] > high ? high : x[i];
    }
  });
}

template <typename T>
void ClipGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  T* dx = x_grad->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const auto low = static_cast<T>(ctx.Attr<double>("min"));
  const auto high = static_cast<T>(ctx.Attr<double>("max"));
  ParallelFor(x_grad->numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    HEADRACE_INDEPENDENT_ITERATIONS
    for (int64_t i = begin; i < end; ++i) {
      const T value = d[i];  // read in any case, so that the compiler can vectorise the loop
      dx[i] = (static_cast<int>(low < x[i]) & static_cast<int>(x[i] < high)) != 0 ? value : T(0);
    }
  });
}

void InferLikeX(InferShapeContext& ctx) {
  ctx.ShareAll("X", "Out");
  if (ctx.InputIsSelectedRows("X")) {
    ctx.SetOutputSelectedRows("Out");
  }
}

void CheckBounds(const AttributeIndex& op) {
  const double low = op.Attr<double>("min");
  const double high = op.Attr<double>("max");
  HR_ENFORCE(low <= high, InvalidArgument, "attributes min and max: expected min <= max, got ", low, " and ", high);
}

template <typename T>
void ClipByNormKernel(const ExecutionContext& ctx) {
  if (ctx.IsSelectedRows("X")) {
    ChangeRows<T>(ctx, [&ctx](T* x, int64_t n) {
      const T norm = std::sqrt(SumOf<T>(n, [x](int64_t i) { return x[i] * x[i]; }));
      const auto max = static_cast<T>(ctx.Attr<double>("max_norm"));
      if (norm > max) {
        std::transform(x, x + n, x, [factor = max / norm](T value) { return value * factor; });
      }
    });
    return;
  }
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const int64_t n = out_tensor->numel();
  const T norm = std::sqrt(ParallelSumOf<T>(n, [x](int64_t i) { return x[i] * x[i]; }));
  const auto max = static_cast<T>(ctx.Attr<double>("max_norm"));
  const T factor = norm > max ? max / norm : T(1);
  ParallelForEach(n, [=](int64_t i) { out[i] = x[i] * factor; });
}

OpRegistrar&& ClipAttrs(OpRegistrar&& op) {
  return std::move(op).Attr<double>("min", "the least result").Attr<double>("max", "the greatest result");
}

}  // namespace

HEADRACE_REGISTER_OP(clip)
    .Comment("X, not less than min and not more than max, element by element. Out may be X.")
    .Input("X", "any shape, or SelectedRows, of which each is taken once", kSelectedRows)
    .Output("Out", "dims, dtype and LoD of X", kSelectedRows)
    .InPlace("Out", "X")
    .With(ClipAttrs)
    .InferShape([](InferShapeContext& ctx) {
      CheckBounds(ctx.attrs());
      InferLikeX(ctx);
    })
    .Kernel<float>(ClipKernel<float>)
    .Kernel<double>(ClipKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(clip_grad)
    .Comment("Gradient of clip. X@GRAD may be Out@GRAD.")
    .Input("X", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .InPlace("X@GRAD", "Out@GRAD")
    .With(ClipAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(ClipGradKernel<float>)
    .Kernel<double>(ClipGradKernel<double>)
    .Gradient(GradientOfMask({"X"}));

HEADRACE_REGISTER_OP(clip_by_norm)
    .Comment("X, scaled down so that its Euclidean norm is max_norm if it is greater. Out may be X.")
    .Input("X", "any shape, or SelectedRows, of which each is taken once", kSelectedRows)
    .Output("Out", "dims, dtype and LoD of X", kSelectedRows)
    .InPlace("Out", "X")
    .Attr<double>("max_norm", "the greatest norm", {},
                  [](const double& norm) {
                    HR_ENFORCE(norm > 0, InvalidArgument, "attribute max_norm: expected a positive number, got ", norm);
                  })
    .InferShape(InferLikeX)
    .Kernel<float>(ClipByNormKernel<float>)
    .Kernel<double>(ClipByNormKernel<double>);

}  // namespace headrace::ops
