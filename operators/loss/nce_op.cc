// nce: noise-contrastive estimation, a loss over many classes from a few (M. Gutmann and A. Hyvärinen,
// Noise-contrastive estimation, 2010).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/loss/log_uniform.h"
#include "operators/loss/row_gradient.h"
#include "operators/math/element_loop.h"
#include "operators/math/numbered_rows.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/philox.h"
#include "operators/math/scratch.h"
#include "operators/math/sigmoid.h"
#include "operators/math/tensor_size.h"
#include "operators/random/random_stream.h"

namespace headrace::ops {
namespace {

enum Sampler : int32_t { kUniform = 0, kLogUniform = 1, kCustom = 2 };

// The distribution that classes of noise are drawn from.
class Noise {
 public:
  explicit Noise(const ExecutionContext& ctx)
      : sampler_(ctx.Attr<int32_t>("sampler")),
        classes_(ctx.Attr<int32_t>("num_total_classes")),
        log_uniform_(classes_) {
    if (sampler_ == kCustom) {
      probability_ = ctx.Input("CustomDistProbs").data<float>();
      alias_ = ctx.Input("CustomDistAlias").data<int32_t>();
      alias_probability_ = ctx.Input("CustomDistAliasProbs").data<float>();
    }
  }

  // How probable `label` is.
  double Probability(int64_t label) const {
    switch (sampler_) {
      case kUniform:
        return 1.0 / static_cast<double>(classes_);
      case kLogUniform:
        return log_uniform_.Probability(label);
      default:
        return static_cast<double>(probability_[label]);
    }
  }

  // A class, from two numbers that are uniform in [0, 1).
  int64_t Draw(double u, double v) const {
    const auto n = static_cast<double>(classes_);
    switch (sampler_) {
      case kUniform:
        return static_cast<int64_t>(u * n);
      case kLogUniform:
        return log_uniform_.Draw(u);
      default: {  // A. J. Walker's alias method, 1977
        const auto column = static_cast<int64_t>(u * n);
        if (v < static_cast<double>(alias_probability_[column])) {
          return column;
        }
        const int64_t alias = alias_[column];
        HR_ENFORCE(0 <= alias && alias < classes_, OutOfRange, "input CustomDistAlias: element ", column, " is ", alias,
                   ", expected a class in [0, ", classes_, ")");
        return alias;
      }
    }
  }

 private:
  int32_t sampler_;
  int64_t classes_;
  LogUniform log_uniform_;
  const float* probability_ = nullptr;
  const int32_t* alias_ = nullptr;
  const float* alias_probability_ = nullptr;
};

// Writes the true classes of each row and then those of noise.
void SampleLabels(const ExecutionContext& ctx, const Noise& noise, int64_t* samples) {
  const DDim& label_dims = ctx.Input("Label").dims();
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  const int64_t classes = ctx.Attr<int32_t>("num_total_classes");
  const int64_t count = ctx.Attr<int32_t>("num_neg_samples");
  const auto& custom = ctx.Attr<std::vector<int32_t>>("custom_neg_classes");
  const int64_t true_count = label_dims.size() == 2 ? label_dims[1] : 1;
  const PhiloxStream stream = StreamOfRun(ctx);
  for (int64_t r = 0; r < label_dims[0]; ++r) {
    for (int64_t k = 0; k < true_count; ++k, ++label) {
      HR_ENFORCE(0 <= *label && *label < classes, OutOfRange, "input Label: row ", r, " has class ", *label,
                 ", expected one in [0, ", classes, ")");
      *samples++ = *label;
    }
    if (!custom.empty()) {
      samples = std::copy(custom.begin(), custom.end(), samples);
      continue;
    }
    for (int64_t k = 0; k < count; ++k) {
      const PhiloxBlock bits = stream.Block(static_cast<uint64_t>(r * count + k));
      *samples++ = noise.Draw(UniformOfBits(bits[0], bits[1]), UniformOfBits(bits[2], bits[3]));
    }
  }
}

// The sizes of a problem.
struct NceShape {
  explicit NceShape(const ExecutionContext& ctx)
      : rows(ctx.Input("Input").dims()[0]),
        width(ctx.Input("Input").dims()[1]),
        true_count(ctx.Input("Label").dims().size() == 2 ? ctx.Input("Label").dims()[1] : 1),
        samples(true_count + ctx.Attr<int32_t>("num_neg_samples")),
        noise_samples(static_cast<double>(ctx.Attr<int32_t>("num_neg_samples"))) {}
  int64_t rows;
  int64_t width;
  int64_t true_count;
  int64_t samples;  // of a row, the true classes first
  double noise_samples;
};

// cost = Σ true −log(o / (o + b)) + Σ noise −log(b / (o + b)), with o = sigmoid(x · w + bias) and b the number of times
// that the class is expected as noise. Computed from the logarithms of o and b: o itself may be 0.
template <typename T>
void NceKernel(const ExecutionContext& ctx) {
  const NceShape s(ctx);
  const Noise noise(ctx);
  T* cost = ctx.Output("Cost")->mutable_data<T>();
  T* logits = ctx.Output("SampleLogits")->mutable_data<T>();
  int64_t* labels = ctx.Output("SampleLabels")->mutable_data<int64_t>();
  SampleLabels(ctx, noise, labels);
  const T* x = ctx.Input("Input").data<T>();
  const T* weight = ctx.Input("Weight").data<T>();
  const T* bias = ElementsOrNull<T>(ctx, "Bias");
  const T* sample_weight = ElementsOrNull<T>(ctx, "SampleWeight");
  const auto compare = [=](int64_t r) {
    const T* row = x + r * s.width;
    T sum = 0;
    for (int64_t k = 0; k < s.samples; ++k) {
      const int64_t label = labels[r * s.samples + k];
      const T* w = weight + label * s.width;
      const T dot = SumOf<T>(s.width, [=](int64_t i) { return row[i] * w[i]; });
      const T logit = dot + (bias == nullptr ? T(0) : bias[label]);
      const T log_ratio = -Softplus(-logit) - static_cast<T>(std::log(noise.Probability(label) * s.noise_samples));
      sum += Softplus(k < s.true_count ? -log_ratio : log_ratio);  // of o to b
      logits[r * s.samples + k] = 1 / (1 + std::exp(-logit));
    }
    cost[r] = sum * (sample_weight == nullptr ? T(1) : sample_weight[r]);
  };
  ParallelForEach(s.rows, compare, s.samples * (s.width + 64));
}

template <typename T>
void NceGradKernel(const ExecutionContext& ctx) {
  const NceShape s(ctx);
  const Noise noise(ctx);
  T* dx = ZerosOrNull<T>(ctx, "Input@GRAD");
  const T* x = ctx.Input("Input").data<T>();
  const T* weight = ctx.Input("Weight").data<T>();
  const T* logits = ctx.Input("SampleLogits").data<T>();
  const int64_t* labels = ctx.Input("SampleLabels").data<int64_t>();
  const T* sample_weight = ElementsOrNull<T>(ctx, "SampleWeight");
  const T* d = ctx.Input("Cost@GRAD").data<T>();
  const int64_t classes = ctx.Attr<int32_t>("num_total_classes");
  for (int64_t i = 0, n = s.rows * s.samples; i < n; ++i) {
    HR_ENFORCE(0 <= labels[i] && labels[i] < classes, OutOfRange, "input SampleLabels: row ", i / s.samples,
               " has class ", labels[i], ", expected one in [0, ", classes, ")");
  }
  const bool sparse = ctx.Attr<bool>("is_sparse");
  const PoolVector<int64_t> sampled =
      sparse ? SortedOnce({labels, labels + s.rows * s.samples}) : PoolVector<int64_t>();
  const RowGradient<T> weight_grad(ctx, "Weight@GRAD", "Weight", classes, sparse, sampled);
  const RowGradient<T> bias_grad(ctx, "Bias@GRAD", "Bias", classes, sparse, sampled);
  Tensor slope_memory;
  T* slopes = Scratch<T>(&slope_memory, s.rows * s.samples);  // the gradients of the scores
  const auto compare = [=](int64_t r) {
    const T factor = d[r] * (sample_weight == nullptr ? T(1) : sample_weight[r]);
    for (int64_t k = 0; k < s.samples; ++k) {
      const int64_t at = r * s.samples + k;
      const T o = logits[at];
      const auto b = static_cast<T>(noise.Probability(labels[at]) * s.noise_samples);
      // b = 0 has a limit even where o is 0.
      const T noise_slope = b == 0 ? 1 - o : o * (1 - o) / (o + b);
      const T true_slope = b == 0 ? T(0) : b * (o - 1) / (o + b);
      slopes[at] = factor * (k < s.true_count ? true_slope : noise_slope);
      if (dx != nullptr) {
        AddScaled(slopes[at], weight + labels[at] * s.width, s.width, dx + r * s.width);
      }
    }
  };
  ParallelForEach(s.rows, compare, s.samples * (s.width + 16));
  ForEachNumberedRow(labels, s.rows * s.samples, classes, s.width, [&](int64_t at, int64_t label) {
    if (weight_grad) {
      AddScaled(slopes[at], x + at / s.samples * s.width, s.width, weight_grad.Row(label));
    }
    if (bias_grad) {
      *bias_grad.Row(label) += slopes[at];
    }
  });
}

// Checks the inputs that operator and gradient share; returns the dims of SampleLabels.
DDim CheckNce(const InferShapeContext& ctx) {
  const int32_t classes = ctx.Attr<int32_t>("num_total_classes");
  const int32_t count = ctx.Attr<int32_t>("num_neg_samples");
  const auto& custom = ctx.Attr<std::vector<int32_t>>("custom_neg_classes");
  HR_ENFORCE(classes > 0, InvalidArgument, "attribute num_total_classes: expected 1 or more, got ", classes);
  HR_ENFORCE(count > 0, InvalidArgument, "attribute num_neg_samples: expected 1 or more, got ", count);
  HR_ENFORCE(custom.empty() || static_cast<int64_t>(custom.size()) == count, InvalidArgument,
             "attribute custom_neg_classes: expected ", count, " classes (attribute num_neg_samples) or none, got ",
             ToString(Attribute(custom)));
  for (const int32_t label : custom) {
    HR_ENFORCE(0 <= label && label < classes, InvalidArgument, "attribute custom_neg_classes: expected classes in [0, ",
               classes, "), got ", label);
  }
  EnforceRank(ctx, "Input", 2);
  const DDim input = ctx.InputDim("Input");
  const DDim label = ctx.InputDim("Label");
  HR_ENFORCE((label.size() == 1 || label.size() == 2) && Fits(label[0], input[0]), InvalidArgument,
             "input Label: expected dims [", input[0], ", number of true classes], got ", ToString(label));
  EnforceNumbers(ctx, "Label");
  EnforceDims(ctx, "Weight", {classes, input[1]});
  EnforceSameType(ctx, "Weight", "Input");
  if (ctx.HasInput("Bias")) {
    const DDim bias = ctx.InputDim("Bias");
    HR_ENFORCE(!bias.empty() && Fits(bias[0], classes) && Fits(Numel(bias), classes), InvalidArgument,
               "input Bias: expected dims [", classes, ", 1], got ", ToString(bias));
    EnforceSameType(ctx, "Bias", "Input");
  }
  if (ctx.HasInput("SampleWeight")) {
    const DDim weight = ctx.InputDim("SampleWeight");
    HR_ENFORCE(!weight.empty() && Fits(weight[0], input[0]) && Fits(Numel(weight), input[0]), InvalidArgument,
               "input SampleWeight: expected dims [", input[0], ", 1], got ", ToString(weight));
    EnforceSameType(ctx, "SampleWeight", "Input");
  }
  for (const HashedName slot : HashedNames{"CustomDistProbs", "CustomDistAlias", "CustomDistAliasProbs"}) {
    HR_ENFORCE(ctx.HasInput(slot) || ctx.Attr<int32_t>("sampler") != kCustom, InvalidArgument, "input ", slot,
               ": it must be given for sampler 2");
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, {classes});
      const bool is_alias = slot == "CustomDistAlias";
      EnforceType(ctx, slot, is_alias ? DataType::kInt32 : DataType::kFloat32);
    }
  }
  const int64_t true_count = label.size() == 2 ? label[1] : 1;
  return {input[0], true_count < 0 ? -1 : AddExtents(true_count, count)};
}

OpRegistrar&& NceSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("Input", "[N, D]")
      .Input("Label", "int64 [N, number of true classes], in [0, num_total_classes)")
      .Input("Weight", "[num_total_classes, D], dtype of Input")
      .Input("Bias", "[num_total_classes, 1], dtype of Input", kDispensable)
      .Input("SampleWeight", "[N, 1], dtype of Input: factors on the costs", kDispensable)
      .Input("CustomDistProbs", "float32 [num_total_classes]: how probable each class is as noise, for sampler 2",
             kDispensable)
      .Input("CustomDistAlias", "int32 [num_total_classes]: the aliases of the alias method", kDispensable)
      .Input("CustomDistAliasProbs", "float32 [num_total_classes]: how probable it is that a class is not its alias",
             kDispensable)
      .Attr<int32_t>("num_total_classes", "number of classes")
      .Attr<int32_t>("num_neg_samples", "how many classes of noise are drawn for a row", 10)
      .Attr<int32_t>("sampler", "0: noise is uniform, 1: log-uniform (lower classes are more frequent), 2: CustomDist",
                     kUniform,
                     [](const int32_t& sampler) {
                       HR_ENFORCE(kUniform <= sampler && sampler <= kCustom, InvalidArgument,
                                  "attribute sampler: expected 0, 1 or 2, got ", sampler);
                     })
      .With(SeedAttr, "classes of noise")
      .Attr<bool>("is_sparse", "Fluid's; the gradient is dense in any case", false)
      .Attr<std::vector<int32_t>>("custom_neg_classes", "the noise of every row, instead of drawn classes", {})
      .KernelTypeFrom("Input");
}

}  // namespace

HEADRACE_REGISTER_OP(nce)
    .Comment(
        "Noise-contrastive estimation: how well the score x w + bias of a row tells its true classes from classes of "
        "noise.")
    .With(NceSlots)
    .With(SeedInput)
    .Output("Cost", "[N, 1]")
    .Output("SampleLogits", "[N, number of true classes + num_neg_samples]: sigmoid of the scores, for the gradient")
    .Output("SampleLabels", "int64, dims of SampleLogits: the classes, the true ones first, for the gradient")
    .InferShape([](InferShapeContext& ctx) {
      CheckSeed(ctx);
      const DDim samples = CheckNce(ctx);
      SetOutput(ctx, "Cost", {samples[0], 1}, ctx.InputType("Input"));
      SetOutput(ctx, "SampleLogits", samples, ctx.InputType("Input"));
      SetOutput(ctx, "SampleLabels", samples, DataType::kInt64);
    })
    .Kernel<float>(NceKernel<float>)
    .Kernel<double>(NceKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Input", "Label", "Weight", "Bias", "SampleWeight", "CustomDistProbs",
                                          "CustomDistAlias", "CustomDistAliasProbs"},
                               .outputs = {"SampleLogits", "SampleLabels"},
                               .no_gradient = {"Label", "SampleWeight", "CustomDistProbs", "CustomDistAlias",
                                               "CustomDistAliasProbs", "Seed"}}));

HEADRACE_REGISTER_OP(nce_grad)
    .Comment("Gradient of nce.")
    .With(NceSlots)
    .Input("SampleLogits", "as in the operator")
    .Input("SampleLabels", "as in the operator")
    .Input("Cost@GRAD", "gradient of Cost")
    .Input("SampleLogits@GRAD", "not used", kDispensable)
    .Input("SampleLabels@GRAD", "not used", kDispensable)
    .Output("Input@GRAD", "dims of Input", kDispensable)
    .Output("Weight@GRAD", "dims of Weight; SelectedRows if is_sparse", kDispensable | kSelectedRows)
    .Output("Bias@GRAD", "dims of Bias; SelectedRows if is_sparse", kDispensable | kSelectedRows)
    .InferShape([](InferShapeContext& ctx) {
      const DDim samples = CheckNce(ctx);
      for (const HashedName slot : HashedNames{"SampleLogits", "SampleLabels"}) {
        EnforceDims(ctx, slot, samples);
      }
      EnforceSameType(ctx, "SampleLogits", "Input");
      EnforceType(ctx, "SampleLabels", DataType::kInt64);
      EnforceDims(ctx, "Cost@GRAD", {samples[0], 1});
      EnforceSameType(ctx, "Cost@GRAD", "Input");
      InferGradients(ctx, {"Input", "Weight", "Bias"});
      if (ctx.Attr<bool>("is_sparse")) {
        ctx.SetOutputSelectedRows("Weight@GRAD");
        ctx.SetOutputSelectedRows("Bias@GRAD");
      }
    })
    .Kernel<float>(NceGradKernel<float>)
    .Kernel<double>(NceGradKernel<double>);

}  // namespace headrace::ops
