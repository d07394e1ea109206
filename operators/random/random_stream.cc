#include "operators/random/random_stream.h"

#include <cstdint>
#include <random>
#include <utility>

#include "operators/common/shape_inference.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {

OpRegistrar&& SeedInput(OpRegistrar&& op) {
  return std::move(op).Input("Seed",
                             "int32 or int64 [1]; a counter that has each run draw something of its own, and the same "
                             "whenever it is the same",
                             kDispensable);
}

OpRegistrar&& SeedAttr(OpRegistrar&& op, const std::string& what) {
  return std::move(op).Attr<int32_t>(
      "seed", "the same " + what + " whenever it (and Seed) is the same; 0 without Seed: others at each run", 0);
}

void CheckSeed(const InferShapeContext& ctx) {
  if (ctx.HasInput("Seed")) {
    HR_ENFORCE(Fits(Numel(ctx.InputDim("Seed")), 1), InvalidArgument,
               "input Seed: expected a single element, got dims ", ToString(ctx.InputDim("Seed")));
    EnforceIntegers(ctx, "Seed");
  }
}

PhiloxStream StreamOfRun(const ExecutionContext& ctx) {
  const auto seed = static_cast<uint32_t>(ctx.Attr<int32_t>("seed"));
  if (const LoDTensor* counter = ctx.InputOrNull("Seed"); counter != nullptr) {
    const int64_t run = counter->dtype() == DataType::kInt32 ? *counter->data<int32_t>() : *counter->data<int64_t>();
    return PhiloxStream(seed, static_cast<uint64_t>(run));
  }
  if (seed != 0) {
    return PhiloxStream(seed);
  }
  std::random_device entropy;
  const uint64_t high = entropy();
  return PhiloxStream(high << 32 | entropy());
}

}  // namespace headrace::ops
