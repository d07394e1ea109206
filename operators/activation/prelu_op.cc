// prelu: leaky_relu with slopes that are learned.
#include <algorithm>
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// Which slope an element has.
struct Slopes {
  Slopes(HashedName mode, const DDim& x)
      : sample(mode == "element" ? Numel(x, 1, x.size()) : 0),
        channels(mode == "channel" ? x[1] : 1),
        inner(mode == "channel" ? std::max<int64_t>(Numel(x, 2, x.size()), 1) : 1) {}
  int64_t At(int64_t i) const { return sample > 0 ? i % sample : i / inner % channels; }
  int64_t sample;
  int64_t channels;
  int64_t inner;
};

template <typename T>
void PreluKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const Slopes slopes(ctx.Text("mode"), x_tensor.dims());
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const T* alpha = ctx.Input("Alpha").data<T>();
  for (int64_t i = 0, n = x_tensor.numel(); i < n; ++i) {
    out[i] = x[i] > 0 ? x[i] : alpha[slopes.At(i)] * x[i];
  }
}

template <typename T>
void PreluGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const Slopes slopes(ctx.Text("mode"), x_tensor.dims());
  const T* x = x_tensor.data<T>();
  const T* alpha = ctx.Input("Alpha").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const int64_t n = x_tensor.numel();
  if (LoDTensor* x_grad = ctx.OutputOrNull("X@GRAD")) {
    T* dx = x_grad->mutable_data<T>();
    for (int64_t i = 0; i < n; ++i) {
      dx[i] = x[i] > 0 ? d[i] : alpha[slopes.At(i)] * d[i];
    }
  }
  if (LoDTensor* alpha_grad = ctx.OutputOrNull("Alpha@GRAD")) {
    T* da = alpha_grad->mutable_data<T>();
    std::fill_n(da, alpha_grad->numel(), T(0));
    for (int64_t i = 0; i < n; ++i) {
      da[slopes.At(i)] += x[i] > 0 ? T(0) : d[i] * x[i];
    }
  }
}

void EnforceAlpha(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  EnforceSameType(ctx, "Alpha", "X");
  const DDim x = ctx.InputDim("X");
  const HashedName mode = ctx.Text("mode");
  const int64_t expected = mode == "all" ? 1 : mode == "channel" ? x[1] : Numel(x, 1, x.size());
  HR_ENFORCE(Fits(Numel(ctx.InputDim("Alpha")), expected), InvalidArgument, "input Alpha: expected ", expected,
             " elements for mode '", mode, "' and X of dims ", ToString(x), ", got dims ",
             ToString(ctx.InputDim("Alpha")));
}

OpRegistrar&& PreluAttrs(OpRegistrar&& op) {
  return std::move(op).Attr<std::string>(
      "mode", "'all': one slope; 'channel': one for each channel, dimension 1; 'element': one for each element", "all",
      [](const std::string& mode) {
        HR_ENFORCE(mode == "all" || mode == "channel" || mode == "element", InvalidArgument,
                   "attribute mode: expected 'all', 'channel' or 'element', got '", mode, "'");
      });
}

}  // namespace

HEADRACE_REGISTER_OP(prelu)
    .Comment("X, or Alpha * X where X < 0 (K. He et al., 2015).")
    .Input("X", "[N, ...]")
    .Input("Alpha", "as many elements as mode says, dtype of X")
    .Output("Out", "dims, dtype and LoD of X")
    .With(PreluAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceAlpha(ctx);
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(PreluKernel<float>)
    .Kernel<double>(PreluKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Alpha"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(prelu_grad)
    .Comment("Gradient of prelu.")
    .Input("X", "as in the operator")
    .Input("Alpha", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Alpha@GRAD", "dims of Alpha", kDispensable)
    .With(PreluAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceAlpha(ctx);
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Alpha"});
    })
    .Kernel<float>(PreluGradKernel<float>)
    .Kernel<double>(PreluGradKernel<double>);

}  // namespace headrace::ops
