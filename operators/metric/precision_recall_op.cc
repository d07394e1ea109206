// precision_recall: precision, recall and F1 of a classifier over many classes.
#include <algorithm>
#include <array>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/scratch.h"

namespace headrace::ops {
namespace {

// The columns of the states of a class.
enum Outcome { kTruePositive = 0, kFalsePositive = 1, kTrueNegative = 2, kFalseNegative = 3, kStates = 4 };

double Share(double part, double rest) { return part > 0 || rest > 0 ? part / (part + rest) : 1; }
double F1(double precision, double recall) {
  return precision > 0 || recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

// Macro precision, recall and F1, then micro ones.
template <typename T>
void ComputeMetrics(const T* states, int64_t classes, double* metrics) {
  std::array<double, kStates> total{};
  double precision = 0;
  double recall = 0;
  for (int64_t c = 0; c < classes; ++c, states += kStates) {
    for (size_t k = 0; k < kStates; ++k) {
      total[k] += static_cast<double>(states[k]);
    }
    const auto hits = static_cast<double>(states[kTruePositive]);
    precision += Share(hits, static_cast<double>(states[kFalsePositive]));
    recall += Share(hits, static_cast<double>(states[kFalseNegative]));
  }
  metrics[0] = precision / static_cast<double>(classes);
  metrics[1] = recall / static_cast<double>(classes);
  metrics[2] = F1(metrics[0], metrics[1]);
  metrics[3] = Share(total[kTruePositive], total[kFalsePositive]);
  metrics[4] = Share(total[kTruePositive], total[kFalseNegative]);
  metrics[5] = F1(metrics[3], metrics[4]);
}

int32_t ClassAt(const LoDTensor& tensor, HashedName slot, int64_t row, int32_t classes) {
  const int32_t value = tensor.data<int32_t>()[row];
  HR_ENFORCE(0 <= value && value < classes, OutOfRange, "input ", slot, ": row ", row, " has class ", value,
             ", expected one in [0, ", classes, ")");
  return value;
}

template <typename T>
void PrecisionRecallKernel(const ExecutionContext& ctx) {
  const int32_t classes = ctx.Attr<int32_t>("class_number");
  const LoDTensor& indices = ctx.Input("Indices");
  const T* weights = ElementsOrNull<T>(ctx, "Weights");
  const T* before = ElementsOrNull<T>(ctx, "StatesInfo");
  T* states = ctx.Output("AccumStatesInfo")->mutable_data<T>();
  Tensor batch_memory;
  const int64_t size = int64_t{classes} * kStates;
  T* batch = Scratch<T>(&batch_memory, size);
  std::fill_n(batch, size, T(0));
  T everything = 0;
  for (int64_t r = 0; r < indices.numel(); ++r) {
    const int32_t predicted = ClassAt(indices, "Indices", r, classes);
    const int32_t label = ClassAt(ctx.Input("Labels"), "Labels", r, classes);
    const T w = weights == nullptr ? T(1) : weights[r];
    const auto add = [&](int32_t c, Outcome state) { batch[int64_t{c} * kStates + state] += w; };
    everything += w;
    if (predicted == label) {
      add(label, kTruePositive);
    } else {
      add(predicted, kFalsePositive);
      add(label, kFalseNegative);
    }
  }
  for (int64_t c = 0; c < classes; ++c) {
    T* of_class = batch + c * kStates;
    of_class[kTrueNegative] =
        everything - of_class[kTruePositive] - of_class[kFalsePositive] - of_class[kFalseNegative];
  }
  ComputeMetrics<T>(batch, classes, ctx.Output("BatchMetrics")->mutable_data<double>());
  for (int64_t i = 0; i < size; ++i) {
    states[i] = batch[i] + (before == nullptr ? T(0) : before[i]);
  }
  ComputeMetrics(states, classes, ctx.Output("AccumMetrics")->mutable_data<double>());
}

void InferPrecisionRecall(InferShapeContext& ctx) {
  const int32_t classes = ctx.Attr<int32_t>("class_number");
  HR_ENFORCE(0 < classes && classes <= 1 << 24, InvalidArgument,
             "attribute class_number: expected a number in [1, 2^24], got ", classes);
  EnforceRank(ctx, "MaxProbs", 2);
  const DDim rows = {ctx.InputDim("MaxProbs")[0], 1};
  for (const HashedName slot : HashedNames{"MaxProbs", "Indices", "Labels", "Weights"}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, rows);
    }
  }
  EnforceType(ctx, "Indices", DataType::kInt32);
  EnforceType(ctx, "Labels", DataType::kInt32);
  if (ctx.HasInput("StatesInfo")) {
    EnforceDims(ctx, "StatesInfo", {classes, kStates});
  }
  for (const HashedName slot : HashedNames{"Weights", "StatesInfo"}) {
    if (ctx.HasInput(slot)) {
      EnforceSameType(ctx, slot, "MaxProbs");
    }
  }
  SetOutput(ctx, "BatchMetrics", {6}, DataType::kFloat64);
  SetOutput(ctx, "AccumMetrics", {6}, DataType::kFloat64);
  SetOutput(ctx, "AccumStatesInfo", {classes, kStates}, ctx.InputType("MaxProbs"));
}

}  // namespace

HEADRACE_REGISTER_OP(precision_recall)
    .Comment("Precision, recall and F1 of the predicted classes, of this batch and with those before it.")
    .Input("MaxProbs", "[N, 1]: how probable the predicted classes are; only dims and dtype are used")
    .Input("Indices", "int32 [N, 1]: the predicted classes, in [0, class_number)")
    .Input("Labels", "int32 [N, 1]: the true ones")
    .Input("Weights", "[N, 1], dtype of MaxProbs: how much each row counts; 1 if absent", kDispensable)
    .Input("StatesInfo", "[class_number, 4], dtype of MaxProbs: AccumStatesInfo of the batches before", kDispensable)
    .Output("BatchMetrics",
            "float64 [6]: macro precision, recall, F1 (means over classes), then micro ones (over rows)")
    .Output("AccumMetrics", "float64 [6]: the same with the batches before")
    .Output("AccumStatesInfo", "[class_number, 4]: true positives, false positives, true negatives, false negatives")
    .InPlace("AccumStatesInfo", "StatesInfo")
    .Attr<int32_t>("class_number", "number of classes")
    .InferShape(InferPrecisionRecall)
    .KernelTypeFrom("MaxProbs")
    .Kernel<float>(PrecisionRecallKernel<float>)
    .Kernel<double>(PrecisionRecallKernel<double>);

}  // namespace headrace::ops
