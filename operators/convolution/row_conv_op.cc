// row_conv: each row of a sequence with the ones behind it, weighted column by column (D. Amodei et al., Deep Speech 2,
// 2015).
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// Calls visit(first row, last row + 1) for each sequence: those of the LoD, or of [sequences, rows, D] without one.
template <typename Visit>
void ForEachSpan(const LoDTensor& x, const LoDOffsets* offsets, Visit&& visit) {
  const DDim& dims = x.dims();
  if (dims.size() == 3) {
    for (int64_t s = 0; s < dims[0]; ++s) {
      visit(s * dims[1], (s + 1) * dims[1]);
    }
    return;
  }
  ForEachSequence(*offsets, [&](int64_t, int64_t begin, int64_t end) { visit(begin, end); });
}

// Calls visit(row, row behind it or itself, row of Filter).
template <typename Visit>
void ForEachPair(const ExecutionContext& ctx, Visit&& visit) {
  const int64_t context = ctx.Input("Filter").dims()[0];
  const LoDTensor& x = ctx.Input("X");
  ForEachSpan(x, x.dims().size() == 3 ? nullptr : &SequencesOf(ctx, "X"), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t k = 0; k < std::min(context, end - row); ++k) {
        visit(row, row + k, k);
      }
    }
  });
}

template <typename T>
void RowConvKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const int64_t width = x_tensor.dims().back();
  T* out = ctx.Output("Out")->mutable_data<T>();
  std::fill_n(out, x_tensor.numel(), T(0));
  const T* x = x_tensor.data<T>();
  const T* filter = ctx.Input("Filter").data<T>();
  ForEachPair(ctx, [=](int64_t row, int64_t behind, int64_t k) {
    for (int64_t c = 0; c < width; ++c) {
      out[row * width + c] += x[behind * width + c] * filter[k * width + c];
    }
  });
}

template <typename T>
void RowConvGradKernel(const ExecutionContext& ctx) {
  const int64_t width = ctx.Input("X").dims().back();
  T* dx = ZerosOrNull<T>(ctx, "X@GRAD");
  T* filter_grad = ZerosOrNull<T>(ctx, "Filter@GRAD");
  const T* x = ctx.Input("X").data<T>();
  const T* filter = ctx.Input("Filter").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  ForEachPair(ctx, [=](int64_t row, int64_t behind, int64_t k) {
    for (int64_t c = 0; dx != nullptr && c < width; ++c) {
      dx[behind * width + c] += d[row * width + c] * filter[k * width + c];
    }
    for (int64_t c = 0; filter_grad != nullptr && c < width; ++c) {
      filter_grad[k * width + c] += d[row * width + c] * x[behind * width + c];
    }
  });
}

void CheckRowConv(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  if (x.size() == 3) {
    HR_ENFORCE(ctx.InputLoDLevel("X") == 0, InvalidArgument,
               "input X: expected [rows, D] with a LoD, or [sequences, rows, D] without one, got dims ", ToString(x),
               " and a LoD");
  } else {
    EnforceSequences(ctx, "X", 2);
    EnforceRank(ctx, "X", 2);
  }
  EnforceDims(ctx, "Filter", {-1, x.back()});
  EnforceSameType(ctx, "Filter", "X");
}

}  // namespace

HEADRACE_REGISTER_OP(row_conv)
    .Comment("The sum of Filter[k] * X[row + k] over k, within each sequence.")
    .Input("X", "[rows, D] with LoD, or [sequences, rows of each, D]")
    .Input("Filter", "[future context + 1, D], dtype of X")
    .Output("Out", "dims and LoD of X")
    .InferShape([](InferShapeContext& ctx) {
      CheckRowConv(ctx);
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(RowConvKernel<float>)
    .Kernel<double>(RowConvKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Filter"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(row_conv_grad)
    .Comment("Gradient of row_conv.")
    .Input("X", "as in the operator")
    .Input("Filter", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims and LoD of X", kDispensable)
    .Output("Filter@GRAD", "dims of Filter", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      CheckRowConv(ctx);
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Filter"});
      if (ctx.HasOutput("X@GRAD")) {
        ctx.ShareLoD("X", "X@GRAD");
      }
    })
    .Kernel<float>(RowConvGradKernel<float>)
    .Kernel<double>(RowConvGradKernel<double>);

}  // namespace headrace::ops
