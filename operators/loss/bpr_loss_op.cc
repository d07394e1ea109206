// bpr_loss: Bayesian personalised ranking, of one class against all others (B. Hidasi, A. Karatzoglou, L. Baltrunas and
// D. Tikk, Session-based recommendations with recurrent neural networks, 2016).
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/math/element_loop.h"
#include "operators/math/sigmoid.h"

namespace headrace::ops {
namespace {

// Calls visit(row, first element of the row, its label) for each row, from several threads.
template <typename Visit>
void ForEachRow(const ExecutionContext& ctx, const Visit& visit) {
  const DDim& dims = ctx.Input("X").dims();
  const int64_t classes = dims[1];
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  const auto visit_row = [=](int64_t r) {
    HR_ENFORCE(0 <= label[r] && label[r] < classes, OutOfRange, "input Label: row ", r, " has class ", label[r],
               ", expected one in [0, ", classes, ")");
    visit(r, r * classes, label[r]);
  };
  ParallelForEach(dims[0], visit_row, /*work=*/16 * classes);
}

template <typename T>
void BprLossKernel(const ExecutionContext& ctx) {
  const int64_t classes = ctx.Input("X").dims()[1];
  T* y = ctx.Output("Y")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  ForEachRow(ctx, [=](int64_t r, int64_t first, int64_t label) {
    T sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      sum += c == label ? T(0) : Softplus(x[first + c] - x[first + label]);
    }
    y[r] = sum / static_cast<T>(classes - 1);
  });
}

template <typename T>
void BprLossGradKernel(const ExecutionContext& ctx) {
  const int64_t classes = ctx.Input("X").dims()[1];
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* d = ctx.Input("Y@GRAD").data<T>();
  ForEachRow(ctx, [=](int64_t r, int64_t first, int64_t label) {
    const T share = d[r] / static_cast<T>(classes - 1);
    T sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      const T slope = c == label ? T(0) : share * Sigmoid(x[first + c] - x[first + label]);
      dx[first + c] = slope;
      sum += slope;
    }
    dx[first + label] = -sum;
  });
}

DDim CheckBprLoss(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  HR_ENFORCE(x[1] < 0 || x[1] >= 2, InvalidArgument, "input X: expected at least two classes, got dims ", ToString(x));
  EnforceDims(ctx, "Label", {x[0], 1});
  EnforceNumbers(ctx, "Label");
  return {x[0], 1};
}

}  // namespace

HEADRACE_REGISTER_OP(bpr_loss)
    .Comment("The mean of log(1 + exp(X[c] - X[label])) over all classes c but the label, for each row.")
    .Input("X", "[N, classes]")
    .Input("Label", "int64 [N, 1], in [0, classes)")
    .Output("Y", "[N, 1]")
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Y", CheckBprLoss(ctx), ctx.InputType("X"));
      ctx.ShareLoD("X", "Y");
    })
    .KernelTypeFrom("X")
    .Kernel<float>(BprLossKernel<float>)
    .Kernel<double>(BprLossKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Label"}, .outputs = {}, .no_gradient = {"Label"}}));

HEADRACE_REGISTER_OP(bpr_loss_grad)
    .Comment("Gradient of bpr_loss.")
    .Input("X", "as in the operator")
    .Input("Label", "as in the operator")
    .Input("Y@GRAD", "gradient of Y")
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Y@GRAD", CheckBprLoss(ctx));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .KernelTypeFrom("X")
    .Kernel<float>(BprLossGradKernel<float>)
    .Kernel<double>(BprLossGradKernel<double>);

}  // namespace headrace::ops
