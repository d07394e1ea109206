// dpsgd: gradient descent with differential privacy (M. Abadi et al., Deep learning with differential privacy, 2016).
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/math/element_loop.h"
#include "operators/math/normal_quantile.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/philox.h"
#include "operators/optimizer/optimizer.h"
#include "operators/random/random_stream.h"

namespace headrace::ops {
namespace {

template <typename T>
void DpsgdKernel(const ExecutionContext& ctx) {
  const auto rate = static_cast<T>(ScalarInput(ctx, "LearningRate"));
  const auto clip = static_cast<T>(ctx.Attr<double>("clip"));
  T* param_out = Mutable<T>(ctx, "ParamOut");
  const T* param = Elements<T>(ctx, "Param");
  const T* grad = Elements<T>(ctx, "Grad");
  const int64_t numel = ctx.Input("Param").numel();
  const T norm = std::sqrt(ParallelSumOf<T>(numel, [grad](int64_t i) { return grad[i] * grad[i]; }));
  const T factor = norm > clip ? clip / norm : T(1);
  const double drawn = NormalQuantile(UniformOpen(StreamOfRun(ctx).Block(0), 0));
  const auto noise = static_cast<T>(drawn * ctx.Attr<double>("sigma") / ctx.Attr<double>("batch_size"));
  ParallelFor(numel, kElementsPerBlock, [=](int64_t begin, int64_t end) {
    HEADRACE_INDEPENDENT_ITERATIONS
    for (int64_t i = begin; i < end; ++i) {
      param_out[i] = param[i] - rate * (grad[i] * factor + noise);
    }
  });
}

OpRegistrar&& PositiveAttr(OpRegistrar&& op, const char* name, const char* comment, double value) {
  return std::move(op).Attr<double>(name, comment, value, [name](const double& given) {
    HR_ENFORCE(given > 0, InvalidArgument, "attribute ", name, ": expected a number above 0, got ", given);
  });
}

}  // namespace

HEADRACE_REGISTER_OP(dpsgd)
    .Comment(
        "Param - LearningRate (Grad / max(1, ‖Grad‖ / clip) + sigma n / batch_size), where n is one number for all "
        "elements, normally distributed. In Fluid, it is another one in each run.")
    .Input("Param", "the parameter")
    .Input("Grad", "its gradient; dims and dtype of Param")
    .With(LearningRate)
    .With(SeedInput)
    .Output("ParamOut", "the new parameter; may be Param")
    .InPlace("ParamOut", "Param")
    .With(PositiveAttr, "clip", "how long the gradient may be", 10.0)
    .With(PositiveAttr, "batch_size", "divides the noise", 16.0)
    .Attr<double>("sigma", "standard deviation of the noise", 1.0,
                  [](const double& sigma) {
                    HR_ENFORCE(sigma >= 0, InvalidArgument, "attribute sigma: expected a number of 0 or more, got ",
                               sigma);
                  })
    .With(SeedAttr, "numbers")
    .InferShape([](InferShapeContext& ctx) {
      CheckSeed(ctx);
      InferUpdates(ctx, {{"ParamOut", "Param"}});
    })
    .Kernel<float>(DpsgdKernel<float>)
    .Kernel<double>(DpsgdKernel<double>);

}  // namespace headrace::ops
