// reshape, flatten, squeeze, unsqueeze and their second versions: other dims over the same elements.
#include <algorithm>
#include <string>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

// --- the dims of the result, by family ---

DDim Reshaped(const OpDesc& op, const DDim& x) {
  const auto& shape = op.Attr<std::vector<int32_t>>("shape");
  HR_ENFORCE(!shape.empty(), InvalidArgument, "attribute shape: expected at least one dimension");
  DDim out;
  size_t inferred = shape.size();
  for (size_t d = 0; d < shape.size(); ++d) {
    HR_ENFORCE(shape[d] >= -1, InvalidArgument, "attribute shape: expected dimensions, 0 or -1, got ",
               ToString(Attribute(shape)));
    if (shape[d] == -1) {
      HR_ENFORCE(inferred == shape.size(), InvalidArgument, "attribute shape: expected at most one -1, got ",
                 ToString(Attribute(shape)));
      inferred = d;
    }
    HR_ENFORCE(shape[d] != 0 || d < x.size(), InvalidArgument, "attribute shape: its dimension ", d,
               " is 0, to be copied from X, which has dims ", ToString(x));
    out.push_back(shape[d] == 0 ? x[d] : shape[d]);
  }
  const int64_t numel = Numel(x);
  if (inferred < shape.size()) {
    out[inferred] = 1;
    const int64_t others = Numel(out);
    out[inferred] = -1;
    if (numel >= 0 && others >= 0) {
      HR_ENFORCE(others != 0 ? numel % others == 0 : numel == 0, InvalidArgument, "input X: dims ", ToString(x),
                 " do not fit attribute shape ", ToString(Attribute(shape)));
      out[inferred] = others == 0 ? 0 : numel / others;
    }
  } else {
    HR_ENFORCE(Fits(numel, Numel(out)), InvalidArgument, "input X: dims ", ToString(x), " do not fit attribute shape ",
               ToString(Attribute(shape)));
  }
  return out;
}

DDim Flattened(const OpDesc& op, const DDim& x) {
  const int32_t axis = op.Attr<int32_t>("axis");
  HR_ENFORCE(0 <= axis && static_cast<size_t>(axis) <= x.size(), InvalidArgument,
             "attribute axis: expected a number in [0, ", x.size(), "] for X of dims ", ToString(x), ", got ", axis);
  return {Numel(x, 0, static_cast<size_t>(axis)), Numel(x, static_cast<size_t>(axis), x.size())};
}

DDim Squeezed(const OpDesc& op, const DDim& x) {
  const auto& axes = op.Attr<std::vector<int32_t>>("axes");
  HR_ENFORCE(!axes.empty() || Numel(x) >= 0, InvalidArgument,
             "attribute axes: expected the dimensions to drop, since those of X are not all known: ", ToString(x));
  PoolVector<bool> dropped(x.size(), false);
  for (const int32_t axis : axes) {
    const size_t d = FrontAxis(axis, x.size(), "axes");
    HR_ENFORCE(Fits(x[d], 1), InvalidArgument, "attribute axes: expected dimensions of 1 of X, which has dims ",
               ToString(x), ", got ", axis);
    dropped[d] = true;
  }
  DDim out;
  for (size_t d = 0; d < x.size(); ++d) {
    if (!(axes.empty() ? x[d] == 1 : dropped[d])) {
      out.push_back(x[d]);
    }
  }
  return out.empty() ? DDim{1} : out;
}

DDim Unsqueezed(const OpDesc& op, const DDim& x) {
  DDim out = x;
  for (const int32_t axis : op.Attr<std::vector<int32_t>>("axes")) {
    const size_t d = FrontAxis(axis, out.size() + 1, "axes");
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(d), 1);
  }
  return out;
}

using DimsOf = DDim (*)(const OpDesc&, const DDim&);

// --- shared by all ---

template <DimsOf kDims>
void InferForward(InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const DDim out = kDims(ctx.op(), x);
  const DataType dtype = ctx.InputType("X");
  if (ctx.HasOutput("XShape")) {
    DDim x_shape = {0};
    x_shape.insert(x_shape.end(), x.begin(), x.end());
    SetOutput(ctx, "XShape", x_shape, dtype);
  }
  // While the rows stay what they are, so do the sequences.
  if (!x.empty() && out[0] == x[0]) {
    ctx.ShareLoD("X", "Out");
  }
  SetOutput(ctx, "Out", out, dtype);
}

void ForwardKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output("Out");
  if (LoDTensor* x_shape = ctx.OutputOrNull("XShape")) {
    x_shape->mutable_data(x.dtype());
  }
  if (&x != out) {
    const DDim dims = out->dims();
    out->CopyFrom(x);
    out->Resize(dims);
  }
}

void InferBackward(InferShapeContext& ctx) {
  DDim x;
  if (ctx.HasInput("XShape")) {
    const DDim x_shape = ctx.InputDim("XShape");
    HR_ENFORCE(!x_shape.empty(), InvalidArgument, "input XShape: expected 0 and the dims of X, got []");
    x.assign(x_shape.begin() + 1, x_shape.end());
  } else {
    x = ctx.InputDim("X");
  }
  const DDim out_grad = ctx.InputDim("Out@GRAD");
  HR_ENFORCE(Fits(Numel(x), Numel(out_grad)), InvalidArgument,
             "input Out@GRAD: expected as many elements as X of dims ", ToString(x), ", got dims ", ToString(out_grad));
  SetOutput(ctx, "X@GRAD", x, ctx.InputType("Out@GRAD"));
}

void BackwardKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  if (&out_grad != x_grad) {
    const DDim dims = x_grad->dims();
    x_grad->CopyFrom(out_grad);
    x_grad->Resize(dims);
  }
}

OpRegistrar&& XShapeOutput(OpRegistrar&& op) {
  return std::move(op).Output("XShape", "without elements; its dims are 0 and those of X, for the gradient",
                              kDispensable);
}
OpRegistrar&& XShapeInputs(OpRegistrar&& op) {
  return std::move(op)
      .Input("XShape", "as in the operator")
      .Input("XShape@GRAD", "not used", kDispensable)
      .KernelTypeFrom("Out@GRAD");
}
OpRegistrar&& NoXShape(OpRegistrar&& op) { return std::move(op); }
OpRegistrar&& XInput(OpRegistrar&& op) {
  return std::move(op).Input("X", "as in the operator; only its dims are used");
}

// `type`, whose gradient needs X, and `type`2, whose gradient needs only XShape, so that X can go.
template <DimsOf kDims>
bool Register(const std::string& type, const std::string& comment, OpRegistrar && (*attrs)(OpRegistrar&&)) {
  for (const bool second : {false, true}) {
    const std::string name = second ? type + "2" : type;
    GradientUses uses;
    (second ? uses.outputs : uses.inputs) = {second ? "XShape" : "X"};
    OpRegistrar(name)
        .Comment(comment + " Out may be X.")
        .Input("X", "any shape")
        .Output("Out", "the elements of X")
        .InPlace("Out", "X")
        .With(second ? XShapeOutput : NoXShape)
        .With(attrs)
        .InferShape(InferForward<kDims>)
        .With(KernelForAllTypes, ForwardKernel)
        .Gradient(DefaultGradient(uses))
        .Register();
    OpRegistrar(name + "_grad")
        .Comment("Gradient of " + name + ". X@GRAD may be Out@GRAD.")
        .Input("Out@GRAD", "gradient of Out")
        .With(second ? XShapeInputs : XInput)
        .Output("X@GRAD", "dims of X")
        .InPlace("X@GRAD", "Out@GRAD")
        .With(attrs)
        .InferShape(InferBackward)
        .With(KernelForAllTypes, BackwardKernel)
        .Register();
  }
  return true;
}

OpRegistrar&& ShapeAttr(OpRegistrar&& op) {
  return std::move(op).Attr<std::vector<int32_t>>(
      "shape", "dims of Out; 0: that of X at the same place, -1 (once): what remains");
}
OpRegistrar&& AxisAttr(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("axis", "how many dimensions of X make the first of Out", 1);
}
OpRegistrar&& SqueezeAttr(OpRegistrar&& op) {
  return std::move(op).Attr<std::vector<int32_t>>("axes",
                                                  "the dimensions to drop, of extent 1; empty: all of that extent", {});
}
OpRegistrar&& UnsqueezeAttr(OpRegistrar&& op) {
  return std::move(op).Attr<std::vector<int32_t>>("axes", "where dimensions of 1 are put in, one after the other");
}

[[maybe_unused]] const bool kReshapeOps = Register<Reshaped>("reshape", "Other dims.", ShapeAttr) &&
                                          Register<Flattened>("flatten", "A matrix.", AxisAttr) &&
                                          Register<Squeezed>("squeeze", "Fewer dimensions of 1.", SqueezeAttr) &&
                                          Register<Unsqueezed>("unsqueeze", "More dimensions of 1.", UnsqueezeAttr);

}  // namespace
}  // namespace headrace::ops
