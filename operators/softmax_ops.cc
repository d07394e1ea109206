// softmax, log_softmax: along the last dimension.
#include <algorithm>
#include <limits>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/reduction.h"
#include "operators/softmax.h"
#include "operators/vector_math.h"

namespace headrace::ops {

template <typename T>
void SubtractRowMaximum(int64_t rows, int64_t cols, const T* x, T* out) {
  for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
    T max = -std::numeric_limits<T>::infinity();
    for (int64_t c = 0; c < cols; ++c) {
      max = std::max(max, x[c]);
    }
    for (int64_t c = 0; c < cols; ++c) {
      out[c] = x[c] - max;
    }
  }
}

template <typename T>
void Softmax(int64_t rows, int64_t cols, const T* x, T* out) {
  SubtractRowMaximum(rows, cols, x, out);
  VectorExp(rows * cols, out, out);
  for (int64_t r = 0; r < rows; ++r, out += cols) {
    const T sum = Sum(cols, out);
    for (int64_t c = 0; c < cols; ++c) {
      out[c] /= sum;
    }
  }
}

template <typename T>
void SoftmaxGrad(int64_t rows, int64_t cols, const T* out, const T* out_grad, T* x_grad) {
  for (int64_t r = 0; r < rows; ++r, out += cols, out_grad += cols, x_grad += cols) {
    const T dot = SumOf<T>(cols, [=](int64_t c) { return out[c] * out_grad[c]; });
    for (int64_t c = 0; c < cols; ++c) {
      x_grad[c] = out[c] * (out_grad[c] - dot);
    }
  }
}

#define HEADRACE_INSTANTIATE(T)                                        \
  template void SubtractRowMaximum<T>(int64_t, int64_t, const T*, T*); \
  template void Softmax<T>(int64_t, int64_t, const T*, T*);            \
  template void SoftmaxGrad<T>(int64_t, int64_t, const T*, const T*, T*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

namespace {

template <typename T>
void SoftmaxKernel(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("Out");
  T* to = out->mutable_data<T>();
  const MatrixSize s(*out);
  Softmax(s.rows, s.cols, ctx.Input("X").data<T>(), to);
}

template <typename T>
void SoftmaxGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out = ctx.Input("Out");
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const MatrixSize s(out);
  SoftmaxGrad(s.rows, s.cols, out.data<T>(), ctx.Input("Out@GRAD").data<T>(), dx);
}

template <typename T>
void LogSoftmaxKernel(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("Out");
  T* to = out->mutable_data<T>();
  const auto [rows, cols] = MatrixSize(*out);
  SubtractRowMaximum(rows, cols, ctx.Input("X").data<T>(), to);
  std::vector<T> exp(static_cast<size_t>(rows == 0 ? 0 : cols));
  for (int64_t r = 0; r < rows; ++r, to += cols) {
    VectorExp(cols, to, exp.data());
    T log_sum = Sum(cols, exp.data());
    VectorLog(1, &log_sum, &log_sum);
    for (int64_t c = 0; c < cols; ++c) {
      to[c] -= log_sum;
    }
  }
}

template <typename T>
void LogSoftmaxGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out = ctx.Input("Out");
  const auto [rows, cols] = MatrixSize(out);
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T* log_p = out.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  std::vector<T> p(static_cast<size_t>(rows == 0 ? 0 : cols));
  for (int64_t r = 0; r < rows; ++r, log_p += cols, d += cols, dx += cols) {
    const T sum = Sum(cols, d);
    VectorExp(cols, log_p, p.data());
    for (int64_t c = 0; c < cols; ++c) {
      dx[c] = d[c] - p[static_cast<size_t>(c)] * sum;
    }
  }
}

void EnforceLastAxis(const InferShapeContext& ctx, std::string_view slot) {
  EnforceRankAtLeast(ctx, slot, 1);
  const size_t rank = ctx.InputDim(slot).size();
  const int32_t axis = ctx.Attr<int32_t>("axis");
  HR_ENFORCE(FrontAxis(axis, rank, "axis") + 1 == rank, Unimplemented,
             "attribute axis: only the last dimension is supported (-1, or ", rank - 1, " here), got ", axis,
             "; transpose X first");
}

void InferSoftmax(InferShapeContext& ctx) {
  EnforceLastAxis(ctx, "X");
  ctx.ShareAll("X", "Out");
}

void InferSoftmaxGrad(InferShapeContext& ctx) {
  EnforceLastAxis(ctx, "Out");
  EnforceDims(ctx, "Out@GRAD", ctx.InputDim("Out"));
  EnforceSameType(ctx, "Out@GRAD", "Out");
  SetOutput(ctx, "X@GRAD", ctx.InputDim("Out"), ctx.InputType("Out"));
}

OpRegistrar&& ForwardSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "[..., classes]")
      .Output("Out", "dims and LoD of X")
      .InPlace("Out", "X")
      .Attr<int32_t>("axis", "the dimension of the classes: the last one", -1)
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
    .Comment("exp(X) divided by its sum over the last dimension. Out may be X.")
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
