// gather_nd, scatter_nd_add: parts of a tensor by their coordinates.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/numbered_rows.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// The parts of a tensor that Index names: each row of it holds the coordinates of one in the first dimensions.
struct NdParts {
  NdParts(const ExecutionContext& ctx, const DDim& x) {
    const DDim& index = ctx.Input("Index").dims();
    const auto coordinates = static_cast<size_t>(index.back());
    width = Numel(x, coordinates, x.size());
    const PoolVector<int64_t> numbers = IntegerInput(ctx, "Index");
    places.resize(static_cast<size_t>(Numel(index, 0, index.size() - 1)));
    size_t at = 0;
    for (int64_t& place : places) {
      place = 0;
      for (size_t d = 0; d < coordinates; ++d, ++at) {
        HR_ENFORCE(0 <= numbers[at] && numbers[at] < x[d], OutOfRange, "input Index: element ", at, " is ", numbers[at],
                   ", expected a place in [0, ", x[d], ") of dimension ", d);
        place = place * x[d] + numbers[at];
      }
    }
  }

  int64_t size() const { return static_cast<int64_t>(places.size()); }

  PoolVector<int64_t> places;  // in units of `width` elements
  int64_t width;
};

void CopyNdParts(const NdParts& parts, const LoDTensor& x, LoDTensor* out) {
  auto* to = static_cast<std::byte*>(out->mutable_data(x.dtype()));
  const auto* from = static_cast<const std::byte*>(x.raw_data());
  const size_t bytes = static_cast<size_t>(parts.width) * SizeOf(x.dtype());
  const int64_t* places = parts.places.data();
  if (bytes == 0) {
    return;
  }
  // A part that is not in a cache takes as long as many that are.
  ParallelFor(parts.size(), RowsPerBlock(parts.width + 64), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(to + static_cast<size_t>(i) * bytes, from + static_cast<size_t>(places[i]) * bytes, bytes);
    }
  });
}

// Adds part i of `updates` to the part of `out`, of `numel` elements, that Index names, those of a part in their order.
template <typename T>
void AddNdParts(const NdParts& parts, const T* updates, int64_t numel, T* out) {
  const int64_t width = parts.width;
  const int64_t height = width == 0 ? 0 : numel / width;
  ForEachNumberedRow(parts.places.data(), parts.size(), height, width, [=](int64_t i, int64_t place) {
    T* to = out + place * width;
    const T* from = updates + i * width;
    for (int64_t c = 0; c < width; ++c) {
      to[c] = static_cast<T>(static_cast<Wrapping<T>>(to[c]) + static_cast<Wrapping<T>>(from[c]));
    }
  });
}

// The dims of the parts of a tensor of dims `x` that Index names, one beside the other.
DDim CheckNdIndex(const InferShapeContext& ctx, const DDim& x) {
  EnforceRankAtLeast(ctx, "Index", 2);
  EnforceIntegers(ctx, "Index");
  DDim dims = ctx.InputDim("Index");
  const int64_t coordinates = dims.back();
  HR_ENFORCE(coordinates >= 0, InvalidArgument, "input Index: expected a known last dimension, got dims ",
             ToString(dims));
  HR_ENFORCE(coordinates <= static_cast<int64_t>(x.size()), InvalidArgument,
             "input Index: expected at most as many coordinates as a tensor of dims ", ToString(x),
             " has dimensions, got dims ", ToString(dims));
  dims.pop_back();
  dims.insert(dims.end(), x.begin() + static_cast<std::ptrdiff_t>(coordinates), x.end());
  (void)Numel(dims);  // throws if there are too many elements
  return dims;
}

void GatherNdKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  CopyNdParts(NdParts(ctx, x.dims()), x, ctx.Output("Out"));
}

template <typename T>
void GatherNdGradKernel(const ExecutionContext& ctx) {
  const NdParts parts(ctx, ctx.Input("X").dims());
  T* dx = ZerosOrNull<T>(ctx, "X@GRAD");
  AddNdParts(parts, ctx.Input("Out@GRAD").data<T>(), ctx.Input("X").numel(), dx);
}

template <typename T>
void ScatterNdAddKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const NdParts parts(ctx, x.dims());
  T* out = ctx.Output("Out")->mutable_data<T>();
  if (out != x.data<T>()) {
    ParallelCopy(x.data<T>(), x.numel(), out);
  }
  AddNdParts(parts, ctx.Input("Updates").data<T>(), x.numel(), out);
}

template <typename T>
void ScatterNdAddGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  if (T* dx = MutableOrNull<T>(ctx, "X@GRAD")) {
    ParallelCopy(out_grad.data<T>(), out_grad.numel(), dx);
  }
  if (LoDTensor* updates_grad = ctx.OutputOrNull("Updates@GRAD")) {
    CopyNdParts(NdParts(ctx, out_grad.dims()), out_grad, updates_grad);
  }
}

void EnforceNdUpdates(const InferShapeContext& ctx, HashedName like) {
  EnforceDims(ctx, "Updates", CheckNdIndex(ctx, ctx.InputDim(like)));
  EnforceSameType(ctx, "Updates", like);
}

}  // namespace

HEADRACE_REGISTER_OP(gather_nd)
    .Comment("The parts of X whose coordinates, in its first dimensions, are the rows of Index.")
    .Input("X", "any shape")
    .Input("Index", "int32 or int64 [..., k], k at most the rank of X")
    .Output("Out", "[..., dimensions of X from k on]")
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Out", CheckNdIndex(ctx, ctx.InputDim("X")), ctx.InputType("X"));
    })
    .With(KernelForAllTypes, GatherNdKernel)
    .Gradient(DefaultGradient({.inputs = {"X", "Index"}, .outputs = {}, .no_gradient = {"Index"}}));

HEADRACE_REGISTER_OP(gather_nd_grad)
    .Comment("Gradient of gather_nd: the sum for parts that were taken more than once.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Index", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", CheckNdIndex(ctx, ctx.InputDim("X")));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(GatherNdGradKernel<float>)
    .Kernel<double>(GatherNdGradKernel<double>);

HEADRACE_REGISTER_OP(scatter_nd_add)
    .Comment("X, with Updates added to the parts whose coordinates, in its first dimensions, are the rows of Index.")
    .Input("X", "any shape")
    .Input("Index", "int32 or int64 [..., k], k at most the rank of X")
    .Input("Updates", "[..., dimensions of X from k on], dtype of X")
    .Output("Out", "dims of X; may be X")
    .InPlace("Out", "X")
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceNdUpdates(ctx, "X");
      SetOutput(ctx, "Out", ctx.InputDim("X"), ctx.InputType("X"));
    })
    .Kernel<float>(ScatterNdAddKernel<float>)
    .Kernel<double>(ScatterNdAddKernel<double>)
    .Kernel<uint8_t>(ScatterNdAddKernel<uint8_t>)
    .Kernel<int32_t>(ScatterNdAddKernel<int32_t>)
    .Kernel<int64_t>(ScatterNdAddKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"Index", "Updates"}, .outputs = {}, .no_gradient = {"Index"}}));

HEADRACE_REGISTER_OP(scatter_nd_add_grad)
    .Comment("Gradient of scatter_nd_add.")
    .Input("Index", "as in the operator")
    .Input("Updates", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of Out", kDispensable)
    .Output("Updates@GRAD", "dims of Updates", kDispensable)
    .KernelTypeFrom("Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforceNdUpdates(ctx, "Out@GRAD");
      SetOutput(ctx, "X@GRAD", ctx.InputDim("Out@GRAD"), ctx.InputType("Out@GRAD"));
      InferGradients(ctx, {"Updates"});
    })
    .Kernel<float>(ScatterNdAddGradKernel<float>)
    .Kernel<double>(ScatterNdAddGradKernel<double>);

}  // namespace headrace::ops
