// data_norm: normalisation by statistics that are parameters and gather over the whole of training.
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/layout.h"

namespace headrace::ops {
namespace {

template <typename T>
void DataNormKernel(const ExecutionContext& ctx) {
  const DDim& dims = ctx.Input("X").dims();
  T* y = ctx.Output("Y")->mutable_data<T>();
  T* means = ctx.Output("Means")->mutable_data<T>();
  T* scales = ctx.Output("Scales")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* size = ctx.Input("BatchSize").data<T>();
  const T* sum = ctx.Input("BatchSum").data<T>();
  const T* square_sum = ctx.Input("BatchSquareSum").data<T>();
  for (int64_t c = 0; c < dims[1]; ++c) {
    means[c] = sum[c] / size[c];
    scales[c] = std::sqrt(size[c] / square_sum[c]);
  }
  ParallelFor(dims[0], RowsPerBlock(dims[1]), [=, cols = dims[1]](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        y[r * cols + c] = (x[r * cols + c] - means[c]) * scales[c];
      }
    }
  });
}

// The statistics of the batch stand for the gradients of the statistics.
template <typename T>
void DataNormGradKernel(const ExecutionContext& ctx) {
  const DDim& dims = ctx.Input("X").dims();
  T* dx = MutableOrNull<T>(ctx, "X@GRAD");
  T* size = ZerosOrNull<T>(ctx, "BatchSize@GRAD");
  T* sum = ZerosOrNull<T>(ctx, "BatchSum@GRAD");
  T* square_sum = ZerosOrNull<T>(ctx, "BatchSquareSum@GRAD");
  const T* x = ctx.Input("X").data<T>();
  const T* d = ctx.Input("Y@GRAD").data<T>();
  const T* means = ctx.Input("Means").data<T>();
  const T* scales = ctx.Input("Scales").data<T>();
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  for (int64_t r = 0; r < dims[0]; ++r) {
    for (int64_t c = 0; c < dims[1]; ++c) {
      const int64_t at = r * dims[1] + c;
      if (dx != nullptr) {
        dx[at] = d[at] * scales[c];
      }
      if (size != nullptr) {
        size[c] += 1;
      }
      if (sum != nullptr) {
        sum[c] += x[at];
      }
      if (square_sum != nullptr) {
        square_sum[c] += (x[at] - means[c]) * (x[at] - means[c]) + epsilon;
      }
    }
  }
}

// Checks the inputs that operator and gradient share; returns the number of columns.
int64_t CheckDataNorm(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  const int64_t cols = ctx.InputDim("X")[1];
  for (const HashedName slot : HashedNames{"BatchSize", "BatchSum", "BatchSquareSum"}) {
    EnforceDims(ctx, slot, {cols});
    EnforceSameType(ctx, slot, "X");
  }
  return cols;
}

OpRegistrar&& DataNormSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "[N, C]")
      .Input("BatchSize", "[C], dtype of X: how many rows the statistics are of")
      .Input("BatchSum", "[C], dtype of X: the sum of their elements")
      .Input("BatchSquareSum", "[C], dtype of X: the sum of the squares of their distances from the mean")
      .Attr<double>("epsilon", "added to the squares of the batch", 1e-4,
                    [](const double& epsilon) {
                      HR_ENFORCE(0 <= epsilon && epsilon <= 1e-3, InvalidArgument,
                                 "attribute epsilon: expected a number in [0, 0.001], got ", epsilon);
                    })
      .With(TwoLayoutsAttr, "data_layout");  // of a matrix they are the same
}

}  // namespace

HEADRACE_REGISTER_OP(data_norm)
    .Comment("(X - BatchSum / BatchSize) * sqrt(BatchSize / BatchSquareSum), column by column.")
    .With(DataNormSlots)
    .Output("Y", "dims of X")
    .Output("Means", "[C], for the gradient")
    .Output("Scales", "[C], for the gradient")
    .InferShape([](InferShapeContext& ctx) {
      const int64_t cols = CheckDataNorm(ctx);
      ctx.ShareAll("X", "Y");
      SetOutput(ctx, "Means", {cols}, ctx.InputType("X"));
      SetOutput(ctx, "Scales", {cols}, ctx.InputType("X"));
    })
    .Kernel<float>(DataNormKernel<float>)
    .Kernel<double>(DataNormKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "BatchSize", "BatchSum", "BatchSquareSum"},
                               .outputs = {"Means", "Scales"},
                               .no_gradient = {}}));

HEADRACE_REGISTER_OP(data_norm_grad)
    .Comment(
        "Gradient of data_norm by X. In place of the gradients of the statistics, as in Fluid, stand those of the "
        "batch, "
        "which an update of its own adds to them.")
    .With(DataNormSlots)
    .Input("Means", "as in the operator")
    .Input("Scales", "as in the operator")
    .Input("Y@GRAD", "gradient of Y")
    .Input("Means@GRAD", "not used", kDispensable)
    .Input("Scales@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("BatchSize@GRAD", "[C]: number of rows", kDispensable)
    .Output("BatchSum@GRAD", "[C]: sum of the elements", kDispensable)
    .Output("BatchSquareSum@GRAD", "[C]: sum of the squares of the distances from the mean, plus epsilon each",
            kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      const int64_t cols = CheckDataNorm(ctx);
      for (const HashedName slot : HashedNames{"Means", "Scales"}) {
        EnforceDims(ctx, slot, {cols});
        EnforceSameType(ctx, slot, "X");
      }
      EnforceDims(ctx, "Y@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X", "BatchSize", "BatchSum", "BatchSquareSum"});
    })
    .Kernel<float>(DataNormGradKernel<float>)
    .Kernel<double>(DataNormGradKernel<double>);

}  // namespace headrace::ops
