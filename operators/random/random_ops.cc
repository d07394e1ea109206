// uniform_random, gaussian_random, truncated_gaussian_random, and uniform_random_batch_size_like and
// gaussian_random_batch_size_like. Number i of a tensor depends on the seed and on i alone,
// and is made with IEEE arithmetic only (and a logarithm in the far tails of the normal distribution), so that it is
// the same on every machine.
#include <algorithm>
#include <cmath>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/op_args.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/normal_quantile.h"
#include "operators/math/philox.h"
#include "operators/random/random_stream.h"
#include "operators/tensor/batch_size_like.h"
#include "operators/tensor/filled_output.h"

namespace headrace::ops {
namespace {

// out[i] = transform(the i-th number in (0, 1) of the stream), from several threads.
template <typename T, typename Transform>
void FillFromStream(const ExecutionContext& ctx, const Transform& transform) {
  const bool is_rows = ctx.OutputVar("Out")->IsType<SelectedRows>();
  LoDTensor* out = is_rows ? RowsToFill(ctx) : ctx.Output("Out");
  if (ctx.HasInput("Input")) {
    ResizeLikeBatch(ctx, out);
  } else if (const OpArgs args(ctx); !is_rows && args.FromInputs(kShapeSlots)) {
    out->Resize(args.Shape());
  }
  T* data = out->mutable_data<T>();
  const int64_t numel = out->numel();
  const PhiloxStream stream = StreamOfRun(ctx);
  constexpr int64_t kNumbersPerBlock = 2;
  constexpr int64_t kWork = 32;  // as many elements as one of these takes
  ParallelFor((numel + 1) / kNumbersPerBlock, RowsPerBlock(kWork), [=, &transform](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const PhiloxBlock block = stream.Block(static_cast<uint64_t>(b));
      const int64_t i = b * kNumbersPerBlock;
      data[i] = static_cast<T>(transform(UniformOpen(block, 0)));
      if (i + 1 < numel) {
        data[i + 1] = static_cast<T>(transform(UniformOpen(block, 1)));
      }
    }
  });
}

// Sets diag_num elements that lie diag_step + 1 apart, as Fluid counts them.
template <typename T>
void FillDiagonal(const ExecutionContext& ctx) {
  const bool is_rows = ctx.OutputVar("Out")->IsType<SelectedRows>();
  LoDTensor* out = is_rows ? ctx.OutputRows("Out")->mutable_value() : ctx.Output("Out");
  const int64_t num = ctx.Attr<int32_t>("diag_num");
  const int64_t step = ctx.Attr<int32_t>("diag_step");
  HR_ENFORCE(num == 0 || (num - 1) * (step + 1) < out->numel(), InvalidArgument,
             "attributes diag_num and diag_step: ", num, " elements ", step + 1, " apart do not fit into dims ",
             ToString(out->dims()));
  T* data = out->mutable_data<T>();
  for (int64_t i = 0; i < num; ++i) {
    data[i * (step + 1)] = static_cast<T>(ctx.Attr<double>("diag_val"));
  }
}

template <typename T>
void UniformKernel(const ExecutionContext& ctx) {
  const double min = ctx.Attr<double>("min");
  const double max = ctx.Attr<double>("max");
  // Rounding to T must not reach `max`.
  const T below_max = min < max ? std::nextafter(static_cast<T>(max), static_cast<T>(min)) : static_cast<T>(max);
  FillFromStream<T>(ctx, [=](double u) { return std::min(static_cast<T>(min + (max - min) * u), below_max); });
  FillDiagonal<T>(ctx);
}

template <typename T>
void GaussianKernel(const ExecutionContext& ctx) {
  const double mean = ctx.Attr<double>("mean");
  const double std = ctx.Attr<double>("std");
  FillFromStream<T>(ctx, [=](double u) { return mean + std * NormalQuantile(u); });
}

template <typename T>
void TruncatedGaussianKernel(const ExecutionContext& ctx) {
  const double mean = ctx.Attr<double>("mean");
  const double std = ctx.Attr<double>("std");
  constexpr double kBelowMinus2 = 0.022750131948179207;  // Φ(−2)
  FillFromStream<T>(ctx,
                    [=](double u) { return mean + std * NormalQuantile(kBelowMinus2 + (1 - 2 * kBelowMinus2) * u); });
}

void InferRandomShape(InferShapeContext& ctx) {
  CheckSeed(ctx);
  SetKnownOutput(ctx, "Out", OpArgs(ctx).Shape(), TypeAttr(ctx, "dtype"));
}

void InferRandomBatch(InferShapeContext& ctx) {
  CheckSeed(ctx);
  InferBatchSizeLike(ctx);
}

void CheckUniformAttrs(const InferShapeContext& ctx) {
  const double min = ctx.Attr<double>("min");
  const double max = ctx.Attr<double>("max");
  HR_ENFORCE(std::isfinite(min) && std::isfinite(max) && min <= max, InvalidArgument,
             "attributes min and max: expected finite numbers with min <= max, got ", min, " and ", max);
  const int32_t num = ctx.Attr<int32_t>("diag_num");
  const int32_t step = ctx.Attr<int32_t>("diag_step");
  HR_ENFORCE(num >= 0 && step >= 0, InvalidArgument, "attributes diag_num and diag_step: expected 0 or more, got ", num,
             " and ", step);
}

OpRegistrar&& CommonAttrs(OpRegistrar&& op, unsigned out_flags) {
  return std::move(op)
      .With(SeedInput)
      .Output("Out", "the tensor of random numbers", out_flags)
      .Attr<int32_t>("dtype", "DataType of Out", static_cast<int32_t>(DataType::kFloat32))
      .With(SeedAttr, "numbers")
      .KernelTypeFromAttr("dtype");
}

OpRegistrar&& UniformAttrs(OpRegistrar&& op, unsigned out_flags) {
  return CommonAttrs(std::move(op), out_flags)
      .Attr<double>("min", "lower bound", -1.0)
      .Attr<double>("max", "upper bound", 1.0)
      .Attr<int32_t>("diag_num", "number of elements, from the first on, that are diag_val instead", 0)
      .Attr<int32_t>("diag_step", "how many random elements lie between two of these", 0)
      .Attr<double>("diag_val", "see diag_num", 1.0)
      .Kernel<float>(UniformKernel<float>)
      .Kernel<double>(UniformKernel<double>);
}

OpRegistrar&& GaussianAttrs(OpRegistrar&& op) {
  return CommonAttrs(std::move(op), kPlain)
      .Attr<double>("mean", "mean", 0.0,
                    [](const double& mean) {
                      HR_ENFORCE(std::isfinite(mean), InvalidArgument, "attribute mean: expected a finite number, got ",
                                 mean);
                    })
      .Attr<double>("std", "standard deviation", 1.0, [](const double& std) {
        HR_ENFORCE(std::isfinite(std) && std >= 0, InvalidArgument, "attribute std: expected a number >= 0, got ", std);
      });
}

}  // namespace

HEADRACE_REGISTER_OP(uniform_random)
    .Comment("Random numbers uniform in [min, max), from Philox4x32-10.")
    .With(IntsInputs, kShapeSlots)
    .Attr<std::vector<int64_t>>("shape", "dims of Out", {})
    .With(UniformAttrs, kSelectedRows)
    .InferShape([](InferShapeContext& ctx) {
      CheckUniformAttrs(ctx);
      InferRandomShape(ctx);
      KeepSelectedRows(ctx);
    });

HEADRACE_REGISTER_OP(uniform_random_batch_size_like)
    .Comment("As uniform_random, with one dimension taken from another tensor.")
    .With(BatchSizeLikeSlots)
    .With(UniformAttrs, kPlain)
    .InferShape([](InferShapeContext& ctx) {
      CheckUniformAttrs(ctx);
      InferRandomBatch(ctx);
    });

HEADRACE_REGISTER_OP(gaussian_random)
    .Comment("Normally distributed random numbers, from Philox4x32-10 by the inverse of the distribution function.")
    .Attr<std::vector<int64_t>>("shape", "dims of Out")
    .With(GaussianAttrs)
    .InferShape(InferRandomShape)
    .Kernel<float>(GaussianKernel<float>)
    .Kernel<double>(GaussianKernel<double>);

HEADRACE_REGISTER_OP(gaussian_random_batch_size_like)
    .Comment("As gaussian_random, with one dimension taken from another tensor.")
    .With(BatchSizeLikeSlots)
    .With(GaussianAttrs)
    .InferShape(InferRandomBatch)
    .Kernel<float>(GaussianKernel<float>)
    .Kernel<double>(GaussianKernel<double>);

HEADRACE_REGISTER_OP(truncated_gaussian_random)
    .Comment("As gaussian_random, from the part of the distribution within two standard deviations of the mean.")
    .Attr<std::vector<int64_t>>("shape", "dims of Out")
    .With(GaussianAttrs)
    .InferShape(InferRandomShape)
    .Kernel<float>(TruncatedGaussianKernel<float>)
    .Kernel<double>(TruncatedGaussianKernel<double>);

}  // namespace headrace::ops
