// smooth_l1_loss: quadratic near 0, linear elsewhere, summed over each row.
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// The weight of an element: 1 without a tensor of weights.
template <typename T>
class ElementWeights {
 public:
  ElementWeights(const ExecutionContext& ctx, HashedName slot) {
    if (const LoDTensor* tensor = ctx.InputOrNull(slot)) {
      data_ = tensor->data<T>();
    }
  }
  T operator[](int64_t i) const { return data_ == nullptr ? T(1) : data_[i]; }

 private:
  const T* data_ = nullptr;
};

template <typename T>
T SquaredSigma(const ExecutionContext& ctx) {
  const double sigma = ctx.Attr<double>("sigma");
  return static_cast<T>(sigma * sigma);
}

template <typename T>
void SmoothL1Kernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const MatrixSize s(x_tensor.dims(), 1);
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  T* diff = ctx.Output("Diff")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const ElementWeights<T> inside(ctx, "InsideWeight");
  const ElementWeights<T> outside(ctx, "OutsideWeight");
  const T sigma2 = SquaredSigma<T>(ctx);
  ParallelFor(out_tensor->numel(), RowsPerBlock(4 * s.cols), [&](int64_t first, int64_t last) {
    for (int64_t i = first * s.cols; i < last * s.cols; ++i) {
      diff[i] = inside[i] * (x[i] - y[i]);
    }
    for (int64_t r = first; r < last; ++r) {
      out[r] = SumOf<T>(s.cols, [&, begin = r * s.cols](int64_t i) {
        const T d = std::abs(diff[begin + i]);
        return outside[begin + i] * (d < 1 / sigma2 ? d * d * sigma2 / 2 : d - T(0.5) / sigma2);
      });
    }
  });
}

template <typename T>
void SmoothL1GradKernel(const ExecutionContext& ctx) {
  const LoDTensor& diff_tensor = ctx.Input("Diff");
  const MatrixSize s(diff_tensor.dims(), 1);
  const T* diff = diff_tensor.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const ElementWeights<T> inside(ctx, "InsideWeight");
  const ElementWeights<T> outside(ctx, "OutsideWeight");
  const T sigma2 = SquaredSigma<T>(ctx);
  for (const bool by_x : {true, false}) {
    LoDTensor* grad = by_x ? ctx.OutputOrNull("X@GRAD") : ctx.OutputOrNull("Y@GRAD");
    if (grad == nullptr) {
      continue;
    }
    T* to = grad->mutable_data<T>();
    ParallelFor(s.rows, RowsPerBlock(4 * s.cols), [=](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const T of_row = by_x ? d[r] : -d[r];
        HEADRACE_INDEPENDENT_ITERATIONS
        for (int64_t i = r * s.cols; i < (r + 1) * s.cols; ++i) {
          const T sign = static_cast<T>((diff[i] > 0) - (diff[i] < 0));
          const T slope = std::abs(diff[i]) < 1 / sigma2 ? sigma2 * diff[i] : sign;
          to[i] = of_row * outside[i] * inside[i] * slope;
        }
      }
    });
  }
}

// Checks that the weights and `others` have the dims and dtype of `like`; returns the dims of Out.
DDim CheckSmoothL1(const InferShapeContext& ctx, HashedName like, HashedNames others) {
  EnforceRankAtLeast(ctx, like, 2);
  const DDim x = ctx.InputDim(like);
  const auto check = [&](HashedName slot) {
    EnforceDims(ctx, slot, x);
    EnforceSameType(ctx, slot, like);
  };
  for (const HashedName slot : others) {
    check(slot);
  }
  for (const HashedName slot : HashedNames{"InsideWeight", "OutsideWeight"}) {
    if (ctx.HasInput(slot)) {
      check(slot);
    }
  }
  return {x[0], 1};
}

OpRegistrar&& SmoothL1Attr(OpRegistrar&& op) {
  return std::move(op).Attr<double>(
      "sigma", "the loss is quadratic where |difference| < 1 / sigma^2", 1.0, [](const double& sigma) {
        HR_ENFORCE(sigma > 0, InvalidArgument, "attribute sigma: expected a positive number, got ", sigma);
      });
}

}  // namespace

HEADRACE_REGISTER_OP(smooth_l1_loss)
    .Comment(
        "The sum over each row of OutsideWeight * f(InsideWeight * (X - Y)), f(d) being sigma^2 d^2 / 2 where |d| < 1 "
        "/ sigma^2, else |d| - 1 / (2 sigma^2) (R. Girshick, Fast R-CNN, 2015).")
    .Input("X", "[rows, ...], rank 2 or more")
    .Input("Y", "dims and dtype of X")
    .Input("InsideWeight", "dims and dtype of X; 1 if absent", kDispensable)
    .Input("OutsideWeight", "dims and dtype of X; 1 if absent", kDispensable)
    .Output("Diff", "dims of X: InsideWeight * (X - Y)")
    .Output("Out", "[rows, 1]")
    .With(SmoothL1Attr)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Out", CheckSmoothL1(ctx, "X", {"Y"}), ctx.InputType("X"));
      SetOutput(ctx, "Diff", ctx.InputDim("X"), ctx.InputType("X"));
    })
    .Kernel<float>(SmoothL1Kernel<float>)
    .Kernel<double>(SmoothL1Kernel<double>)
    .Gradient(DefaultGradient({.inputs = {"InsideWeight", "OutsideWeight"},
                               .outputs = {"Diff"},
                               .no_gradient = {"InsideWeight", "OutsideWeight"}}));

HEADRACE_REGISTER_OP(smooth_l1_loss_grad)
    .Comment("Gradient of smooth_l1_loss.")
    .Input("InsideWeight", "as in the operator", kDispensable)
    .Input("OutsideWeight", "as in the operator", kDispensable)
    .Input("Diff", "as in the operator")
    .Input("Diff@GRAD", "not used", kDispensable)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Y@GRAD", "dims of Y", kDispensable)
    .With(SmoothL1Attr)
    .KernelTypeFrom("Diff")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", CheckSmoothL1(ctx, "Diff", {}));
      EnforceSameType(ctx, "Out@GRAD", "Diff");
      for (const HashedName slot : HashedNames{"X@GRAD", "Y@GRAD"}) {
        SetOutput(ctx, slot, ctx.InputDim("Diff"), ctx.InputType("Diff"));
      }
    })
    .Kernel<float>(SmoothL1GradKernel<float>)
    .Kernel<double>(SmoothL1GradKernel<double>);

}  // namespace headrace::ops
