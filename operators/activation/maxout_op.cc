// maxout: the greatest of a group of channels (I. Goodfellow et al., Maxout networks, 2013).
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// Calls visit(first pixel of a group in X, of its map in Out) for each group.
template <typename Visit>
void ForEachGroup(const DDim& x, int64_t groups, Visit&& visit) {
  const int64_t pixels = x[2] * x[3];
  for (int64_t map = 0; map < x[0] * x[1] / groups; ++map) {
    visit(map * groups * pixels, map * pixels);
  }
}

template <typename T>
void MaxoutKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& dims = x_tensor.dims();
  const int64_t groups = ctx.Attr<int32_t>("groups");
  const int64_t pixels = dims[2] * dims[3];
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  ForEachGroup(dims, groups, [=](int64_t from, int64_t to) {
    std::copy_n(x + from, pixels, out + to);
    for (int64_t g = 1; g < groups; ++g) {
      const T* other = x + from + g * pixels;
      for (int64_t p = 0; p < pixels; ++p) {
        out[to + p] = other[p] > out[to + p] || IsNaN(other[p]) ? other[p] : out[to + p];
      }
    }
  });
}

// The first of equal channels gets the gradient.
template <typename T>
void MaxoutGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& dims = x_tensor.dims();
  const int64_t groups = ctx.Attr<int32_t>("groups");
  const int64_t pixels = dims[2] * dims[3];
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  std::fill_n(dx, x_tensor.numel(), T(0));
  const T* x = x_tensor.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  ForEachGroup(dims, groups, [=](int64_t from, int64_t to) {
    for (int64_t p = 0; p < pixels; ++p) {
      int64_t found = from + p;
      for (int64_t g = 1; g < groups; ++g) {
        const int64_t at = from + g * pixels + p;
        found = x[at] > x[found] || (IsNaN(x[at]) && !IsNaN(x[found])) ? at : found;
      }
      dx[found] = d[to + p];
    }
  });
}

DDim InferMaxout(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 4);
  DDim dims = ctx.InputDim("X");
  const int32_t groups = ctx.Attr<int32_t>("groups");
  HR_ENFORCE(groups > 0, InvalidArgument, "attribute groups: expected 1 or more, got ", groups);
  HR_ENFORCE(dims[1] < 0 || dims[1] % groups == 0, InvalidArgument, "input X: expected a multiple of ", groups,
             " channels (attribute groups), got dims ", ToString(dims));
  dims[1] = dims[1] < 0 ? -1 : dims[1] / groups;
  return dims;
}

OpRegistrar&& GroupsAttr(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("groups", "how many channels make one, 1 or more");
}

}  // namespace

HEADRACE_REGISTER_OP(maxout)
    .Comment("The greatest of each group of neighbouring channels, pixel by pixel.")
    .Input("X", "[N, C, H, W]")
    .Output("Out", "[N, C / groups, H, W]")
    .With(GroupsAttr)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Out", InferMaxout(ctx), ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Kernel<float>(MaxoutKernel<float>)
    .Kernel<double>(MaxoutKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(maxout_grad)
    .Comment("Gradient of maxout. Of equal channels, the first gets it.")
    .Input("X", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(GroupsAttr)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", InferMaxout(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(MaxoutGradKernel<float>)
    .Kernel<double>(MaxoutGradKernel<double>);

}  // namespace headrace::ops
