// cvm: the columns of shows and clicks in embeddings of click-through models, as Fluid has them.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

constexpr int64_t kCounts = 2;  // columns: shows and clicks

template <typename T>
void CvmKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const int64_t rows = x_tensor.dims()[0];
  const int64_t width = x_tensor.dims()[1];
  const T* x = x_tensor.data<T>();
  T* y = ctx.Output("Y")->mutable_data<T>();
  const bool use_cvm = ctx.Attr<bool>("use_cvm");
  const auto write = [=](int64_t r) {
    const T* from = x + r * width;
    T* to = y + r * (use_cvm ? width : width - kCounts);
    if (use_cvm) {
      *to++ = std::log(from[0] + 1);
      *to++ = std::log(from[1] + 1) - std::log(from[0] + 1);
    }
    std::copy(from + kCounts, from + width, to);
  };
  ParallelForEach(rows, write, width + 32);
}

// The gradient of the counts is CVM: what it leads to is no optimizer, but a table that counts.
template <typename T>
void CvmGradKernel(const ExecutionContext& ctx) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  const int64_t width = x_grad->dims()[1];
  const T* counts = ctx.Input("CVM").data<T>();
  const T* d = ctx.Input("Y@GRAD").data<T>();
  T* dx = x_grad->mutable_data<T>();
  const int64_t skipped = ctx.Attr<bool>("use_cvm") ? kCounts : 0;
  const auto write = [=](int64_t sequence, int64_t r) {
    T* to = std::copy_n(counts + sequence * kCounts, kCounts, dx + r * width);
    std::copy_n(d + r * (width - kCounts + skipped) + skipped, width - kCounts, to);
  };
  if (ctx.Input("X").lod_level() == 0) {
    ParallelForEach(x_grad->dims()[0], [=](int64_t r) { write(r, r); }, width);
    return;
  }
  const LoDOffsets& offsets = SequencesOf(ctx, "X");
  HR_ENFORCE(SequenceCount(offsets) == ctx.Input("CVM").dims()[0], InvalidArgument, "input CVM: expected ",
             SequenceCount(offsets), " rows, one for each sequence of X, got ", ctx.Input("CVM").dims()[0]);
  ForEachSequenceInParallel(offsets, width, [=](int64_t s, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      write(s, r);
    }
  });
}

// Returns the dims of Y.
DDim CheckCvm(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  EnforceLevelsAtMost(ctx, "X", 1);
  DDim x = ctx.InputDim("X");
  HR_ENFORCE(x[1] < 0 || x[1] >= kCounts, InvalidArgument,
             "input X: expected columns of shows and clicks and others, got dims ", ToString(x));
  EnforceDims(ctx, "CVM", {ctx.IsRuntime() && ctx.InputLoDLevel("X") == 0 ? x[0] : -1, kCounts});
  EnforceSameType(ctx, "CVM", "X");
  if (!ctx.Attr<bool>("use_cvm") && x[1] >= 0) {
    x[1] -= kCounts;
  }
  return x;
}

OpRegistrar&& CvmAttr(OpRegistrar&& op) {
  return std::move(op)
      .Attr<bool>("use_cvm", "whether the columns of shows and clicks stay, as logarithms", true)
      .KernelTypeFrom("X");
}

}  // namespace

HEADRACE_REGISTER_OP(cvm)
    .Comment(
        "Embeddings of which the first two columns count shows and clicks: log(shows + 1) and log(clicks + 1) - "
        "log(shows + 1) stand there in the result, or nothing.")
    .Input("X", "[N, D], of a D of 2 or more")
    .Input("CVM", "[N, 2], or a row for each sequence of X, dtype of X: shows and clicks, which the gradient of X has")
    .Output("Y", "[N, D] or, without use_cvm, [N, D - 2], with the LoD of X")
    .With(CvmAttr)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Y", CheckCvm(ctx), ctx.InputType("X"));
      ctx.ShareLoD("X", "Y");
    })
    .Kernel<float>(CvmKernel<float>)
    .Kernel<double>(CvmKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "CVM"}, .outputs = {}, .no_gradient = {"CVM"}}));

HEADRACE_REGISTER_OP(cvm_grad)
    .Comment("Gradient of cvm: CVM in the first two columns, and the gradient of Y in the others.")
    .Input("X", "as in the operator; only its dims and its LoD are used", kShapeOnly)
    .Input("CVM", "as in the operator")
    .Input("Y@GRAD", "gradient of Y")
    .Output("X@GRAD", "dims of X")
    .With(CvmAttr)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Y@GRAD", CheckCvm(ctx));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(CvmGradKernel<float>)
    .Kernel<double>(CvmGradKernel<double>);

}  // namespace headrace::ops
