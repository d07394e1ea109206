// softmax, log_softmax: along a dimension.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/chunk_math.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"
#include "operators/math/softmax.h"
#include "operators/math/tensor_size.h"
#include "operators/math/vector_math.h"

namespace headrace::ops {

// Of so many at a time, which the compiler keeps in vector registers, that none waits for the one before.
template <typename T>
T Maximum(int64_t n, const T* x) {
  constexpr int64_t kLanes = 128 / sizeof(T);
  T lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<T>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    HEADRACE_VECTORISED_WHOLE
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = lanes[lane] < x[i + lane] ? x[i + lane] : lanes[lane];
    }
  }
  for (; i < n; ++i) {
    lanes[0] = std::max(lanes[0], x[i]);
  }
  return FoldLanes(lanes, [](T a, T b) { return a < b ? b : a; });
}

// `difference`, raised to `lowest`, unless it is −∞ or NaN.
template <typename T>
static T AtLeast(T lowest, T difference) {
  const T raised = difference < lowest ? lowest : difference;
  return difference == -std::numeric_limits<T>::infinity() ? difference : raised;
}

// In blocks, so that no pass but the first and the last reads or writes more than the nearest cache holds.
template <typename T>
T SumOfExp(int64_t n, const T* x, T max, T* exp, T lowest) {
  T block[kSumBlock];
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t size = std::min(kSumBlock, n - begin);
    T* to = exp == nullptr ? block : exp + begin;
    ForEachVector(
        size, to,
        [=](const auto& part) {
          return ChunkExp(ForEachElement([=](T element) { return AtLeast(lowest, element - max); }, part));
        },
        x + begin);
    sum += static_cast<double>(Sum(size, to));
  }
  return static_cast<T>(sum);
}

// As SumOfExp stores them, of rows that are too short to fill chunks.
template <typename T>
static void ExpOfShortRows(int64_t rows, int64_t cols, const T* x, T* exp, T lowest) {
  for (int64_t at = 0; at < rows * cols; at += cols) {
    const T max = Maximum(cols, x + at);
    for (int64_t c = at; c < at + cols; ++c) {
      exp[c] = AtLeast(lowest, x[c] - max);
    }
  }
  VectorExp(rows * cols, exp, exp);
}

constexpr int64_t kShort = 2 * kChunk;

template <typename T>
static void Divide(int64_t cols, T sum, T* exp) {
  const T scale = 1 / sum;  // quotients take longer
  for (int64_t c = 0; c < cols; ++c) {
    exp[c] *= scale;
  }
}

template <typename T>
T SoftmaxOfRow(int64_t cols, const T* x, T max, T* out) {
  T sum = 0;
  if (cols < kShort) {
    ExpOfShortRows(1, cols, x, out, -std::numeric_limits<T>::infinity());
    sum = Sum(cols, out);
  } else {
    sum = SumOfExp(cols, x, max, out);
  }
  Divide(cols, sum, out);
  return sum;
}

template <typename T>
void Softmax(int64_t rows, int64_t cols, const T* x, T* out, T lowest) {
  ParallelFor(rows, RowsPerBlock(4 * cols), [=](int64_t begin, int64_t end) {
    if (cols < kShort) {
      ExpOfShortRows(end - begin, cols, x + begin * cols, out + begin * cols, lowest);
    }
    for (int64_t at = begin * cols; at < end * cols; at += cols) {
      const T sum =
          cols < kShort ? Sum(cols, out + at) : SumOfExp(cols, x + at, Maximum(cols, x + at), out + at, lowest);
      Divide(cols, sum, out + at);
    }
  });
}

template <typename T>
void SoftmaxGrad(int64_t rows, int64_t cols, const T* out, const T* out_grad, T* x_grad) {
  ParallelFor(rows, RowsPerBlock(2 * cols), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* p = out + r * cols;
      const T* d = out_grad + r * cols;
      const T dot = SumOf<T>(cols, [=](int64_t c) { return p[c] * d[c]; });
      for (int64_t c = 0; c < cols; ++c) {
        x_grad[r * cols + c] = p[c] * (d[c] - dot);
      }
    }
  });
}

#define HEADRACE_INSTANTIATE(T)                                \
  template T Maximum<T>(int64_t, const T*);                    \
  template T SumOfExp<T>(int64_t, const T*, T, T*, T);         \
  template T SoftmaxOfRow<T>(int64_t, const T*, T, T*);        \
  template void Softmax<T>(int64_t, int64_t, const T*, T*, T); \
  template void SoftmaxGrad<T>(int64_t, int64_t, const T*, const T*, T*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

namespace {

// As in Fluid, no probability of the operator softmax is less than e^-64 of the greatest: its logarithm and reciprocal
// stay finite, so that cross_entropy has a gradient however far the logits are apart. But −∞, a mask, stays, which
// Fluid cuts off, too.
constexpr int kLowestLogit = -64;

size_t SoftmaxAxis(const AttributeIndex& op, const DDim& dims) {
  return FrontAxis(op.Attr<int32_t>("axis"), dims.size(), "axis");
}

// Elements that lie side by side belong to different vectors, unless `inner` is 1; then the vectors are rows. What
// follows goes through a strip of vectors row by row, and keeps exponentials in memory of its own, [extent, columns].

template <typename T>
void MaximumOfColumns(const AxisSize& s, int64_t columns, const T* x, T* max) {
  std::fill_n(max, columns, -std::numeric_limits<T>::infinity());
  ForEachInStrip(s, columns, [=](int64_t at, int64_t, int64_t i) { max[i] = std::max(max[i], x[at]); });
}

// exp[place] = exp(exponent(element, column))
template <typename T, typename Exponent>
void ExpOfStrip(const AxisSize& s, int64_t columns, T* exp, const Exponent& exponent) {
  ForEachInStrip(s, columns, [=](int64_t at, int64_t place, int64_t i) { exp[place] = exponent(at, i); });
  VectorExp(s.extent * columns, exp, exp);
}

template <typename T>
void SoftmaxKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const AxisSize s(out_tensor->dims(), SoftmaxAxis(ctx.attrs(), out_tensor->dims()));
  if (s.inner == 1) {
    return Softmax(s.outer, s.extent, x, out, T(kLowestLogit));
  }
  ForEachStrip(s, /*work=*/4, [=](int64_t, int64_t first, int64_t columns) {
    Tensor memory;
    T* exp = Scratch<T>(&memory, s.extent * columns);
    T max[kStrip];
    MaximumOfColumns(s, columns, x + first, max);
    ExpOfStrip(s, columns, exp,
               [from = x + first, &max](int64_t at, int64_t i) { return AtLeast(T(kLowestLogit), from[at] - max[i]); });
    T scales[kStrip];
    SumColumns(s.extent, columns, scales, [=](int64_t e, int64_t i) { return exp[e * columns + i]; });
    for (int64_t i = 0; i < columns; ++i) {
      scales[i] = 1 / scales[i];
    }
    ForEachInStrip(s, columns, [=, to = out + first, &scales](int64_t at, int64_t place, int64_t i) {
      to[at] = exp[place] * scales[i];
    });
  });
}

template <typename T>
void SoftmaxGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_tensor = ctx.Input("Out");
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T* out = out_tensor.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const AxisSize s(out_tensor.dims(), SoftmaxAxis(ctx.attrs(), out_tensor.dims()));
  if (s.inner == 1) {
    return SoftmaxGrad(s.outer, s.extent, out, d, dx);
  }
  ForEachStrip(s, /*work=*/2, [=](int64_t, int64_t first, int64_t columns) {
    T dots[kStrip];
    SumColumns(s.extent, columns, dots, [=](int64_t e, int64_t i) {
      const int64_t at = first + e * s.inner + i;
      return out[at] * d[at];
    });
    ForEachInStrip(s, columns, [=, &dots](int64_t at, int64_t, int64_t i) {
      dx[first + at] = out[first + at] * (d[first + at] - dots[i]);
    });
  });
}

template <typename T>
void LogSoftmax(int64_t rows, int64_t cols, const T* x, T* out) {
  ParallelFor(rows, RowsPerBlock(4 * cols), [=](int64_t begin, int64_t end) {
    for (int64_t at = begin * cols; at < end * cols; at += cols) {
      const T max = Maximum(cols, x + at);
      const T log_sum = std::log(SumOfExp<T>(cols, x + at, max, nullptr));
      for (int64_t c = at; c < at + cols; ++c) {
        out[c] = (x[c] - max) - log_sum;
      }
    }
  });
}

template <typename T>
void LogSoftmaxGrad(int64_t rows, int64_t cols, const T* log_p, const T* d, T* dx) {
  ParallelFor(rows, RowsPerBlock(4 * cols), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * cols;
      const T sum = Sum(cols, d + at);
      VectorExp(cols, log_p + at, dx + at);
      for (int64_t c = at; c < at + cols; ++c) {
        dx[c] = d[c] - dx[c] * sum;
      }
    }
  });
}

template <typename T>
void LogSoftmaxKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const AxisSize s(out_tensor->dims(), SoftmaxAxis(ctx.attrs(), out_tensor->dims()));
  if (s.inner == 1) {
    return LogSoftmax(s.outer, s.extent, x, out);
  }
  ForEachStrip(s, /*work=*/4, [=](int64_t, int64_t first, int64_t columns) {
    const T* from = x + first;
    Tensor memory;
    T* exp = Scratch<T>(&memory, s.extent * columns);
    T max[kStrip];
    MaximumOfColumns(s, columns, from, max);
    ExpOfStrip(s, columns, exp, [=, &max](int64_t at, int64_t i) { return from[at] - max[i]; });
    T log_sums[kStrip];
    SumColumns(s.extent, columns, log_sums, [=](int64_t e, int64_t i) { return exp[e * columns + i]; });
    VectorLog(columns, log_sums, log_sums);
    ForEachInStrip(s, columns, [=, to = out + first, &max, &log_sums](int64_t at, int64_t, int64_t i) {
      to[at] = (from[at] - max[i]) - log_sums[i];
    });
  });
}

template <typename T>
void LogSoftmaxGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_tensor = ctx.Input("Out");
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T* log_p = out_tensor.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const AxisSize s(out_tensor.dims(), SoftmaxAxis(ctx.attrs(), out_tensor.dims()));
  if (s.inner == 1) {
    return LogSoftmaxGrad(s.outer, s.extent, log_p, d, dx);
  }
  ForEachStrip(s, /*work=*/4, [=](int64_t, int64_t first, int64_t columns) {
    T sums[kStrip];
    SumColumns(s.extent, columns, sums, [=](int64_t e, int64_t i) { return d[first + e * s.inner + i]; });
    Tensor memory;
    T* p = Scratch<T>(&memory, s.extent * columns);
    ExpOfStrip(s, columns, p, [from = log_p + first](int64_t at, int64_t) { return from[at]; });
    ForEachInStrip(s, columns, [=, &sums](int64_t at, int64_t place, int64_t i) {
      dx[first + at] = d[first + at] - p[place] * sums[i];
    });
  });
}

void InferSoftmax(InferShapeContext& ctx) {
  SoftmaxAxis(ctx.attrs(), ctx.InputDim("X"));
  ctx.ShareAll("X", "Out");
}

void InferSoftmaxGrad(InferShapeContext& ctx) {
  SoftmaxAxis(ctx.attrs(), ctx.InputDim("Out"));
  EnforceDims(ctx, "Out@GRAD", ctx.InputDim("Out"));
  EnforceSameType(ctx, "Out@GRAD", "Out");
  SetOutput(ctx, "X@GRAD", ctx.InputDim("Out"), ctx.InputType("Out"));
}

OpRegistrar&& ForwardSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "any shape of rank 1 or more")
      .Output("Out", "dims and LoD of X")
      .InPlace("Out", "X")
      .Attr<int32_t>("axis", "the dimension of the classes; negative ones count from the back", -1)
      .InferShape(InferSoftmax)
      .Gradient(DefaultGradient({.inputs = {}, .outputs = {"Out"}, .no_gradient = {}}));
}

OpRegistrar&& BackwardSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("Out", "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X")
      .Attr<int32_t>("axis", "as in the operator", -1)
      .InferShape(InferSoftmaxGrad);
}

}  // namespace

HEADRACE_REGISTER_OP(softmax)
    .Comment(
        "exp(X) divided by its sum along a dimension; what is finite in X counts as at most 64 below its maximum. Out "
        "may be X.")
    .With(ForwardSlots)
    .Kernel<float>(SoftmaxKernel<float>)
    .Kernel<double>(SoftmaxKernel<double>);

HEADRACE_REGISTER_OP(softmax_grad)
    .Comment("Gradient of softmax.")
    .With(BackwardSlots)
    .Kernel<float>(SoftmaxGradKernel<float>)
    .Kernel<double>(SoftmaxGradKernel<double>);

HEADRACE_REGISTER_OP(log_softmax)
    .Comment("The logarithm of softmax. Out may be X.")
    .With(ForwardSlots)
    .Kernel<float>(LogSoftmaxKernel<float>)
    .Kernel<double>(LogSoftmaxKernel<double>);

HEADRACE_REGISTER_OP(log_softmax_grad)
    .Comment("Gradient of log_softmax.")
    .With(BackwardSlots)
    .Kernel<float>(LogSoftmaxGradKernel<float>)
    .Kernel<double>(LogSoftmaxGradKernel<double>);

}  // namespace headrace::ops
