// concat, split: pieces side by side, of any dtype.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/join_and_cut.h"

namespace headrace::ops {
namespace {

constexpr IntsSlots kSplitSections = {"sections", "", "SectionsTensorList"};

std::optional<size_t> AxisOf(const OpArgs& args, size_t rank) { return args.Axis("axis", "AxisTensor", rank); }

// The dims of tensors of dims `pieces` one after the other along `axis`; all unknown if that is.
DDim JoinedDims(const PoolVector<DDim>& pieces, std::optional<size_t> axis) {
  DDim dims = axis ? pieces[0] : DDim(pieces[0].size(), -1);
  for (size_t k = 1; k < pieces.size(); ++k) {
    const DDim& other = pieces[k];
    DDim expected = dims;
    if (axis) {
      expected[*axis] = -1;
    }
    bool fits = other.size() == expected.size();
    for (size_t d = 0; fits && d < expected.size(); ++d) {
      fits = Fits(expected[d], other[d]);
    }
    HR_ENFORCE(fits, InvalidArgument, "input X: expected dims ", ToString(expected), ", got ", ToString(other));
    for (size_t d = 0; axis && d < dims.size(); ++d) {
      dims[d] =
          d == axis ? (dims[d] < 0 || other[d] < 0 ? -1 : AddExtents(dims[d], other[d])) : std::max(dims[d], other[d]);
    }
  }
  return dims;
}

// Out has the rank of the first tensor. As in Fluid, others may have further dimensions of 1 at the end; one that is
// not known yet may be that.
void CutToFirstRank(PoolVector<DDim>* dims) {
  for (DDim& other : *dims) {
    while (other.size() > dims->front().size() && Fits(other.back(), 1)) other.pop_back();
  }
}

PoolVector<DDim> DimsOfX(const ExecutionContext& ctx) {
  PoolVector<DDim> dims;
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    dims.push_back(ctx.Input("X", k).dims());
  }
  CutToFirstRank(&dims);
  return dims;
}

void ConcatKernel(const ExecutionContext& ctx) {
  const PoolVector<DDim> dims = DimsOfX(ctx);
  const size_t axis = *AxisOf(ctx, dims[0].size());
  PoolVector<const LoDTensor*> pieces;
  PoolVector<int64_t> extents;
  for (size_t k = 0; k < dims.size(); ++k) {
    pieces.push_back(&ctx.Input("X", k));
    extents.push_back(dims[k][axis]);
  }
  LoDTensor* out = ctx.Output("Out");
  if (ctx.HasInput("AxisTensor")) {  // otherwise shape inference has done so
    out->Resize(JoinedDims(dims, axis));
    if (axis == 0) {
      out->set_lod({});
    }
  }
  Join(pieces, extents, out, pieces[0]->dtype(), axis);
}

void ConcatGradKernel(const ExecutionContext& ctx) {
  const PoolVector<DDim> dims = DimsOfX(ctx);
  const size_t axis = *AxisOf(ctx, dims[0].size());
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  const DDim joined = JoinedDims(dims, axis);
  HR_ENFORCE(out_grad.dims() == joined, InvalidArgument, "input Out@GRAD: expected dims ", ToString(joined), ", got ",
             ToString(out_grad.dims()));
  PoolVector<LoDTensor*> pieces;
  PoolVector<int64_t> extents;
  for (size_t k = 0; k < dims.size(); ++k) {
    pieces.push_back(ctx.OutputOrNull("X@GRAD", k));
    extents.push_back(dims[k][axis]);
  }
  Cut(out_grad, pieces, extents, axis);
}

// A piece without a gradient counts as zero.
void ConcatGradGradKernel(const ExecutionContext& ctx) {
  const PoolVector<DDim> dims = DimsOfX(ctx);
  const size_t axis = *AxisOf(ctx, dims[0].size());
  PoolVector<const LoDTensor*> pieces;
  PoolVector<int64_t> extents;
  for (size_t k = 0; k < dims.size(); ++k) {
    pieces.push_back(ctx.InputOrNull("X@GRAD@GRAD", k));
    extents.push_back(dims[k][axis]);
  }
  LoDTensor* out = ctx.Output("Out@GRAD@GRAD");
  out->Resize(JoinedDims(dims, axis));  // as shape inference did, unless AxisTensor says which dims they are
  Join(pieces, extents, out, ctx.Input("X").dtype(), axis);
}

std::vector<OpDesc> ConcatGradGradient(const OpDesc& op) {
  OpDesc gradient{"concat_grad_grad", {{"X", op.Input("X")}}, {}, op.attrs};
  if (!op.Input("AxisTensor").empty()) {
    gradient.inputs["AxisTensor"] = op.Input("AxisTensor");
  }
  for (const std::string& name : op.Output("X@GRAD")) {
    gradient.inputs["X@GRAD@GRAD"].push_back(name == kEmptyVarName ? name : GradVarName(name));
  }
  gradient.outputs["Out@GRAD@GRAD"] = {GradVarName(op.Input("Out@GRAD").front())};
  return {std::move(gradient)};
}

// Sections without a gradient need none of it either.
std::vector<OpDesc> SplitGradGradient(const OpDesc& op) {
  OpDesc split{"split", {{"X", {GradVarName(op.Output("X@GRAD").front())}}}, {}, op.attrs};
  for (const char* slot : {"AxisTensor", "SectionsTensorList"}) {
    if (!op.Input(slot).empty()) {
      split.inputs[slot] = op.Input(slot);
    }
  }
  for (const std::string& name : op.Input("Out@GRAD")) {
    split.outputs["Out"].push_back(name == kEmptyVarName ? name : GradVarName(name));
  }
  return {std::move(split)};
}

// The dims of the concatenation of the variables of X.
DDim ConcatDims(const InferShapeContext& ctx) {
  HR_ENFORCE(ctx.InputSize("X") > 0, InvalidArgument, "input X: expected at least one variable, got none");
  PoolVector<DDim> dims;
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    EnforceSameType(ctx, "X", "X", k);
    dims.push_back(ctx.InputDim("X", k));
  }
  CutToFirstRank(&dims);
  return JoinedDims(dims, AxisOf(ctx, dims[0].size()));
}

OpRegistrar&& AxisInput(OpRegistrar&& op) {
  return std::move(op).Input("AxisTensor", "int32 or int64 [1]: the axis, instead of the attribute", kDispensable);
}

OpRegistrar&& ConcatAttrs(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("axis", "the dimension along which they lie; negative ones count from the back",
                                     0);
}

// The extents of `count` sections of an axis of extent `extent` (-1 where unknown).
PoolVector<int64_t> Sections(const OpArgs& args, int64_t extent, size_t count) {
  const IntsArg sections = args.Ints(kSplitSections);
  const int32_t num = args.Attr<int32_t>("num");
  HR_ENFORCE((sections.size() == 0) != (num == 0), InvalidArgument, "attribute num and ", sections.Name(),
             ": expected one of the two, got num ", num, " and sections ", sections.Values());
  if (num != 0) {
    HR_ENFORCE(num > 0 && static_cast<size_t>(num) == count, InvalidArgument, "attribute num: expected ", count,
               ", the number of variables of output Out, got ", num);
    HR_ENFORCE(extent < 0 || extent % num == 0, InvalidArgument, "attribute num: expected a divisor of ", extent,
               ", the extent of the dimension of X that is split, got ", num);
    return PoolVector<int64_t>(count, extent < 0 ? -1 : extent / num);
  }
  HR_ENFORCE(sections.size() == count, InvalidArgument, sections.Name(), ": expected ", count,
             " numbers, one for each variable of output Out, got ", sections.Values());
  PoolVector<int64_t> extents;
  std::optional<size_t> rest;
  bool known = true;
  int64_t sum = 0;
  for (size_t k = 0; k < count; ++k) {
    const int64_t section = sections[k];
    if (section == kUnknown) {
      known = false;
      extents.push_back(-1);
      continue;
    }
    HR_ENFORCE(section >= 0 || (section == -1 && !rest), InvalidArgument, sections.Name(),
               ": expected numbers >= 0, one of which may be -1, got ", sections.Values());
    rest = section < 0 ? k : rest;
    sum = AddExtents(sum, std::max<int64_t>(section, 0));
    extents.push_back(section);
  }
  if (rest || !known) {
    HR_ENFORCE(extent < 0 || sum <= extent, InvalidArgument, sections.Name(), ": expected a sum of at most ", extent,
               ", the extent of the dimension of X that is split, got ", sections.Values());
    if (rest && known) {
      extents[*rest] = extent < 0 ? -1 : extent - sum;
    }
    return extents;
  }
  HR_ENFORCE(Fits(extent, sum), InvalidArgument, sections.Name(), ": expected the sum ", extent,
             ", the extent of the dimension of X that is split, got ", sections.Values());
  return extents;
}

DDim SectionDims(DDim x, size_t axis, int64_t extent) {
  x[axis] = extent;
  return x;
}

// The dims of `count` sections of a tensor of dims `x`.
PoolVector<DDim> SplitDims(const OpArgs& args, const DDim& x, size_t count) {
  const std::optional<size_t> axis = AxisOf(args, x.size());
  PoolVector<DDim> dims;
  for (const int64_t extent : Sections(args, axis ? x[*axis] : -1, count)) {
    dims.push_back(axis ? SectionDims(x, *axis, extent) : DDim(x.size(), -1));
  }
  return dims;
}

void SplitKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const size_t axis = *AxisOf(ctx, x.dims().size());
  PoolVector<LoDTensor*> pieces;
  for (size_t k = 0; k < ctx.OutputSize("Out"); ++k) {
    pieces.push_back(ctx.OutputOrNull("Out", k));
  }
  const PoolVector<DDim> dims = SplitDims(ctx, x.dims(), pieces.size());
  PoolVector<int64_t> extents;
  for (size_t k = 0; k < pieces.size(); ++k) {
    extents.push_back(dims[k][axis]);
    if (pieces[k] != nullptr) {
      pieces[k]->Resize(dims[k]);  // as shape inference did, unless inputs say which dims they are
      if (axis == 0) {
        pieces[k]->set_lod({});
      }
    }
  }
  Cut(x, pieces, extents, axis);
}

// A section whose gradient was not computed has the gradient zero.
void SplitGradKernel(const ExecutionContext& ctx) {
  const DDim& x = ctx.Input("X").dims();
  const size_t axis = *AxisOf(ctx, x.size());
  const PoolVector<DDim> dims = SplitDims(ctx, x, ctx.InputSize("Out@GRAD"));
  PoolVector<const LoDTensor*> pieces;
  PoolVector<int64_t> extents;
  for (size_t k = 0; k < dims.size(); ++k) {
    pieces.push_back(ctx.InputOrNull("Out@GRAD", k));
    extents.push_back(dims[k][axis]);
    HR_ENFORCE(pieces[k] == nullptr || pieces[k]->dims() == dims[k], InvalidArgument, "input Out@GRAD: expected dims ",
               ToString(dims[k]), ", got ", ToString(pieces[k]->dims()));
  }
  Join(pieces, extents, ctx.Output("X@GRAD"), ctx.Input("X").dtype(), axis);
}

OpRegistrar&& SplitInputs(OpRegistrar&& op) { return AxisInput(IntsInputs(std::move(op), kSplitSections)); }

OpRegistrar&& SplitAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("num", "number of equal sections; 0: as sections says", 0)
      .Attr<std::vector<int32_t>>("sections", "extents of the sections; one may be -1: the remainder", {})
      .Attr<int32_t>("axis", "the dimension that is split; negative ones count from the back", 0);
}

}  // namespace

HEADRACE_REGISTER_OP(concat)
    .Comment("Tensors side by side.")
    .Input("X",
           "tensors of the same dtype and dims, apart from axis and from ones at the end of those behind the first",
           kDuplicable)
    .With(AxisInput)
    .Output("Out", "their dims; along axis, the sum")
    .With(ConcatAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = ConcatDims(ctx);
      SetKnownOutput(ctx, "Out", dims, ctx.InputType("X"));
      if (AxisOf(ctx, dims.size()) != 0) {  // of an axis that is not known yet, too: the kernel may take the LoD back
        ctx.ShareLoD("X", "Out");
      }
    })
    .With(KernelForAllTypes, ConcatKernel)
    .Gradient(DefaultGradient({.inputs = {"X", "AxisTensor"}, .outputs = {}, .no_gradient = {"AxisTensor"}}));

HEADRACE_REGISTER_OP(concat_grad)
    .Comment("Gradient of concat.")
    .Input("X", "as in the operator; only the dims are used", kDuplicable | kShapeOnly)
    .With(AxisInput)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X each", kDuplicable)
    .With(ConcatAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", ConcatDims(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      for (size_t k = 0; k < ctx.OutputSize("X@GRAD"); ++k) {
        SetOutput(ctx, "X@GRAD", ctx.InputDim("X", k), ctx.InputType("X"), k);
      }
    })
    .With(KernelForAllTypes, ConcatGradKernel)
    .Gradient(ConcatGradGradient);

HEADRACE_REGISTER_OP(concat_grad_grad)
    .Comment("Gradient of concat_grad. A piece without a gradient counts as one with the gradient zero.")
    .Input("X", "as in concat; only the dims are used", kDuplicable | kShapeOnly)
    .With(AxisInput)
    .Input("X@GRAD@GRAD", "gradients of X@GRAD", kDuplicable)
    .Output("Out@GRAD@GRAD", "their dims; along axis, the sum")
    .With(ConcatAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = ConcatDims(ctx);
      HR_ENFORCE(ctx.InputSize("X@GRAD@GRAD") == ctx.InputSize("X"), InvalidArgument, "input X@GRAD@GRAD: expected ",
                 ctx.InputSize("X"), " variables, as many as X has, got ", ctx.InputSize("X@GRAD@GRAD"));
      for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
        if (ctx.HasInput("X@GRAD@GRAD", k)) {
          EnforceDims(ctx, "X@GRAD@GRAD", ctx.InputDim("X", k), k);
          EnforceType(ctx, "X@GRAD@GRAD", ctx.InputType("X"), k);
        }
      }
      SetKnownOutput(ctx, "Out@GRAD@GRAD", dims, ctx.InputType("X"));
    })
    .Kernel<float>(ConcatGradGradKernel)
    .Kernel<double>(ConcatGradGradKernel);

HEADRACE_REGISTER_OP(split)
    .Comment("A tensor cut in sections.")
    .Input("X", "any shape")
    .With(SplitInputs)
    .Output("Out", "the sections, in order", kDuplicable)
    .With(SplitAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim x = ctx.InputDim("X");
      const PoolVector<DDim> dims = SplitDims(ctx, x, ctx.OutputSize("Out"));
      for (size_t k = 0; k < dims.size(); ++k) {
        SetKnownOutput(ctx, "Out", dims[k], ctx.InputType("X"), k);
        if (AxisOf(ctx, x.size()) != 0) {
          ctx.ShareLoD("X", "Out", 0, k);
        }
      }
    })
    .With(KernelForAllTypes, SplitKernel)
    .Gradient(DefaultGradient({.inputs = {"X", "AxisTensor", "SectionsTensorList"},
                               .outputs = {},
                               .no_gradient = {"AxisTensor", "SectionsTensorList"}}));

HEADRACE_REGISTER_OP(split_grad)
    .Comment("Gradient of split. A section without a gradient counts as one with the gradient zero.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .With(SplitInputs)
    .Input("Out@GRAD", "gradients of Out", kDuplicable)
    .Output("X@GRAD", "dims of X")
    .With(SplitAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const PoolVector<DDim> dims = SplitDims(ctx, ctx.InputDim("X"), ctx.InputSize("Out@GRAD"));
      for (size_t k = 0; k < dims.size(); ++k) {
        if (ctx.HasInput("Out@GRAD", k)) {
          EnforceDims(ctx, "Out@GRAD", dims[k], k);
          EnforceType(ctx, "Out@GRAD", ctx.InputType("X"), k);
        }
      }
      InferGradients(ctx, {"X"});
    })
    .With(KernelForAllTypes, SplitGradKernel)
    .Gradient(SplitGradGradient);

}  // namespace headrace::ops
