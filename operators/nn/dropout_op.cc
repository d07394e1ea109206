// dropout: elements set to zero at random.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/philox.h"
#include "operators/random/random_stream.h"

namespace headrace::ops {
namespace {

bool UpscalesInTraining(const AttributeIndex& op) { return op.Text("dropout_implementation") == "upscale_in_train"; }

// What the elements that stay are multiplied by in training.
double TrainingFactor(const AttributeIndex& op) {
  const double keep = 1 - op.Attr<double>("dropout_prob");
  return UpscalesInTraining(op) && keep > 0 ? 1 / keep : 1;
}

// And all elements in a test.
double TestFactor(const AttributeIndex& op) { return UpscalesInTraining(op) ? 1 : 1 - op.Attr<double>("dropout_prob"); }

// `out` may be `x`.
template <typename T>
void ApplyMask(int64_t begin, int64_t end, const T* x, const uint8_t* mask, T factor, T* out) {
  for (int64_t i = begin; i < end; ++i) {
    const T kept = x[i] * factor;
    out[i] = mask[i] != 0 ? kept : T(0);
  }
}

// out = x · factor, of a test.
template <typename T>
void Multiply(int64_t n, const T* x, T factor, T* out) {
  ParallelFor(n, kElementsPerBlock, [=](int64_t begin, int64_t end) {
    std::transform(x + begin, x + end, out + begin, [factor](T value) { return value * factor; });
  });
}

template <typename T>
void DropoutKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const int64_t n = x_tensor.numel();
  if (ctx.Attr<bool>("is_test")) {
    return Multiply(n, x, static_cast<T>(TestFactor(ctx.attrs())), out);
  }
  uint8_t* mask = ctx.Output("Mask")->mutable_data<uint8_t>();
  const PhiloxStream stream = StreamOfRun(ctx);
  const auto factor = static_cast<T>(TrainingFactor(ctx.attrs()));
  // 2^32 for a probability of 1: nothing is below it.
  const auto threshold = static_cast<uint64_t>(ctx.Attr<double>("dropout_prob") * 0x1p32);
  static_assert(kElementsPerBlock % 16 == 0);
  ParallelFor(n, kElementsPerBlock / 4, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 4) {
      const PhiloxBlock block = stream.Block(static_cast<uint64_t>(i) / 4);
      std::transform(block.begin(), block.begin() + std::min<int64_t>(4, end - i), mask + i,
                     [threshold](uint32_t bits) -> uint8_t { return bits >= threshold; });
    }
    ApplyMask(begin, end, x, mask, factor, out);
  });
}

template <typename T>
void DropoutGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  T* dx = x_grad->mutable_data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const int64_t n = x_grad->numel();
  if (ctx.Attr<bool>("is_test")) {
    return Multiply(n, d, static_cast<T>(TestFactor(ctx.attrs())), dx);
  }
  const uint8_t* mask = ctx.Input("Mask").data<uint8_t>();
  const auto factor = static_cast<T>(TrainingFactor(ctx.attrs()));
  ParallelFor(n, kElementsPerBlock, [=](int64_t begin, int64_t end) { ApplyMask(begin, end, d, mask, factor, dx); });
}

void InferDropout(InferShapeContext& ctx) {
  CheckSeed(ctx);
  ctx.ShareAll("X", "Out");
  if (!ctx.Attr<bool>("is_test")) {
    HR_ENFORCE(ctx.HasOutput("Mask"), InvalidArgument, "output Mask: it must be given, unless is_test");
    SetOutput(ctx, "Mask", ctx.InputDim("X"), DataType::kUInt8);
  }
}

// A test writes no mask.
std::vector<OpDesc> DropoutGradient(const OpDesc& op) {
  GradientUses uses{.inputs = {}, .outputs = {"Mask"}, .no_gradient = {"Seed"}};
  if (op.Attr<bool>("is_test")) {
    uses.outputs.clear();
  }
  return DefaultGradient(uses)(op);
}

OpRegistrar&& DropoutAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<double>("dropout_prob", "probability of being set to zero", 0.5,
                    [](const double& probability) {
                      HR_ENFORCE(probability >= 0 && probability <= 1, InvalidArgument,
                                 "attribute dropout_prob: expected a number in [0, 1], got ", probability);
                    })
      .Attr<bool>("is_test", "whether nothing is dropped", false)
      .With(SeedAttr, "masks")
      .Attr<std::string>(
          "dropout_implementation",
          "'upscale_in_train': what stays is divided by 1 - dropout_prob; 'downgrade_in_infer': in a test everything "
          "is multiplied by it",
          "downgrade_in_infer", [](const std::string& name) {
            HR_ENFORCE(name == "upscale_in_train" || name == "downgrade_in_infer", InvalidArgument,
                       "attribute dropout_implementation: expected 'upscale_in_train' or 'downgrade_in_infer', got '",
                       name, "'");
          });
}

}  // namespace

HEADRACE_REGISTER_OP(dropout)
    .Comment("X with elements set to zero at random. Out may be X.")
    .Input("X", "any shape")
    .With(SeedInput)
    .Output("Out", "dims of X")
    .InPlace("Out", "X")
    .Output("Mask", "uint8, dims of X: 1 where an element stayed; needed unless is_test", kDispensable)
    .With(DropoutAttrs)
    .InferShape(InferDropout)
    .Kernel<float>(DropoutKernel<float>)
    .Kernel<double>(DropoutKernel<double>)
    .Gradient(DropoutGradient);

HEADRACE_REGISTER_OP(dropout_grad)
    .Comment("Gradient of dropout. X@GRAD may be Out@GRAD.")
    .Input("Out@GRAD", "gradient of Out")
    .Input("Mask", "as in the operator", kDispensable)
    .Input("Mask@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .InPlace("X@GRAD", "Out@GRAD")
    .With(DropoutAttrs)
    .InferShape([](InferShapeContext& ctx) {
      if (!ctx.Attr<bool>("is_test")) {
        HR_ENFORCE(ctx.HasInput("Mask"), InvalidArgument, "input Mask: it must be given, unless is_test");
        EnforceDims(ctx, "Mask", ctx.InputDim("Out@GRAD"));
        EnforceType(ctx, "Mask", DataType::kUInt8);
      }
      SetOutput(ctx, "X@GRAD", ctx.InputDim("Out@GRAD"), ctx.InputType("Out@GRAD"));
    })
    .Kernel<float>(DropoutGradKernel<float>)
    .Kernel<double>(DropoutGradKernel<double>)
    .Gradient(GradientOfMask({"Mask"}));

}  // namespace headrace::ops
