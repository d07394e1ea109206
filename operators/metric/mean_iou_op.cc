// mean_iou: the mean, over classes, of the intersection of predicted and true pixels over their union.
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"

namespace headrace::ops {
namespace {

// Adds the counts that an input slot of several variables holds.
void AddCounts(const ExecutionContext& ctx, HashedName slot, int32_t classes, int32_t* counts) {
  for (size_t k = 0; k < ctx.InputSize(slot); ++k) {
    const int32_t* more = ctx.Input(slot, k).data<int32_t>();
    std::transform(counts, counts + classes, more, counts, [](int32_t a, int32_t b) {
      return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
    });
  }
}

template <typename T>
void MeanIouKernel(const ExecutionContext& ctx) {
  const int32_t classes = ctx.Attr<int32_t>("num_classes");
  const LoDTensor& predictions_tensor = ctx.Input("Predictions");
  const T* predictions = predictions_tensor.data<T>();
  const T* labels = ctx.Input("Labels").data<T>();
  int32_t* wrong = ctx.Output("OutWrong")->mutable_data<int32_t>();
  int32_t* correct = ctx.Output("OutCorrect")->mutable_data<int32_t>();
  std::fill_n(wrong, classes, 0);
  std::fill_n(correct, classes, 0);
  const auto check = [classes](HashedName slot, int64_t i, T value) {
    HR_ENFORCE(0 <= value && value < classes, OutOfRange, "input ", slot, ": element ", i, " is ", value,
               ", expected a class in [0, ", classes, ")");
  };
  for (int64_t i = 0; i < predictions_tensor.numel(); ++i) {
    check("Predictions", i, predictions[i]);
    check("Labels", i, labels[i]);
    if (predictions[i] == labels[i]) {
      ++correct[labels[i]];
    } else {
      ++wrong[predictions[i]];
      ++wrong[labels[i]];
    }
  }
  AddCounts(ctx, "InWrongs", classes, wrong);
  AddCounts(ctx, "InCorrects", classes, correct);
  double sum = 0;
  int32_t seen = 0;
  for (int32_t c = 0; c < classes; ++c) {
    const double united = static_cast<double>(wrong[c]) + correct[c];
    if (united > 0) {
      sum += correct[c] / united;
      ++seen;
    }
  }
  double mean = sum / seen;
  for (size_t k = 0; k < ctx.InputSize("InMeanIou"); ++k) {
    mean += static_cast<double>(*ctx.Input("InMeanIou", k).data<float>());
  }
  *ctx.Output("OutMeanIou")->mutable_data<float>() = static_cast<float>(mean);
}

void InferMeanIou(InferShapeContext& ctx) {
  const int32_t classes = ctx.Attr<int32_t>("num_classes");
  HR_ENFORCE(0 < classes && classes <= 1 << 24, InvalidArgument,
             "attribute num_classes: expected a number in [1, 2^24], got ", classes);
  EnforceDims(ctx, "Labels", ctx.InputDim("Predictions"));
  EnforceSameType(ctx, "Labels", "Predictions");
  for (const HashedName slot : HashedNames{"InWrongs", "InCorrects"}) {
    for (size_t k = 0; k < ctx.InputSize(slot); ++k) {
      EnforceDims(ctx, slot, {classes}, k);
      EnforceType(ctx, slot, DataType::kInt32, k);
    }
  }
  for (size_t k = 0; k < ctx.InputSize("InMeanIou"); ++k) {
    EnforceDims(ctx, "InMeanIou", {1}, k);
    EnforceType(ctx, "InMeanIou", DataType::kFloat32, k);
  }
  SetOutput(ctx, "OutMeanIou", {1}, DataType::kFloat32);
  SetOutput(ctx, "OutWrong", {classes}, DataType::kInt32);
  SetOutput(ctx, "OutCorrect", {classes}, DataType::kInt32);
}

}  // namespace

HEADRACE_REGISTER_OP(mean_iou)
    .Comment("The mean of intersection over union of predicted and true pixels, over the classes that occur.")
    .Input("Predictions", "int32 or int64, any shape: classes in [0, num_classes)")
    .Input("Labels", "dims and dtype of Predictions: the true ones")
    .Input("InWrongs", "int32 [num_classes] each: counts to add", kDuplicable | kDispensable)
    .Input("InCorrects", "int32 [num_classes] each: counts to add", kDuplicable | kDispensable)
    .Input("InMeanIou", "float32 [1] each: means to add", kDuplicable | kDispensable)
    .Output("OutMeanIou", "float32 [1]; NaN if no class occurs")
    .Output("OutWrong", "int32 [num_classes]: how often each class was predicted or true, but not both")
    .Output("OutCorrect", "int32 [num_classes]: how often it was both")
    .Attr<int32_t>("num_classes", "number of classes")
    .InferShape(InferMeanIou)
    .KernelTypeFrom("Predictions")
    .Kernel<int32_t>(MeanIouKernel<int32_t>)
    .Kernel<int64_t>(MeanIouKernel<int64_t>);

}  // namespace headrace::ops
