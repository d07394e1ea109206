// center_loss: how far rows are from the centres of their classes, which move towards them (Y. Wen et al., A
// discriminative feature learning approach for deep face recognition, 2016).
#include <cstdint>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/numbered_rows.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"

namespace headrace::ops {
namespace {

// The centre of each class moves by rate / (1 + n) times the sum of the differences of its n rows.
template <typename T>
void MoveCenters(int64_t rows, int64_t width, const int64_t* label, const T* diff, T rate, int64_t classes,
                 T* centers) {
  Tensor memory;
  T* sums = Scratch<T>(&memory, classes * width);
  ParallelFill(sums, classes * width, T(0));
  PoolVector<int64_t> counts(static_cast<size_t>(classes), 1);
  ForEachNumberedRow(label, rows, classes, width, [=, counts = counts.data()](int64_t r, int64_t c) {
    ++counts[c];
    for (int64_t i = 0; i < width; ++i) {
      sums[c * width + i] += diff[r * width + i];
    }
  });
  const auto move = [=, counts = counts.data()](int64_t c) {
    const T share = rate / static_cast<T>(counts[c]);
    for (int64_t i = c * width; i < (c + 1) * width; ++i) {
      centers[i] += share * sums[i];
    }
  };
  ParallelForEach(classes, move, width);
}

template <typename T>
void CenterLossKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const LoDTensor& centers_tensor = ctx.Input("Centers");
  const int64_t rows = x_tensor.dims()[0];
  const int64_t width = x_tensor.dims()[1];
  const int64_t classes = centers_tensor.dims()[0];
  const auto rate = static_cast<T>(ScalarInput(ctx, "CenterUpdateRate"));
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  T* diff = ctx.Output("SampleCenterDiff")->mutable_data<T>();
  T* loss = ctx.Output("Loss")->mutable_data<T>();
  T* centers_out = ctx.Output("CentersOut")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* centers = centers_tensor.data<T>();
  const auto compare = [=](int64_t r) {
    HR_ENFORCE(0 <= label[r] && label[r] < classes, OutOfRange, "input Label: row ", r, " has class ", label[r],
               ", expected one in [0, ", classes, ")");
    const T* center = centers + label[r] * width;
    T* d = diff + r * width;
    for (int64_t i = 0; i < width; ++i) {
      d[i] = x[r * width + i] - center[i];
    }
    loss[r] = SumOf<T>(width, [d](int64_t i) { return d[i] * d[i]; }) / 2;
  };
  ParallelForEach(rows, compare, 2 * width);
  if (centers_out != centers) {
    ParallelCopy(centers, classes * width, centers_out);
  }
  if (ctx.Attr<bool>("need_update") && !ctx.Attr<bool>("is_test")) {
    MoveCenters(rows, width, label, diff, rate, classes, centers_out);
  }
}

template <typename T>
void CenterLossGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& diff_tensor = ctx.Input("SampleCenterDiff");
  const int64_t width = diff_tensor.dims()[1];
  const T* diff = diff_tensor.data<T>();
  const T* d = ctx.Input("Loss@GRAD").data<T>();
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const auto scale = [=](int64_t r) {
    for (int64_t i = r * width; i < (r + 1) * width; ++i) {
      dx[i] = d[r] * diff[i];
    }
  };
  ParallelForEach(diff_tensor.dims()[0], scale, width);
}

OpRegistrar&& CenterLossAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("cluster_num", "how many classes there are")
      .Attr<bool>("need_update", "whether the centres move")
      .Attr<bool>("is_test", "whether they stay where they are after all", false);
}

}  // namespace

HEADRACE_REGISTER_OP(center_loss)
    .Comment("Half the squared distance of each row from the centre of its class.")
    .Input("X", "[N, D]")
    .Input("Label", "int64 [N, 1] or [N]: the classes, in [0, cluster_num)")
    .Input("Centers", "[cluster_num, D], dtype of X")
    .Input("CenterUpdateRate", "float32 or float64 [1]")
    .Output("CentersOut",
            "Centers, each moved by CenterUpdateRate / (1 + n) times the sum of the differences of its n rows if "
            "need_update and not is_test; may be Centers")
    .Output("SampleCenterDiff", "[N, D]: X less the centres")
    .Output("Loss", "[N, 1]")
    .InPlace("CentersOut", "Centers")
    .With(CenterLossAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "X", 2);
      const DDim x = ctx.InputDim("X");
      EnforceDims(ctx, "Centers", {ctx.Attr<int32_t>("cluster_num"), x[1]});
      EnforceSameType(ctx, "Centers", "X");
      EnforceDims(ctx, "Label", ctx.InputDim("Label").size() == 1 ? DDim{x[0]} : DDim{x[0], 1});
      EnforceType(ctx, "Label", DataType::kInt64);
      EnforceScalar(ctx, "CenterUpdateRate");
      SetOutput(ctx, "CentersOut", ctx.InputDim("Centers"), ctx.InputType("X"));
      SetOutput(ctx, "SampleCenterDiff", x, ctx.InputType("X"));
      SetOutput(ctx, "Loss", {x[0], 1}, ctx.InputType("X"));
      ctx.ShareLoD("X", "Loss");
    })
    .Kernel<float>(CenterLossKernel<float>)
    .Kernel<double>(CenterLossKernel<double>)
    .Gradient(DefaultGradient(
        {.inputs = {"X"}, .outputs = {"SampleCenterDiff"}, .no_gradient = {"Label", "Centers", "CenterUpdateRate"}}));

HEADRACE_REGISTER_OP(center_loss_grad)
    .Comment("Gradient of center_loss, to which the centres are constants.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("SampleCenterDiff", "as in the operator")
    .Input("CentersOut@GRAD", "not used", kDispensable)
    .Input("SampleCenterDiff@GRAD", "not used", kDispensable)
    .Input("Loss@GRAD", "gradient of Loss")
    .Output("X@GRAD", "dims of X")
    .With(CenterLossAttrs)
    .KernelTypeFrom("SampleCenterDiff")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "SampleCenterDiff", 2);
      EnforceDims(ctx, "SampleCenterDiff", ctx.InputDim("X"));
      EnforceDims(ctx, "Loss@GRAD", {ctx.InputDim("SampleCenterDiff")[0], 1});
      EnforceSameType(ctx, "Loss@GRAD", "SampleCenterDiff");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(CenterLossGradKernel<float>)
    .Kernel<double>(CenterLossGradKernel<double>);

}  // namespace headrace::ops
