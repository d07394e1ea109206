// sigmoid_focal_loss: cross entropy in which what is easy counts little (T. Lin et al., Focal loss for dense object
// detection, 2017).
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/sigmoid.h"

namespace headrace::ops {
namespace {

template <typename T>
class FocalLoss {
 public:
  explicit FocalLoss(const ExecutionContext& ctx)
      : labels_(IntegerInput(ctx, "Label")),
        classes_(ctx.Input("X").dims()[1]),
        gamma_(static_cast<T>(ctx.Attr<double>("gamma"))) {
    const int64_t objects = std::max<int64_t>(1, IntegerInput(ctx, "FgNum")[0]);
    positive_ = static_cast<T>(ctx.Attr<double>("alpha") / static_cast<double>(objects));
    negative_ = static_cast<T>((1 - ctx.Attr<double>("alpha")) / static_cast<double>(objects));
    for (size_t r = 0; r < labels_.size(); ++r) {
      HR_ENFORCE(-1 <= labels_[r] && labels_[r] <= classes_, OutOfRange, "input Label: row ", r, " has class ",
                 labels_[r], ", expected one in [1, ", classes_, "], 0 for none of them, or -1 to leave the row out");
    }
  }

  // Of element `i`, by its logit.
  T Value(int64_t i, T x) const {
    return Choose(
        i, [&] { return positive_ * std::pow(Sigmoid(-x), gamma_) * Softplus(-x); },
        [&] { return negative_ * std::pow(Sigmoid(x), gamma_) * Softplus(x); });
  }
  T Slope(int64_t i, T x) const {
    const auto slope = [this](T p, T log_p) { return std::pow(1 - p, gamma_) * (gamma_ * p * log_p - (1 - p)); };
    return Choose(
        i, [&] { return positive_ * slope(Sigmoid(x), -Softplus(-x)); },
        [&] { return -negative_ * slope(Sigmoid(-x), -Softplus(x)); });
  }

 private:
  template <typename Positive, typename Negative>
  T Choose(int64_t i, const Positive& positive, const Negative& negative) const {
    const int64_t label = labels_[static_cast<size_t>(i / classes_)];
    if (label == -1) {
      return 0;
    }
    return label == i % classes_ + 1 ? positive() : negative();
  }

  PoolVector<int64_t> labels_;
  int64_t classes_;
  T gamma_;
  T positive_;
  T negative_;
};

template <typename T>
void SigmoidFocalLossKernel(const ExecutionContext& ctx) {
  const FocalLoss<T> loss(ctx);
  const T* x = ctx.Input("X").data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  ParallelFor(ctx.Input("X").numel(), kElementsPerBlock / 32, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = loss.Value(i, x[i]);
    }
  });
}

template <typename T>
void SigmoidFocalLossGradKernel(const ExecutionContext& ctx) {
  const FocalLoss<T> loss(ctx);
  const T* x = ctx.Input("X").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  ParallelFor(ctx.Input("X").numel(), kElementsPerBlock / 32, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      dx[i] = d[i] * loss.Slope(i, x[i]);
    }
  });
}

void CheckFocalLoss(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  EnforceDims(ctx, "Label", {ctx.InputDim("X")[0], 1});
  EnforceDims(ctx, "FgNum", {1});
}

OpRegistrar&& FocalLossSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "[N, C]: logits")
      .Input("Label", "int32 or int64 [N, 1]: 1 to C, 0 if it is none of the classes, -1 if the row does not count")
      .Input("FgNum", "int32 or int64 [1]: how many rows have a class; losses are divided by it")
      .Attr<double>("gamma", "how little easy examples count", 2.0)
      .Attr<double>("alpha", "how much classes count that are there, those that are not count 1 - alpha", 0.25)
      .KernelTypeFrom("X");
}

}  // namespace

HEADRACE_REGISTER_OP(sigmoid_focal_loss)
    .Comment(
        "Of each class of each row, with p the probability of the true label: -alpha (1 - p)^gamma log(p) / FgNum, "
        "with 1 "
        "- alpha where the class is absent.")
    .With(FocalLossSlots)
    .Output("Out", "dims and LoD of X")
    .InPlace("Out", "X")
    .InferShape([](InferShapeContext& ctx) {
      CheckFocalLoss(ctx);
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(SigmoidFocalLossKernel<float>)
    .Kernel<double>(SigmoidFocalLossKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Label", "FgNum"}, .outputs = {}, .no_gradient = {"Label", "FgNum"}}));

HEADRACE_REGISTER_OP(sigmoid_focal_loss_grad)
    .Comment("Gradient of sigmoid_focal_loss.")
    .With(FocalLossSlots)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) {
      CheckFocalLoss(ctx);
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(SigmoidFocalLossGradKernel<float>)
    .Kernel<double>(SigmoidFocalLossGradKernel<double>);

}  // namespace headrace::ops
