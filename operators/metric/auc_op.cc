// auc: the area under the ROC curve, from histograms of predictions.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// The histograms of positive or negative rows: one for each of the last `slide_steps` batches, then their sum, then how
// many batches there have been. Without steps: of all rows since the start.
// Fluid up to 1.6 has neither sum nor number: the batches stand in their order, the oldest one first.
struct Histograms {
  explicit Histograms(const AttributeIndex& op)
      : buckets(int64_t{op.Attr<int32_t>("num_thresholds")} + 1), steps(op.Attr<int32_t>("slide_steps")) {}
  int64_t Numel() const { return (1 + steps) * buckets + (steps > 0 ? 1 : 0); }
  int64_t NumelOfBatches() const { return std::max<int64_t>(steps, 1) * buckets; }
  int64_t SumAt() const { return steps * buckets; }
  int64_t CounterAt() const { return (steps + 1) * buckets; }
  int64_t buckets;
  int64_t steps;
};

// The batch that is the oldest one makes room for the current one, whose place is returned.
int64_t BeginBatch(const Histograms& h, int64_t* statistics) {
  if (h.steps == 0) {
    return 0;
  }
  const int64_t batches = statistics[h.CounterAt()];
  HR_ENFORCE(batches >= 0, InvalidArgument, "inputs StatPos and StatNeg: expected a number of batches of 0 or more as ",
             "the last element, got ", batches);
  const int64_t at = batches % h.steps * h.buckets;
  for (int64_t i = 0; i < h.buckets; ++i) {
    statistics[h.SumAt() + i] -= statistics[at + i];
    statistics[at + i] = 0;
  }
  return at;
}

void EndBatch(const Histograms& h, int64_t at, int64_t* statistics) {
  if (h.steps > 0) {
    for (int64_t i = 0; i < h.buckets; ++i) {
      statistics[h.SumAt() + i] += statistics[at + i];
    }
    ++statistics[h.CounterAt()];
  }
}

// The same where the batches stand in their order.
int64_t ShiftBatches(const Histograms& h, int64_t* statistics) {
  const int64_t last = (h.steps - 1) * h.buckets;
  std::copy(statistics + h.buckets, statistics + last + h.buckets, statistics);
  std::fill_n(statistics + last, h.buckets, 0);
  return last;
}

std::vector<int64_t> SumOfBatches(const Histograms& h, const int64_t* statistics) {
  std::vector<int64_t> sum(static_cast<size_t>(h.buckets));
  for (int64_t i = 0; i < h.NumelOfBatches(); ++i) {
    sum[static_cast<size_t>(i % h.buckets)] += statistics[i];
  }
  return sum;
}

// By the trapezoidal rule. Without positive or without negative rows: 0.
double Area(const int64_t* positive, const int64_t* negative, int64_t buckets) {
  double area = 0;
  double positives = 0;
  double negatives = 0;
  for (int64_t i = buckets; i-- > 0;) {
    const auto more_positives = static_cast<double>(positive[i]);
    const auto more_negatives = static_cast<double>(negative[i]);
    area += more_negatives * (2 * positives + more_positives) / 2;
    positives += more_positives;
    negatives += more_negatives;
  }
  return positives > 0 && negatives > 0 ? area / positives / negatives : 0;
}

int64_t* Continued(const ExecutionContext& ctx, const char* in, const char* out) {
  const LoDTensor& from = ctx.Input(in);
  int64_t* to = ctx.Output(out)->mutable_data<int64_t>();
  if (to != from.data<int64_t>()) {
    std::copy_n(from.data<int64_t>(), from.numel(), to);
  }
  return to;
}

template <typename T>
void AucKernel(const ExecutionContext& ctx) {
  const Histograms h(ctx.attrs());
  const DDim& dims = ctx.Input("Predict").dims();
  const T* predict = ctx.Input("Predict").data<T>();
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  int64_t* positive = Continued(ctx, "StatPos", "StatPosOut");
  int64_t* negative = Continued(ctx, "StatNeg", "StatNegOut");
  // Without steps, both ways are one.
  const bool in_order = h.steps > 0 && ctx.Input("StatPos").numel() == h.NumelOfBatches();
  for (int64_t r = 0; r < dims[0]; ++r) {
    const T p = predict[(r + 1) * dims[1] - 1];
    HR_ENFORCE(p >= 0 && p <= 1, InvalidArgument, "input Predict: row ", r, " is ", p,
               ", expected a probability in [0, 1]");
  }
  const int64_t positive_at = in_order ? ShiftBatches(h, positive) : BeginBatch(h, positive);
  const int64_t negative_at = in_order ? ShiftBatches(h, negative) : BeginBatch(h, negative);
  for (int64_t r = 0; r < dims[0]; ++r) {
    const auto p = static_cast<double>(predict[(r + 1) * dims[1] - 1]);
    const auto bucket = static_cast<int64_t>(p * static_cast<double>(h.buckets - 1));
    ++(label[r] != 0 ? positive[positive_at + bucket] : negative[negative_at + bucket]);
  }
  double* area = ctx.Output("AUC")->mutable_data<double>();
  if (in_order) {
    *area = Area(SumOfBatches(h, positive).data(), SumOfBatches(h, negative).data(), h.buckets);
    return;
  }
  EndBatch(h, positive_at, positive);
  EndBatch(h, negative_at, negative);
  *area = Area(positive + h.SumAt(), negative + h.SumAt(), h.buckets);
}

void InferAuc(InferShapeContext& ctx) {
  const Histograms h(ctx.attrs());
  EnforceRank(ctx, "Predict", 2);
  const DDim predict = ctx.InputDim("Predict");
  HR_ENFORCE(predict[1] < 0 || predict[1] == 1 || predict[1] == 2, InvalidArgument,
             "input Predict: expected dims [N, 1] or [N, 2], got ", ToString(predict));
  EnforceDims(ctx, "Label", ctx.InputDim("Label").size() == 1 ? DDim{predict[0]} : DDim{predict[0], 1});
  EnforceNumbers(ctx, "Label");
  for (const HashedName slot : HashedNames{"StatPos", "StatNeg"}) {
    const DDim statistics = ctx.InputDim(slot);
    HR_ENFORCE(Fits(Numel(statistics), h.Numel()) || Fits(Numel(statistics), h.NumelOfBatches()), InvalidArgument,
               "input ", slot, ": expected ", h.Numel(), " elements (attributes num_thresholds and slide_steps)",
               h.steps > 0 ? ", or " + std::to_string(h.NumelOfBatches()) + " as Fluid had up to 1.6" : "",
               ", got dims ", ToString(statistics));
    EnforceType(ctx, slot, DataType::kInt64);
    SetOutput(ctx, slot.ToString() + "Out", statistics, DataType::kInt64);
  }
  HR_ENFORCE(Fits(Numel(ctx.InputDim("StatNeg")), Numel(ctx.InputDim("StatPos"))), InvalidArgument,
             "input StatNeg: expected as many elements as StatPos has, ", Numel(ctx.InputDim("StatPos")), ", got dims ",
             ToString(ctx.InputDim("StatNeg")));
  SetOutput(ctx, "AUC", {1}, DataType::kFloat64);
}

}  // namespace

HEADRACE_REGISTER_OP(auc)
    .Comment("The area under the ROC curve of the last batches, or of all.")
    .Input("Predict", "[N, 1] or [N, 2]; the last column is the probability of the positive class")
    .Input("Label", "int64 [N, 1] or [N]: 0 or 1")
    .Input(
        "StatPos",
        "int64, (1 + slide_steps) (num_thresholds + 1) elements, and one more with slide_steps: how often the "
        "predictions of positive rows fell into each bucket, for each of the last batches and in total; or, as Fluid "
        "had up to 1.6, slide_steps (num_thresholds + 1) elements: for each of the last batches, the oldest one first")
    .Input("StatNeg", "the same of negative rows")
    .Output("AUC", "float64 [1]; 0 without positive or without negative rows")
    .Output("StatPosOut", "StatPos with this batch; may be StatPos")
    .Output("StatNegOut", "StatNeg with this batch; may be StatNeg")
    .InPlace("StatPosOut", "StatPos")
    .InPlace("StatNegOut", "StatNeg")
    .Attr<std::string>("curve", "'ROC', the only one", "ROC",
                       [](const std::string& curve) {
                         HR_ENFORCE(curve == "ROC", InvalidArgument, "attribute curve: expected 'ROC', got '", curve,
                                    "'");
                       })
    .Attr<int32_t>("num_thresholds", "number of buckets, less 1", (1 << 12) - 1,
                   [](const int32_t& n) {
                     HR_ENFORCE(0 < n && n <= 1 << 24, InvalidArgument,
                                "attribute num_thresholds: expected a number in [1, 2^24], got ", n);
                   })
    .Attr<int32_t>("slide_steps", "how many batches count; 0: all", 1,
                   [](const int32_t& steps) {
                     HR_ENFORCE(0 <= steps && steps <= 1 << 16, InvalidArgument,
                                "attribute slide_steps: expected a number in [0, 2^16], got ", steps);
                   })
    .InferShape(InferAuc)
    .KernelTypeFrom("Predict")
    .Kernel<float>(AucKernel<float>)
    .Kernel<double>(AucKernel<double>);

}  // namespace headrace::ops
