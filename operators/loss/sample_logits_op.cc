// sample_logits: the logits of the true classes and of a few others, for a softmax over many classes (S. Jean, K. Cho,
// R. Memisevic and Y. Bengio, On using very large target vocabulary for neural machine translation, 2015).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/loss/log_uniform.h"
#include "operators/math/element_loop.h"
#include "operators/math/philox.h"
#include "operators/random/random_stream.h"

namespace headrace::ops {
namespace {

// What stands for an infinite logit, and what is taken from those of classes that count as true already: Fluid's.
constexpr double kFar = 1e20;

// The sizes of a problem.
struct SampleShape {
  SampleShape(const DDim& logits_dims, const DDim& samples_dims, const DDim& labels_dims)
      : rows(logits_dims[0]), classes(logits_dims[1]), samples(samples_dims[1]), true_count(labels_dims[1]) {}
  int64_t rows;
  int64_t classes;
  int64_t samples;  // of a row, the true classes first
  int64_t true_count;
};

void EnforceClass(HashedName slot, int64_t row, int64_t label, int64_t classes) {
  HR_ENFORCE(0 <= label && label < classes, OutOfRange, "input ", slot, ": row ", row, " has class ", label,
             ", expected one in [0, ", classes, ")");
}

// Draws classes, the same for every row, and writes them behind the true ones, with how often each is expected among
// those drawn. Drawn without repetition, a class of probability p is among them with 1 − (1 − p)^draws (C. Fan, M.
// Muller and I. Rezucha, 1962).
template <typename T>
void DrawClasses(const ExecutionContext& ctx, const SampleShape& s, int64_t* samples, T* probabilities) {
  const LogUniform noise(s.classes);
  const PhiloxStream stream = StreamOfRun(ctx);
  const bool unique = ctx.Attr<bool>("uniq");
  const int64_t count = s.samples - s.true_count;
  std::unordered_set<int64_t> seen;
  uint64_t draws = 0;
  for (int64_t k = 0; k < count; ++draws) {
    const PhiloxBlock bits = stream.Block(draws);
    const int64_t label = noise.Draw(UniformOfBits(bits[0], bits[1]));
    if (seen.insert(label).second || !unique) {
      samples[s.true_count + k++] = label;
    }
  }
  const auto expected = [&](int64_t label) {
    const double p = noise.Probability(label);
    return static_cast<T>(static_cast<int64_t>(draws) == count
                              ? p * static_cast<double>(count)
                              : -std::expm1(static_cast<double>(draws) * std::log1p(-p)));
  };
  for (int64_t k = s.true_count; k < s.samples; ++k) {
    probabilities[k] = expected(samples[k]);
  }
  const int64_t* labels = ctx.Input("Labels").data<int64_t>();
  for (int64_t r = 0; r < s.rows; ++r, labels += s.true_count) {
    int64_t* row = samples + r * s.samples;
    T* row_probabilities = probabilities + r * s.samples;
    if (r > 0) {
      std::copy_n(samples + s.true_count, count, row + s.true_count);
      std::copy_n(probabilities + s.true_count, count, row_probabilities + s.true_count);
    }
    for (int64_t k = 0; k < s.true_count; ++k) {
      EnforceClass("Labels", r, labels[k], s.classes);
      row[k] = labels[k];
      row_probabilities[k] = expected(labels[k]);
    }
  }
}

template <typename T>
void TakeClasses(const ExecutionContext& ctx, const SampleShape& s, int64_t* samples, T* probabilities) {
  const int64_t n = s.rows * s.samples;
  const int64_t* given = ctx.Input("CustomizedSamples").data<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    EnforceClass("CustomizedSamples", i / s.samples, given[i], s.classes);
  }
  std::copy_n(given, n, samples);
  std::copy_n(ctx.Input("CustomizedProbabilities").data<T>(), n, probabilities);
}

template <typename T>
void SampleLogitsKernel(const ExecutionContext& ctx) {
  LoDTensor* samples_tensor = ctx.Output("Samples");
  const SampleShape s(ctx.Input("Logits").dims(), samples_tensor->dims(), ctx.Input("Labels").dims());
  ctx.Output("LogitsDim")->mutable_data<T>();
  ctx.Output("LabelsDim")->mutable_data<int64_t>();
  int64_t* samples = samples_tensor->mutable_data<int64_t>();
  T* probabilities = ctx.Output("Probabilities")->mutable_data<T>();
  T* out = ctx.Output("SampledLogits")->mutable_data<T>();
  int64_t* labels = ctx.Output("SampledLabels")->mutable_data<int64_t>();
  if (s.rows == 0) {
    return;
  }
  if (ctx.Attr<bool>("use_customized_samples")) {
    TakeClasses(ctx, s, samples, probabilities);
  } else {
    DrawClasses(ctx, s, samples, probabilities);
  }
  const bool remove = ctx.Attr<bool>("remove_accidental_hits");
  const T far = static_cast<T>(kFar);
  const T* logits = ctx.Input("Logits").data<T>();
  const auto take = [=](int64_t r) {
    const int64_t* row = samples + r * s.samples;
    const int64_t* const end_of_true = row + s.true_count;
    for (int64_t k = 0; k < s.samples; ++k) {
      const bool hit = remove && k >= s.true_count && std::find(row, end_of_true, row[k]) != end_of_true;
      const T logit = logits[r * s.classes + row[k]] - (hit ? far : T(0));
      const T log_probability = std::clamp(std::log(probabilities[r * s.samples + k]), -far, far);
      out[r * s.samples + k] = std::clamp(logit - log_probability, -far, far);
    }
    std::iota(labels + r * s.true_count, labels + (r + 1) * s.true_count, 0);
  };
  ParallelForEach(s.rows, take, s.samples * (16 + s.true_count));
}

template <typename T>
void SampleLogitsGradKernel(const ExecutionContext& ctx) {
  LoDTensor* logits_grad = ctx.Output("Logits@GRAD");
  const LoDTensor& samples_tensor = ctx.Input("Samples");
  const int64_t classes = logits_grad->dims()[1];
  const int64_t width = samples_tensor.dims()[1];
  const int64_t* samples = samples_tensor.data<int64_t>();
  const T* d = ctx.Input("SampledLogits@GRAD").data<T>();
  T* dx = logits_grad->mutable_data<T>();
  const auto add = [=](int64_t row) {
    std::fill_n(dx + row * classes, classes, T(0));
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      EnforceClass("Samples", row, samples[i], classes);
      dx[row * classes + samples[i]] += d[i];
    }
  };
  ParallelForEach(samples_tensor.dims()[0], add, classes + width);
}

void InferSampleLogits(InferShapeContext& ctx) {
  CheckSeed(ctx);
  EnforceRank(ctx, "Logits", 2);
  EnforceRank(ctx, "Labels", 2);
  const DDim logits = ctx.InputDim("Logits");
  const DDim labels = ctx.InputDim("Labels");
  const DataType type = ctx.InputType("Logits");
  EnforceDims(ctx, "Labels", {logits[0], -1});
  EnforceNumbers(ctx, "Labels");
  HR_ENFORCE(labels[1] != 0, InvalidArgument, "input Labels: expected at least one true class, got dims ",
             ToString(labels));
  const int32_t count = ctx.Attr<int32_t>("num_samples");
  HR_ENFORCE(count > 0, InvalidArgument, "attribute num_samples: expected 1 or more, got ", count);
  const DDim dims = {logits[0], labels[1] < 0 ? -1 : AddExtents(labels[1], count)};
  if (ctx.Attr<bool>("use_customized_samples")) {
    for (const HashedName slot : HashedNames{"CustomizedSamples", "CustomizedProbabilities"}) {
      HR_ENFORCE(ctx.HasInput(slot), InvalidArgument, "input ", slot, ": it must be given with use_customized_samples");
      EnforceDims(ctx, slot, dims);
    }
    EnforceType(ctx, "CustomizedSamples", DataType::kInt64);
    EnforceSameType(ctx, "CustomizedProbabilities", "Logits");
  } else {
    HR_ENFORCE(logits[1] < 0 || count <= logits[1] || (logits[1] > 0 && !ctx.Attr<bool>("uniq")), InvalidArgument,
               "attribute num_samples: expected no more than the classes of Logits, ", logits[1], ", got ", count);
  }
  SetOutput(ctx, "Samples", dims, DataType::kInt64);
  SetOutput(ctx, "Probabilities", dims, type);
  SetOutput(ctx, "SampledLogits", dims, type);
  SetOutput(ctx, "SampledLabels", labels, DataType::kInt64);
  SetOutput(ctx, "LogitsDim", {logits[0], logits[1], 0}, type);
  SetOutput(ctx, "LabelsDim", {labels[0], labels[1], 0}, DataType::kInt64);
}

}  // namespace

HEADRACE_REGISTER_OP(sample_logits)
    .Comment(
        "The logits of the true classes of each row and of classes that are drawn, from a log-uniform distribution, "
        "for all rows together; less the logarithm of how often each class is expected among them, so that a softmax "
        "over them tends to that over all.")
    .Input("Logits", "[N, classes]")
    .Input("Labels", "int64 [N, number of true classes]")
    .Input("CustomizedSamples", "int64, dims of Samples: the classes, with use_customized_samples", kDispensable)
    .Input("CustomizedProbabilities", "dims of Samples, dtype of Logits: how often each class is expected",
           kDispensable)
    .With(SeedInput)
    .Output("Samples", "int64 [N, number of true classes + num_samples]: the classes, the true ones first")
    .Output("Probabilities", "dims of Samples: how often each class is expected")
    .Output("LogitsDim", "[N, classes, 0]: the dims of Logits, for the gradient")
    .Output("LabelsDim", "[N, number of true classes, 0]: the dims of Labels")
    .Output("SampledLogits", "dims of Samples")
    .Output("SampledLabels", "int64, dims of Labels: where the true classes stand in SampledLogits")
    .Attr<int32_t>("num_samples", "how many classes are drawn")
    .Attr<bool>("uniq", "whether no class is drawn twice", true)
    .Attr<bool>("remove_accidental_hits",
                "whether a class that is drawn and is a true one of the row counts as such "
                "alone: its second logit is far below the others",
                true)
    .Attr<bool>("use_customized_samples", "whether the classes are given, instead of drawn", false)
    .With(SeedAttr, "classes")
    .InferShape(InferSampleLogits)
    .KernelTypeFrom("Logits")
    .Kernel<float>(SampleLogitsKernel<float>)
    .Kernel<double>(SampleLogitsKernel<double>)
    .Gradient([](const OpDesc& op) {
      return std::vector<OpDesc>{{"sample_logits_grad",
                                  {{"LogitsDim", op.Output("LogitsDim")},
                                   {"Samples", op.Output("Samples")},
                                   {"SampledLogits@GRAD", {GradVarName(op.Output("SampledLogits")[0])}}},
                                  {{"Logits@GRAD", {GradVarName(op.Input("Logits")[0])}}},
                                  {}}};
    });

HEADRACE_REGISTER_OP(sample_logits_grad)
    .Comment("Gradient of sample_logits.")
    .Input("LogitsDim", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Samples", "as in the operator")
    .Input("SampledLogits@GRAD", "gradient of SampledLogits")
    .Output("Logits@GRAD", "dims of Logits")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "LogitsDim", 3);
      DDim dims = ctx.InputDim("LogitsDim");
      dims.pop_back();
      EnforceDims(ctx, "Samples", {dims[0], -1});
      EnforceType(ctx, "Samples", DataType::kInt64);
      EnforceDims(ctx, "SampledLogits@GRAD", ctx.InputDim("Samples"));
      EnforceSameType(ctx, "SampledLogits@GRAD", "LogitsDim");
      SetOutput(ctx, "Logits@GRAD", dims, ctx.InputType("LogitsDim"));
    })
    .KernelTypeFrom("SampledLogits@GRAD")
    .Kernel<float>(SampleLogitsGradKernel<float>)
    .Kernel<double>(SampleLogitsGradKernel<double>);

}  // namespace headrace::ops
