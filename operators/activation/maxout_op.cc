// maxout: the greatest of a group of channels (I. Goodfellow et al., Maxout networks, 2013).
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// The dimension of the channels.
size_t ChannelAxis(const AttributeIndex& op) { return op.Attr<int32_t>("axis") == 1 ? 1 : 3; }

// Calls visit(first element of a group in X, of its map in Out, elements of a channel) for each group, from several
// threads. The channels of an image follow each other; those of a pixel if they are the last dimension.
template <typename Visit>
void ForEachGroup(const ExecutionContext& ctx, const Visit& visit) {
  const DDim& x = ctx.Input("X").dims();
  const int64_t groups = ctx.Attr<int32_t>("groups");
  const size_t axis = ChannelAxis(ctx.attrs());
  const int64_t size = Numel(x, axis + 1, x.size());
  const int64_t maps = Numel(x, 0, axis) * (x[axis] / groups);
  ParallelFor(maps, RowsPerBlock(groups * size), [=](int64_t begin, int64_t end) {
    for (int64_t map = begin; map < end; ++map) {
      visit(map * groups * size, map * size, size);
    }
  });
}

template <typename T>
void MaxoutKernel(const ExecutionContext& ctx) {
  const int64_t groups = ctx.Attr<int32_t>("groups");
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  ForEachGroup(ctx, [=](int64_t from, int64_t to, int64_t size) {
    std::copy_n(x + from, size, out + to);
    for (int64_t g = 1; g < groups; ++g) {
      const T* other = x + from + g * size;
      for (int64_t p = 0; p < size; ++p) {
        out[to + p] = other[p] > out[to + p] || IsNaN(other[p]) ? other[p] : out[to + p];
      }
    }
  });
}

// The first of equal channels gets the gradient.
template <typename T>
void MaxoutGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const int64_t groups = ctx.Attr<int32_t>("groups");
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  ParallelFill(dx, x_tensor.numel(), T(0));
  const T* x = x_tensor.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  ForEachGroup(ctx, [=](int64_t from, int64_t to, int64_t size) {
    for (int64_t p = 0; p < size; ++p) {
      int64_t found = from + p;
      for (int64_t g = 1; g < groups; ++g) {
        const int64_t at = from + g * size + p;
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
  int64_t& channels = dims[ChannelAxis(ctx.attrs())];
  HR_ENFORCE(channels < 0 || channels % groups == 0, InvalidArgument, "input X: expected a multiple of ", groups,
             " channels (attribute groups), got dims ", ToString(dims));
  channels = channels < 0 ? -1 : channels / groups;
  return dims;
}

OpRegistrar&& MaxoutAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("groups", "how many channels make one, 1 or more")
      .Attr<int32_t>("axis", "the dimension of the channels: 1, or 3, which is also -1", 1, [](const int32_t& axis) {
        HR_ENFORCE(axis == 1 || axis == 3 || axis == -1, InvalidArgument, "attribute axis: expected 1, 3 or -1, got ",
                   axis);
      });
}

}  // namespace

HEADRACE_REGISTER_OP(maxout)
    .Comment("The greatest of each group of neighbouring channels, pixel by pixel.")
    .Input("X", "[N, C, H, W], or [N, H, W, C]")
    .Output("Out", "dims of X, with C / groups channels")
    .With(MaxoutAttrs)
    .InferShape([](InferShapeContext& ctx) { SetOutput(ctx, "Out", InferMaxout(ctx), ctx.InputType("X")); })
    .Kernel<float>(MaxoutKernel<float>)
    .Kernel<double>(MaxoutKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(maxout_grad)
    .Comment("Gradient of maxout. Of equal channels, the first gets it.")
    .Input("X", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(MaxoutAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", InferMaxout(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(MaxoutGradKernel<float>)
    .Kernel<double>(MaxoutGradKernel<double>);

}  // namespace headrace::ops
