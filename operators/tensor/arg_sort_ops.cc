// arg_max, arg_min, argsort: where the elements are that a ranking along a dimension puts first.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ranking.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// NaN is greater than everything, so that arg_max finds it and argsort puts it last, as NumPy does.
struct Descending {
  template <typename T>
  bool operator()(T a, T b) const {
    return Before(a, b);
  }
};
struct Ascending {
  template <typename T>
  bool operator()(T a, T b) const {
    return Before(b, a);
  }
};
// For arg_min, where NaN comes first, too.
struct LeastOrNaN {
  template <typename T>
  bool operator()(T a, T b) const {
    return a < b || (IsNaN(a) && !IsNaN(b));
  }
};

// The place of the element that comes first: Ranks()(a, b) says whether a comes before b.
template <typename T, typename Ranks>
void ArgExtremeKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& dims = x_tensor.dims();
  const size_t axis = FrontAxis(ctx.Attr<int64_t>("axis"), dims.size(), "axis");
  const AxisSize size(dims, axis);
  const T* x = x_tensor.data<T>();
  int64_t* out = ctx.Output("Out")->mutable_data<int64_t>();
  if (size.inner == 1) {
    return ForEachLine(size, /*work=*/1, [=](int64_t line, int64_t first) {
      int64_t best = 0;
      for (int64_t a = 1; a < size.extent; ++a) {
        if (Ranks()(x[first + a], x[first + best])) {
          best = a;
        }
      }
      out[line] = best;
    });
  }
  ForEachStrip(size, /*work=*/1, [=](int64_t line, int64_t first, int64_t columns) {
    T best[kStrip];
    std::copy_n(x + first, columns, best);
    std::fill_n(out + line, columns, int64_t{0});
    for (int64_t a = 1; a < size.extent; ++a) {
      const T* from = x + first + a * size.inner;
      for (int64_t i = 0; i < columns; ++i) {
        if (Ranks()(from[i], best[i])) {
          best[i] = from[i];
          out[line + i] = a;
        }
      }
    }
  });
}

void InferArgExtreme(InferShapeContext& ctx) {
  DDim dims = ctx.InputDim("X");
  const size_t axis = FrontAxis(ctx.Attr<int64_t>("axis"), dims.size(), "axis");
  HR_ENFORCE(dims[axis] != 0, InvalidArgument, "input X: expected at least one element along axis ", axis,
             ", got dims ", ToString(dims));
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
  SetOutput(ctx, "Out", dims.empty() ? DDim{1} : dims, DataType::kInt64);
}

OpRegistrar&& ArgAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "any shape with at least one element along axis")
      .Output("Out", "int64, dims of X without axis; [1] if none is left")
      .Attr<int64_t>("axis", "the dimension; negative ones count from the back", -1)
      .InferShape(InferArgExtreme);
}

template <typename Ranks>
OpRegistrar&& ArgKernels(OpRegistrar&& op) {
  return std::move(op)
      .template Kernel<float>(ArgExtremeKernel<float, Ranks>)
      .template Kernel<double>(ArgExtremeKernel<double, Ranks>)
      .template Kernel<int32_t>(ArgExtremeKernel<int32_t, Ranks>)
      .template Kernel<int64_t>(ArgExtremeKernel<int64_t, Ranks>);
}

// --- argsort ---

template <typename T>
void ArgsortKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& dims = x_tensor.dims();
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), dims.size(), "axis");
  const AxisSize size(dims, axis);
  const int64_t inner = size.inner;
  const T* x = x_tensor.data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  int64_t* indices = ctx.Output("Indices")->mutable_data<int64_t>();
  const bool descending = ctx.Attr<bool>("descending");
  ParallelFor(size.outer * inner, RowsPerBlock(16 * size.extent), [=](int64_t begin, int64_t end) {
    PoolVector<int64_t> order(static_cast<size_t>(size.extent));
    for (int64_t line = begin; line < end; ++line) {
      const int64_t start = line / inner * size.extent * inner + line % inner;
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [=](int64_t a, int64_t b) {
        const T first = x[start + a * inner];
        const T second = x[start + b * inner];
        const bool before = descending ? Descending()(first, second) : Ascending()(first, second);
        const bool behind = descending ? Descending()(second, first) : Ascending()(second, first);
        return before || (!behind && a < b);  // equal ones stay in their order
      });
      for (int64_t a = 0; a < size.extent; ++a) {
        const int64_t from = order[static_cast<size_t>(a)];
        out[start + a * inner] = x[start + from * inner];
        indices[start + a * inner] = from;
      }
    }
  });
}

template <typename T>
void ArgsortGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  const DDim& dims = x_grad->dims();
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), dims.size(), "axis");
  const AxisSize size(dims, axis);
  T* dx = x_grad->mutable_data<T>();
  ParallelFill(dx, x_grad->numel(), T(0));
  const int64_t* indices = ctx.Input("Indices").data<int64_t>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  ForEachLine(size, /*work=*/4, [=](int64_t, int64_t first) {
    for (int64_t a = 0; a < size.extent; ++a) {
      const int64_t at = first + a * size.inner;
      HR_ENFORCE(0 <= indices[at] && indices[at] < size.extent, OutOfRange, "input Indices: element ", at, " is ",
                 indices[at], ", expected one in [0, ", size.extent, ")");
      dx[first + indices[at] * size.inner] += d[at];
    }
  });
}

OpRegistrar&& ArgsortAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("axis", "the dimension; negative ones count from the back", -1)
      .Attr<bool>("descending", "whether the greatest comes first", false);
}

}  // namespace

HEADRACE_REGISTER_OP(arg_max)
    .Comment(
        "Where the greatest element along a dimension is; the first of equal ones; NaN is greater than everything.")
    .With(ArgAttrs)
    .With(ArgKernels<Descending>);

HEADRACE_REGISTER_OP(arg_min)
    .Comment("Where the least element along a dimension is; the first of equal ones; NaN is less than everything.")
    .With(ArgAttrs)
    .With(ArgKernels<LeastOrNaN>);

HEADRACE_REGISTER_OP(argsort)
    .Comment("The elements in order along a dimension, equal ones as they were; NaN is greater than everything.")
    .Input("X", "any shape of rank 1 or more")
    .Output("Out", "dims of X")
    .Output("Indices", "int64, dims of X: where they were along axis")
    .With(ArgsortAttrs)
    .InferShape([](InferShapeContext& ctx) {
      FrontAxis(ctx.Attr<int32_t>("axis"), ctx.InputDim("X").size(), "axis");
      SetOutput(ctx, "Out", ctx.InputDim("X"), ctx.InputType("X"));
      SetOutput(ctx, "Indices", ctx.InputDim("X"), DataType::kInt64);
      ctx.ShareLoD("X", "Out");
      ctx.ShareLoD("X", "Indices");
    })
    .Kernel<float>(ArgsortKernel<float>)
    .Kernel<double>(ArgsortKernel<double>)
    .Kernel<int32_t>(ArgsortKernel<int32_t>)
    .Kernel<int64_t>(ArgsortKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {"Indices"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(argsort_grad)
    .Comment("Gradient of argsort.")
    .Input("Indices", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("Indices@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .With(ArgsortAttrs)
    .KernelTypeFrom("Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      FrontAxis(ctx.Attr<int32_t>("axis"), ctx.InputDim("Indices").size(), "axis");
      EnforceType(ctx, "Indices", DataType::kInt64);
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("Indices"));
      SetOutput(ctx, "X@GRAD", ctx.InputDim("Indices"), ctx.InputType("Out@GRAD"));
    })
    .Kernel<float>(ArgsortGradKernel<float>)
    .Kernel<double>(ArgsortGradKernel<double>);

}  // namespace headrace::ops
