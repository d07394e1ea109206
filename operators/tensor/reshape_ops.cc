// reshape, flatten, squeeze, unsqueeze and their second versions: other dims over the same elements.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/common/registration.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// --- the dims of the result, by family ---

constexpr IntsSlots kReshapeShape = {"shape", "Shape", "ShapeTensor"};
constexpr IntsSlots kUnsqueezeAxes = {"axes", "AxesTensor", "AxesTensorList"};

DDim Reshaped(const OpArgs& args, const DDim& x) {
  const IntsArg shape = args.Ints(kReshapeShape);
  HR_ENFORCE(shape.size() > 0, InvalidArgument, shape.Name(), ": expected at least one dimension");
  DDim out;
  size_t inferred = shape.size();
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == kUnknown) {
      out.push_back(-1);
      continue;
    }
    HR_ENFORCE(shape[d] >= -1, InvalidArgument, shape.Name(), ": expected dimensions, 0 or -1, got ", shape.Values());
    if (shape[d] == -1) {
      HR_ENFORCE(inferred == shape.size(), InvalidArgument, shape.Name(), ": expected at most one -1, got ",
                 shape.Values());
      inferred = d;
    }
    HR_ENFORCE(shape[d] != 0 || d < x.size(), InvalidArgument, shape.Name(), ": its dimension ", d,
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
                 " do not fit ", shape.Name(), " ", shape.Values());
      out[inferred] = others == 0 ? 0 : numel / others;
    }
  } else {
    HR_ENFORCE(Fits(numel, Numel(out)), InvalidArgument, "input X: dims ", ToString(x), " do not fit ", shape.Name(),
               " ", shape.Values());
  }
  return out;
}

DDim Flattened(const OpArgs& args, const DDim& x) {
  const int32_t axis = args.Attr<int32_t>("axis");
  HR_ENFORCE(0 <= axis && static_cast<size_t>(axis) <= x.size(), InvalidArgument,
             "attribute axis: expected a number in [0, ", x.size(), "] for X of dims ", ToString(x), ", got ", axis);
  return {Numel(x, 0, static_cast<size_t>(axis)), Numel(x, static_cast<size_t>(axis), x.size())};
}

DDim Squeezed(const OpArgs& args, const DDim& x) {
  const auto& axes = args.Attr<std::vector<int32_t>>("axes");
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

DDim Unsqueezed(const OpArgs& args, const DDim& x) {
  const IntsArg axes = args.Ints(kUnsqueezeAxes);
  DDim out = x;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] == kUnknown) {
      return DDim(x.size() + axes.size(), -1);
    }
    const auto rank = static_cast<int64_t>(out.size()) + 1;
    HR_ENFORCE(-rank <= axes[i] && axes[i] < rank, InvalidArgument, axes.Name(), ": expected a dimension in [", -rank,
               ", ", rank, ") of a tensor of rank ", rank, ", got ", axes[i]);
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(axes[i] < 0 ? axes[i] + rank : axes[i]), 1);
  }
  return out;
}

using DimsOf = DDim (*)(const OpArgs&, const DDim&);

// --- shared by all ---

// Whether the rows of both may have as many elements.
bool MayBeAsWide(const DDim& x, const DDim& out) { return Fits(Numel(x, 1, x.size()), Numel(out, 1, out.size())); }

// `kInputs`: what may say which dims Out has; nullptr: attributes alone do.
template <DimsOf kDims, const IntsSlots* kInputs>
void InferForward(InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const DDim out = kDims(ctx, x);
  const DataType dtype = ctx.InputType("X");
  if (ctx.HasOutput("XShape")) {
    DDim x_shape = {0};
    x_shape.insert(x_shape.end(), x.begin(), x.end());
    SetOutput(ctx, "XShape", x_shape, dtype);
  }
  // While the rows stay what they are, so do the sequences. Before the run, rows that inputs say may stay.
  bool may_stay = false;
  if constexpr (kInputs != nullptr) {
    may_stay = !ctx.IsRuntime() && out[0] < 0 && OpArgs(ctx).FromInputs(*kInputs);
  }
  if (!x.empty() && (out[0] == x[0] || may_stay) && (out[0] >= 0 || MayBeAsWide(x, out))) {
    ctx.ShareLoD("X", "Out");
  }
  SetKnownOutput(ctx, "Out", out, dtype);
}

template <DimsOf kDims, const IntsSlots* kInputs>
void ForwardKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output("Out");
  DDim dims = out->dims();
  if constexpr (kInputs != nullptr) {
    if (OpArgs(ctx).FromInputs(*kInputs)) {
      dims = kDims(ctx, x.dims());
      out->set_lod(!x.dims().empty() && dims[0] == x.dims()[0] ? x.lod() : LoD{});
    }
  }
  if (LoDTensor* x_shape = ctx.OutputOrNull("XShape")) {
    x_shape->mutable_data(x.dtype());
  }
  if (&x != out) {
    out->CopyFrom(x);
  }
  out->Resize(dims);
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

// The gradient of X@GRAD has to get the dims of Out@GRAD, as if it were the gradient of one of `type` for an X that had
// them. So attributes and inputs that say the dims are not needed again.
std::vector<OpDesc> ReshapeLikeOutGradient(const std::string& type, const OpDesc& op) {
  GradientTerms terms(op);
  terms.Add(type + "_grad", {{"X", terms.Value("Out@GRAD")}, {"Out@GRAD", terms.Given("X@GRAD")}},
            {{"X@GRAD", terms.Wanted("Out@GRAD")}}, terms.Attrs());
  return terms.Take();
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
  return std::move(op).Input("X", "as in the operator; only its dims are used", kShapeOnly);
}

template <const IntsSlots* kInputs>
OpRegistrar&& InputsInstead(OpRegistrar&& op) {
  if constexpr (kInputs != nullptr) {
    return IntsInputs(std::move(op), *kInputs);
  }
  return std::move(op);
}

// `type`, whose gradient needs X, and `type`2, whose gradient needs only XShape, so that X can go.
template <DimsOf kDims, const IntsSlots* kInputs = nullptr>
void Register(const std::string& type, const std::string& comment, OpRegistrar && (*attrs)(OpRegistrar&&)) {
  for (const bool second : {false, true}) {
    const std::string name = second ? type + "2" : type;
    GradientUses uses;
    (second ? uses.outputs : uses.inputs).emplace_back(second ? "XShape" : "X");
    if constexpr (kInputs != nullptr) {
      uses = WithInts(std::move(uses), {*kInputs}, false);
    }
    OpRegistrar(name)
        .Comment(comment + " Out may be X.")
        .Input("X", "any shape")
        .With(InputsInstead<kInputs>)
        .Output("Out", "the elements of X")
        .InPlace("Out", "X")
        .With(second ? XShapeOutput : NoXShape)
        .With(attrs)
        .InferShape(InferForward<kDims, kInputs>)
        .With(KernelForAllTypes, ForwardKernel<kDims, kInputs>)
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
        .Gradient([type](const OpDesc& op) { return ReshapeLikeOutGradient(type, op); })
        .Register();
  }
}

OpRegistrar&& ShapeAttr(OpRegistrar&& op) {
  return std::move(op).Attr<std::vector<int32_t>>(
      "shape", "dims of Out; 0: that of X at the same place, -1 (once): what remains", {});
}
OpRegistrar&& AxisAttr(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("axis", "how many dimensions of X make the first of Out", 1);
}
OpRegistrar&& SqueezeAttr(OpRegistrar&& op) {
  return std::move(op).Attr<std::vector<int32_t>>("axes",
                                                  "the dimensions to drop, of extent 1; empty: all of that extent", {});
}
OpRegistrar&& UnsqueezeAttr(OpRegistrar&& op) {
  return std::move(op).Attr<std::vector<int32_t>>("axes", "where dimensions of 1 are put in, one after the other", {});
}

HEADRACE_REGISTER_OPS(reshape_ops) {
  Register<Reshaped, &kReshapeShape>("reshape", "Other dims.", ShapeAttr);
  Register<Flattened>("flatten", "A matrix.", AxisAttr);
  Register<Squeezed>("squeeze", "Fewer dimensions of 1.", SqueezeAttr);
  Register<Unsqueezed, &kUnsqueezeAxes>("unsqueeze", "More dimensions of 1.", UnsqueezeAttr);
}

}  // namespace
}  // namespace headrace::ops
