// label_smooth: soft labels, mixed with a prior.
#include <cstddef>

#include "framework/eigen.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

template <typename T>
void LabelSmoothKernel(const ExecutionContext& ctx) {
  const LoDTensor& labels = ctx.Input("X");
  const size_t row_dims = labels.dims().size() - 1;
  const auto x = EigenMatrix<T>(labels, row_dims);
  auto out = MutableEigenMatrix<T>(ctx.Output("Out"), row_dims);
  const auto epsilon = static_cast<T>(ctx.Attr<double>("epsilon"));
  const LoDTensor* prior = ctx.InputOrNull("PriorDist");
  ParallelFor(x.rows(), RowsPerBlock(x.cols()), [&](int64_t begin, int64_t end) {
    auto part = out.middleRows(begin, end - begin);
    const auto labels_of_part = x.middleRows(begin, end - begin);
    if (prior != nullptr) {
      part = ((1 - epsilon) * labels_of_part).rowwise() + epsilon * EigenVector<T>(*prior).transpose();
    } else {
      part.array() = (1 - epsilon) * labels_of_part.array() + epsilon * (T(1) / static_cast<T>(x.cols()));
    }
  });
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
