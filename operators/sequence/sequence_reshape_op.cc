// sequence_reshape: the elements of sequences in rows of another width.
#include <cstdint>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/tensor_size.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

void SequenceReshapeKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const LoDOffsets& offsets = SequencesOf(ctx, "X");
  const auto width = static_cast<size_t>(x.dims()[1]);
  const auto new_width = static_cast<size_t>(ctx.Attr<int32_t>("new_dim"));
  LoDOffsets rows = {0};
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const size_t elements = (offsets[s + 1] - offsets[s]) * width;
    HR_ENFORCE(elements % new_width == 0, InvalidArgument, "attribute new_dim: sequence ", s, " of input X has ",
               offsets[s + 1] - offsets[s], " rows of ", width, " elements, which do not make rows of ", new_width);
    rows.push_back(rows.back() + elements / new_width);
  }
  LoDTensor* out = ctx.Output("Out");
  out->CopyFrom(x);
  out->Resize({static_cast<int64_t>(rows.back()), static_cast<int64_t>(new_width)});
  out->set_lod({std::move(rows)});
}

void SequenceReshapeGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  const DDim dims = ctx.Input("X").dims();
  HR_ENFORCE(out_grad.numel() == Numel(dims), InvalidArgument,
             "input Out@GRAD: expected as many elements as X of dims ", ToString(dims), " has, got dims ",
             ToString(out_grad.dims()));
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  x_grad->CopyFrom(out_grad);
  x_grad->Resize(dims);
}

void CheckSequenceReshape(const InferShapeContext& ctx) {
  EnforceSequences(ctx, "X", 2);
  EnforceRank(ctx, "X", 2);
  EnforceLevelsAtMost(ctx, "X", 1);
  const int32_t width = ctx.Attr<int32_t>("new_dim");
  HR_ENFORCE(width > 0, InvalidArgument, "attribute new_dim: expected 1 or more, got ", width);
}

OpRegistrar&& NewDimAttr(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("new_dim", "the new width of the rows, 1 or more");
}

}  // namespace

HEADRACE_REGISTER_OP(sequence_reshape)
    .Comment("The elements of each sequence in rows of new_dim elements, which they must fill.")
    .Input("X", "[rows, D], with a LoD of one level")
    .Output("Out", "[rows D / new_dim, new_dim], with LoD")
    .With(NewDimAttr)
    .InferShape([](InferShapeContext& ctx) {
      CheckSequenceReshape(ctx);
      if (ctx.IsRuntime()) {
        return;  // the kernel knows how many rows there are
      }
      SetOutput(ctx, "Out", {-1, ctx.Attr<int32_t>("new_dim")}, ctx.InputType("X"));
      ctx.SetOutputLoDLevel("Out", ctx.InputLoDLevel("X"));
    })
    .Kernel<float>(SequenceReshapeKernel)
    .Kernel<double>(SequenceReshapeKernel)
    .Kernel<int32_t>(SequenceReshapeKernel)
    .Kernel<int64_t>(SequenceReshapeKernel)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(sequence_reshape_grad)
    .Comment("Gradient of sequence_reshape.")
    .Input("X", "as in the operator; only its dims and its LoD are used", kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims and LoD of X")
    .With(NewDimAttr)
    .InferShape([](InferShapeContext& ctx) {
      CheckSequenceReshape(ctx);
      EnforceDims(ctx, "Out@GRAD", {-1, ctx.Attr<int32_t>("new_dim")});
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
      ctx.ShareLoD("X", "X@GRAD");
    })
    .Kernel<float>(SequenceReshapeGradKernel)
    .Kernel<double>(SequenceReshapeGradKernel);

}  // namespace headrace::ops
