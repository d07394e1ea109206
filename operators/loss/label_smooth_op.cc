// label_smooth: soft labels, mixed with a prior.
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/kernel_util.h"

namespace headrace::ops {
namespace {

template <typename T>
void LabelSmoothKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const int64_t classes = x_tensor.dims().back();
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  const LoDTensor* prior_tensor = ctx.InputOrNull("PriorDist");
  const T* prior = prior_tensor == nullptr ? nullptr : prior_tensor->data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  for (int64_t i = 0, n = x_tensor.numel(); i < n; ++i) {
    const T mixed_in = prior == nullptr ? T(1) / static_cast<T>(classes) : prior[i % classes];
    out[i] = (1 - epsilon) * x[i] + epsilon * mixed_in;
  }
}

std::vector<OpDesc> LabelSmoothGradient(const OpDesc& op) {
  return {OpDesc{"scale",
                 {{"X", {GradVarName(op.Output("Out")[0])}}},
                 {{"Out", {GradVarName(op.Input("X")[0])}}},
                 {{"scale", 1 - op.Attr<double>("epsilon")}}}};
}

}  // namespace

HEADRACE_REGISTER_OP(label_smooth)
    .Comment("(1 - epsilon) X + epsilon PriorDist (C. Szegedy et al., 2016).")
    .Input("X", "[..., classes], probabilities")
    .Input("PriorDist", "[1, classes], dtype of X; uniform if absent", kDispensable)
    .Output("Out", "dims, dtype and LoD of X")
    .Attr<double>("epsilon", "how much of the prior, in [0, 1]", 0.0,
                  [](const double& epsilon) {
                    HR_ENFORCE(epsilon >= 0 && epsilon <= 1, InvalidArgument,
                               "attribute epsilon: expected a number in [0, 1], got ", epsilon);
                  })
    .InferShape([](InferShapeContext& ctx) {
      EnforceRankAtLeast(ctx, "X", 1);
      if (ctx.HasInput("PriorDist")) {
        EnforceDims(ctx, "PriorDist", {1, ctx.InputDim("X").back()});
        EnforceSameType(ctx, "PriorDist", "X");
      }
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(LabelSmoothKernel<float>)
    .Kernel<double>(LabelSmoothKernel<double>)
    .Gradient(LabelSmoothGradient);

}  // namespace headrace::ops
