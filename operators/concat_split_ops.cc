// concat, split: pieces side by side, of any dtype.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/kernel_util.h"
#include "operators/pieces.h"

namespace headrace::ops {
namespace {

void ConcatKernel(const ExecutionContext& ctx) {
  PoolVector<const LoDTensor*> pieces;
  PoolVector<int64_t> extents;
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), ctx.Input("X").dims().size(), "axis");
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    pieces.push_back(&ctx.Input("X", k));
    extents.push_back(pieces.back()->dims()[axis]);
  }
  Join(pieces, extents, ctx.Output("Out"), pieces[0]->dtype(), axis);
}

void ConcatGradKernel(const ExecutionContext& ctx) {
  PoolVector<LoDTensor*> pieces;
  PoolVector<int64_t> extents;
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), ctx.Input("X").dims().size(), "axis");
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    pieces.push_back(ctx.OutputOrNull("X@GRAD", k));
    extents.push_back(ctx.Input("X", k).dims()[axis]);
  }
  Cut(ctx.Input("Out@GRAD"), pieces, extents, axis);
}

// The dims of the concatenation of the variables of X.
DDim ConcatDims(const InferShapeContext& ctx) {
  HR_ENFORCE(ctx.InputSize("X") > 0, InvalidArgument, "input X: expected at least one variable, got none");
  DDim dims = ctx.InputDim("X");
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), dims.size(), "axis");
  for (size_t k = 1; k < ctx.InputSize("X"); ++k) {
    const DDim other = ctx.InputDim("X", k);
    DDim expected = dims;
    expected[axis] = -1;
    EnforceDims(ctx, "X", expected, k);
    EnforceSameType(ctx, "X", "X", k);
    for (size_t d = 0; d < dims.size(); ++d) {
      dims[d] =
          d == axis ? (dims[d] < 0 || other[d] < 0 ? -1 : AddExtents(dims[d], other[d])) : std::max(dims[d], other[d]);
    }
  }
  return dims;
}

OpRegistrar&& ConcatAttrs(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("axis", "the dimension along which they lie; negative ones count from the back",
                                     0);
}

// The extents of `count` sections of an axis of extent `extent` (-1 where unknown).
PoolVector<int64_t> Sections(const OpDesc& op, int64_t extent, size_t count) {
  const auto& sections = op.Attr<std::vector<int32_t>>("sections");
  const int32_t num = op.Attr<int32_t>("num");
  HR_ENFORCE(sections.empty() != (num == 0), InvalidArgument,
             "attributes num and sections: expected one of the two, got num ", num, " and sections ",
             ToString(Attribute(sections)));
  if (num != 0) {
    HR_ENFORCE(num > 0 && static_cast<size_t>(num) == count, InvalidArgument, "attribute num: expected ", count,
               ", the number of variables of output Out, got ", num);
    HR_ENFORCE(extent < 0 || extent % num == 0, InvalidArgument, "attribute num: expected a divisor of ", extent,
               ", the extent of the dimension of X that is split, got ", num);
    return PoolVector<int64_t>(count, extent < 0 ? -1 : extent / num);
  }
  HR_ENFORCE(sections.size() == count, InvalidArgument, "attribute sections: expected ", count,
             " numbers, one for each variable of output Out, got ", ToString(Attribute(sections)));
  PoolVector<int64_t> extents(sections.begin(), sections.end());
  int64_t* rest = nullptr;
  int64_t sum = 0;
  for (int64_t& section : extents) {
    HR_ENFORCE(section >= 0 || (section == -1 && rest == nullptr), InvalidArgument,
               "attribute sections: expected numbers >= 0, one of which may be -1, got ",
               ToString(Attribute(sections)));
    rest = section < 0 ? &section : rest;
    sum += std::max<int64_t>(section, 0);
  }
  if (rest != nullptr) {
    HR_ENFORCE(extent < 0 || sum <= extent, InvalidArgument, "attribute sections: expected a sum of at most ", extent,
               ", the extent of the dimension of X that is split, got ", ToString(Attribute(sections)));
    *rest = extent < 0 ? -1 : extent - sum;
    return extents;
  }
  HR_ENFORCE(Fits(extent, sum), InvalidArgument, "attribute sections: expected the sum ", extent,
             ", the extent of the dimension of X that is split, got ", ToString(Attribute(sections)));
  return extents;
}

void SplitKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), x.dims().size(), "axis");
  PoolVector<LoDTensor*> pieces;
  for (size_t k = 0; k < ctx.OutputSize("Out"); ++k) {
    pieces.push_back(ctx.OutputOrNull("Out", k));
  }
  Cut(x, pieces, Sections(ctx.op(), x.dims()[axis], pieces.size()), axis);
}

// A section whose gradient nobody has computed has the gradient zero.
void SplitGradKernel(const ExecutionContext& ctx) {
  const DDim& dims = ctx.Input("X").dims();
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), dims.size(), "axis");
  PoolVector<const LoDTensor*> pieces;
  for (size_t k = 0; k < ctx.InputSize("Out@GRAD"); ++k) {
    pieces.push_back(ctx.InputOrNull("Out@GRAD", k));
  }
  Join(pieces, Sections(ctx.op(), dims[axis], pieces.size()), ctx.Output("X@GRAD"), ctx.Input("X").dtype(), axis);
}

DDim SectionDims(DDim x, size_t axis, int64_t extent) {
  x[axis] = extent;
  return x;
}

OpRegistrar&& SplitAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("num", "number of equal sections; 0: as sections says", 0)
      .Attr<std::vector<int32_t>>("sections", "extents of the sections; one may be -1: what is left", {})
      .Attr<int32_t>("axis", "the dimension that is split; negative ones count from the back", 0);
}

}  // namespace

HEADRACE_REGISTER_OP(concat)
    .Comment("Tensors side by side.")
    .Input("X", "tensors of the same dtype and dims, apart from axis", kDuplicable)
    .Output("Out", "their dims; along axis, the sum")
    .With(ConcatAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim dims = ConcatDims(ctx);
      SetOutput(ctx, "Out", dims, ctx.InputType("X"));
      if (FrontAxis(ctx.Attr<int32_t>("axis"), dims.size(), "axis") != 0) {
        ctx.ShareLoD("X", "Out");
      }
    })
    .With(KernelForAllTypes, ConcatKernel)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(concat_grad)
    .Comment("Gradient of concat.")
    .Input("X", "as in the operator; only the dims are used", kDuplicable)
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
    .With(KernelForAllTypes, ConcatGradKernel);

HEADRACE_REGISTER_OP(split)
    .Comment("A tensor cut in sections.")
    .Input("X", "any shape")
    .Output("Out", "the sections, in order", kDuplicable)
    .With(SplitAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim x = ctx.InputDim("X");
      const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), x.size(), "axis");
      const PoolVector<int64_t> extents = Sections(ctx.op(), x[axis], ctx.OutputSize("Out"));
      for (size_t k = 0; k < extents.size(); ++k) {
        SetOutput(ctx, "Out", SectionDims(x, axis, extents[k]), ctx.InputType("X"), k);
        if (axis != 0) {
          ctx.ShareLoD("X", "Out", 0, k);
        }
      }
    })
    .With(KernelForAllTypes, SplitKernel)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(split_grad)
    .Comment("Gradient of split. A section without a gradient counts as one with the gradient zero.")
    .Input("X", "as in the operator; only its dims are used")
    .Input("Out@GRAD", "gradients of Out", kDuplicable)
    .Output("X@GRAD", "dims of X")
    .With(SplitAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim x = ctx.InputDim("X");
      const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), x.size(), "axis");
      const PoolVector<int64_t> extents = Sections(ctx.op(), x[axis], ctx.InputSize("Out@GRAD"));
      for (size_t k = 0; k < extents.size(); ++k) {
        if (ctx.HasInput("Out@GRAD", k)) {
          EnforceDims(ctx, "Out@GRAD", SectionDims(x, axis, extents[k]), k);
          EnforceType(ctx, "Out@GRAD", ctx.InputType("X"), k);
        }
      }
      InferGradients(ctx, {"X"});
    })
    .With(KernelForAllTypes, SplitGradKernel);

}  // namespace headrace::ops
