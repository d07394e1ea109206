// sampling_id: draws a class for each row, from its probabilities.
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/philox.h"
#include "operators/random/random_stream.h"

namespace headrace::ops {
namespace {

template <typename T>
void SamplingIdKernel(const ExecutionContext& ctx) {
  const DDim& dims = ctx.Input("X").dims();
  const double min = ctx.Attr<double>("min");
  const double max = ctx.Attr<double>("max");
  const PhiloxStream stream = StreamOfRun(ctx);
  int64_t* out = ctx.Output("Out")->mutable_data<int64_t>();
  const T* x = ctx.Input("X").data<T>();
  const auto choose = [=, classes = dims[1]](int64_t r) {
    const PhiloxBlock bits = stream.Block(static_cast<uint64_t>(r));
    const double u = UniformOfBits(bits[0], bits[1]);
    double left = min + (max - min) * u;
    int64_t chosen = 0;
    while (chosen + 1 < classes && (left -= static_cast<double>(x[r * classes + chosen])) >= 0) {
      ++chosen;
    }
    out[r] = chosen;
  };
  ParallelForEach(dims[0], choose, 2 * dims[1] + 16);
}

}  // namespace

HEADRACE_REGISTER_OP(sampling_id)
    .Comment("The first class of each row up to which the probabilities add up to more than a random number.")
    .Input("X", "[N, classes], probabilities")
    .With(SeedInput)
    .Output("Out", "int64 [N]: the classes")
    .Attr<double>("min", "the random number is uniform in [min, max)", 0.0)
    .Attr<double>("max", "the random number is uniform in [min, max)", 1.0)
    .With(SeedAttr, "classes")
    .InferShape([](InferShapeContext& ctx) {
      CheckSeed(ctx);
      EnforceRank(ctx, "X", 2);
      const DDim x = ctx.InputDim("X");
      HR_ENFORCE(x[1] != 0, InvalidArgument, "input X: expected at least one class, got dims ", ToString(x));
      const double min = ctx.Attr<double>("min");
      const double max = ctx.Attr<double>("max");
      HR_ENFORCE(min <= max && max - min < 0x1p1000, InvalidArgument,
                 "attributes min and max: expected finite numbers with min <= max, got ", min, " and ", max);
      SetOutput(ctx, "Out", {x[0]}, DataType::kInt64);
      ctx.ShareLoD("X", "Out");
    })
    .Kernel<float>(SamplingIdKernel<float>)
    .Kernel<double>(SamplingIdKernel<double>);

}  // namespace headrace::ops
