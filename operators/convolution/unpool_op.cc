// unpool: puts the maxima of max_pool2d_with_index back where they were, among zeros (M. Zeiler, G. Taylor and R.
// Fergus, Adaptive deconvolutional networks, 2011).
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/convolution/window.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// The extent before pooling, -1 if unknown.
int64_t UnpooledSize(int64_t pooled, int64_t size, int64_t stride, int64_t padding, const char* dimension) {
  if (pooled < 0) {
    return -1;
  }
  const int64_t extent = AddExtents(MultiplyExtents(std::max<int64_t>(pooled - 1, 0), stride), size) - 2 * padding;
  HR_ENFORCE(pooled > 0 && extent > 0, InvalidArgument, "input X: nothing is left of its ", dimension, " ", pooled,
             " between the paddings");
  return extent;
}

DDim UnpooledDims(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const Extents in = ExtentsOf(x, 2, "X");
  const Extents size = ExtentsAttr(ctx.attrs(), "ksize", 2, 1, 1);
  const Extents strides = ExtentsAttr(ctx.attrs(), "strides", 2, 1, 1);
  const Extents paddings = ExtentsAttr(ctx.attrs(), "paddings", 2, 0, 0);
  EnforceDims(ctx, "Indices", x);
  EnforceType(ctx, "Indices", DataType::kInt32);
  return {x[0], x[1], UnpooledSize(in.height, size.height, strides.height, paddings.height, "height"),
          UnpooledSize(in.width, size.width, strides.width, paddings.width, "width")};
}

// Calls visit(place in X, place in Out) for each element of X, from several threads, each of which has maps of its own.
template <typename Visit>
void ForEachIndex(const ExecutionContext& ctx, const DDim& out, const Visit& visit) {
  const LoDTensor& indices = ctx.Input("Indices");
  const int32_t* index = indices.data<int32_t>();
  const int64_t pooled = indices.dims()[2] * indices.dims()[3];
  const int64_t size = out[2] * out[3];
  const auto visit_map = [=](int64_t map) {
    for (int64_t i = map * pooled; i < (map + 1) * pooled; ++i) {
      HR_ENFORCE(0 <= index[i] && index[i] < size, OutOfRange, "input Indices: element ", i, " is ", index[i],
                 ", expected one in [0, ", size, ")");
      visit(i, map * size + index[i]);
    }
  };
  ParallelForEach(out[0] * out[1], visit_map, size);
}

template <typename T>
void UnpoolKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  ParallelFill(out, out_tensor->numel(), T(0));
  const T* x = ctx.Input("X").data<T>();
  ForEachIndex(ctx, out_tensor->dims(), [=](int64_t from, int64_t to) { out[to] = x[from]; });
}

// Fluid's: every element gets the gradient of the place that it went to.
template <typename T>
void UnpoolGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T* d = out_grad.data<T>();
  ForEachIndex(ctx, out_grad.dims(), [=](int64_t from, int64_t to) { dx[from] = d[to]; });
}

OpRegistrar&& UnpoolAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::vector<int32_t>>("ksize", "size of the window of the pooling: height, width")
      .Attr<std::vector<int32_t>>("strides", "its step: height, width", {1, 1})
      .Attr<std::vector<int32_t>>("paddings", "its border: height, width", {0, 0})
      .Attr<std::string>("unpooling_type", "'max', the only one", "max", [](const std::string& type) {
        HR_ENFORCE(type == "max", InvalidArgument, "attribute unpooling_type: expected 'max', got '", type, "'");
      });
}

}  // namespace

HEADRACE_REGISTER_OP(unpool)
    .Comment("Puts each maximum of a pooling back where it was, among zeros.")
    .Input("X", "[N, C, H, W]: the Out of max_pool2d_with_index")
    .Input("Indices", "int32, dims of X: its Mask")
    .Output("Out", "[N, C, OH, OW], OH = (H - 1) stride - 2 padding + ksize, OW likewise")
    .With(UnpoolAttrs)
    .InferShape([](InferShapeContext& ctx) { SetOutput(ctx, "Out", UnpooledDims(ctx), ctx.InputType("X")); })
    .KernelTypeFrom("X")
    .Kernel<float>(UnpoolKernel<float>)
    .Kernel<double>(UnpoolKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Indices"}, .outputs = {}, .no_gradient = {"Indices"}}));

HEADRACE_REGISTER_OP(unpool_grad)
    .Comment("Gradient of unpool.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Indices", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(UnpoolAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", UnpooledDims(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .KernelTypeFrom("X")
    .Kernel<float>(UnpoolGradKernel<float>)
    .Kernel<double>(UnpoolGradKernel<double>);

}  // namespace headrace::ops
