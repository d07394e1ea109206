// row_conv: each row of a sequence with the ones behind it, weighted column by column (D. Amodei et al., Deep Speech 2,
// 2015).
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// The sequences: those of the LoD, or of [sequences, rows, D] without one.
LoDOffsets SpansOf(const ExecutionContext& ctx) {
  const DDim& dims = ctx.Input("X").dims();
  if (dims.size() != 3) {
    return SequencesOf(ctx, "X");
  }
  LoDOffsets offsets = {0};
  for (int64_t s = 0; s < dims[0]; ++s) {
    offsets.push_back(offsets.back() + static_cast<size_t>(dims[1]));
  }
  return offsets;
}

// Calls visit(row, row behind it or itself, row of Filter) for each row of a sequence.
template <typename Visit>
void ForEachPairOf(int64_t begin, int64_t end, int64_t context, const Visit& visit) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t k = 0; k < std::min(context, end - row); ++k) {
      visit(row, row + k, k);
    }
  }
}

// The same for all sequences, from several threads, each of which has sequences of its own.
template <typename Visit>
void ForEachPair(const ExecutionContext& ctx, const Visit& visit) {
  const DDim& filter = ctx.Input("Filter").dims();
  ForEachSequenceInParallel(
      SpansOf(ctx), filter[0] * filter[1],
      [&, context = filter[0]](int64_t, int64_t begin, int64_t end) { ForEachPairOf(begin, end, context, visit); });
}

template <typename T>
void RowConvKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const int64_t width = x_tensor.dims().back();
  T* out = ctx.Output("Out")->mutable_data<T>();
  ParallelFill(out, x_tensor.numel(), T(0));
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
  if (dx != nullptr) {
    ForEachPair(ctx, [=](int64_t row, int64_t behind, int64_t k) {
      for (int64_t c = 0; c < width; ++c) {
        dx[behind * width + c] += d[row * width + c] * filter[k * width + c];
      }
    });
  }
  if (filter_grad == nullptr) {
    return;
  }
  // Each thread has some of the columns, and goes through all rows in their order.
  const LoDOffsets spans = SpansOf(ctx);
  const int64_t context = ctx.Input("Filter").dims()[0];
  constexpr int64_t kColumnsPerBlock = 64;
  ParallelFor(width, kColumnsPerBlock, [=, &spans](int64_t first, int64_t last) {
    ForEachSequence(spans, [=](int64_t, int64_t begin, int64_t end) {
      ForEachPairOf(begin, end, context, [=](int64_t row, int64_t behind, int64_t k) {
        for (int64_t c = first; c < last; ++c) {
          filter_grad[k * width + c] += d[row * width + c] * x[behind * width + c];
        }
      });
    });
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
