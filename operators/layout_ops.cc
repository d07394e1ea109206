// transpose, transpose2, concat, split: elements moved as they are, of any dtype.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

// --- transpose ---

// `axis[d]` is the dimension of X that becomes dimension d of Out.
std::vector<size_t> Permutation(const OpDesc& op, size_t rank) {
  const auto& axis = op.Attr<std::vector<int32_t>>("axis");
  std::vector<size_t> permutation;
  std::vector<bool> seen(rank, false);
  for (const int32_t a : axis) {
    permutation.push_back(FrontAxis(a, rank, "axis"));
    HR_ENFORCE(!seen[permutation.back()], InvalidArgument, "attribute axis: dimension ", a, " is given twice, in ",
               ToString(Attribute(axis)));
    seen[permutation.back()] = true;
  }
  HR_ENFORCE(permutation.size() == rank, InvalidArgument, "attribute axis: expected ", rank,
             " dimensions, as many as X has, got ", ToString(Attribute(axis)));
  return permutation;
}

std::vector<size_t> Inverse(const std::vector<size_t>& permutation) {
  std::vector<size_t> inverse(permutation.size());
  for (size_t d = 0; d < permutation.size(); ++d) {
    inverse[permutation[d]] = d;
  }
  return inverse;
}

DDim Permuted(const DDim& dims, const std::vector<size_t>& permutation) {
  DDim out;
  for (const size_t d : permutation) {
    out.push_back(dims[d]);
  }
  return out;
}

// Elements of kSize bytes: `to` is written in order, `from` read along the strides.
template <size_t kSize>
void CopyStrided(const std::vector<int64_t>& extents, const std::vector<int64_t>& strides, const std::byte* from,
                 std::byte* to) {
  const int64_t n = extents.back();
  const int64_t stride = strides.back() * static_cast<int64_t>(kSize);
  std::vector<int64_t> index(extents.size() - 1, 0);
  for (;;) {
    if (stride == static_cast<int64_t>(kSize)) {
      std::memcpy(to, from, static_cast<size_t>(n) * kSize);
    } else {
      for (int64_t i = 0; i < n; ++i) {
        std::memcpy(to + i * static_cast<int64_t>(kSize), from + i * stride, kSize);
      }
    }
    to += n * static_cast<int64_t>(kSize);
    size_t d = index.size();
    for (; d > 0; --d) {
      from += strides[d - 1] * static_cast<int64_t>(kSize);
      if (++index[d - 1] < extents[d - 1]) {
        break;
      }
      from -= strides[d - 1] * extents[d - 1] * static_cast<int64_t>(kSize);
      index[d - 1] = 0;
    }
    if (d == 0) {
      return;
    }
  }
}

void Transpose(const LoDTensor& x, const std::vector<size_t>& permutation, LoDTensor* out) {
  void* to = out->mutable_data(x.dtype());
  if (x.numel() == 0) {
    return;
  }
  std::vector<int64_t> x_strides(x.dims().size());
  int64_t stride = 1;
  for (size_t d = x_strides.size(); d-- > 0;) {
    x_strides[d] = stride;
    stride *= x.dims()[d];
  }
  // Dimensions that stay neighbours are one.
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;
  for (const size_t d : permutation) {
    if (!extents.empty() && strides.back() == x_strides[d] * x.dims()[d]) {
      extents.back() *= x.dims()[d];
      strides.back() = x_strides[d];
    } else {
      extents.push_back(x.dims()[d]);
      strides.push_back(x_strides[d]);
    }
  }
  if (extents.empty()) {
    extents.push_back(1);
    strides.push_back(1);
  }
  const auto* from = static_cast<const std::byte*>(x.raw_data());
  auto* bytes = static_cast<std::byte*>(to);
  switch (SizeOf(x.dtype())) {
    case 1:
      return CopyStrided<1>(extents, strides, from, bytes);
    case 2:
      return CopyStrided<2>(extents, strides, from, bytes);
    case 4:
      return CopyStrided<4>(extents, strides, from, bytes);
    default:
      return CopyStrided<8>(extents, strides, from, bytes);
  }
}

void TransposeKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  if (LoDTensor* x_shape = ctx.OutputOrNull("XShape")) {
    x_shape->mutable_data(x.dtype());
  }
  Transpose(x, Permutation(ctx.op(), x.dims().size()), ctx.Output("Out"));
}

void TransposeGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  Transpose(out_grad, Inverse(Permutation(ctx.op(), out_grad.dims().size())), ctx.Output("X@GRAD"));
}

void InferTranspose(InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  const std::vector<size_t> permutation = Permutation(ctx.op(), x.size());
  SetOutput(ctx, "Out", Permuted(x, permutation), ctx.InputType("X"));
  if (ctx.HasOutput("XShape")) {
    DDim x_shape = {0};
    x_shape.insert(x_shape.end(), x.begin(), x.end());
    SetOutput(ctx, "XShape", x_shape, ctx.InputType("X"));
  }
  if (!x.empty() && permutation[0] == 0) {
    ctx.ShareLoD("X", "Out");
  }
}

void InferTransposeGrad(InferShapeContext& ctx) {
  const DDim out_grad = ctx.InputDim("Out@GRAD");
  SetOutput(ctx, "X@GRAD", Permuted(out_grad, Inverse(Permutation(ctx.op(), out_grad.size()))),
            ctx.InputType("Out@GRAD"));
}

OpRegistrar&& TransposeAttrs(OpRegistrar&& op) {
  return std::move(op).Attr<std::vector<int32_t>>("axis",
                                                  "the dimensions of X in the order in which they are those of Out");
}

// --- concat, split ---

// A tensor seen as `outer` rows; `inner` elements follow each index of the axis.
struct AxisView {
  AxisView(const DDim& dims, size_t axis, DataType type)
      : outer(Numel(dims, 0, axis)),
        inner_bytes(static_cast<size_t>(Numel(dims, axis + 1, dims.size())) * SizeOf(type)) {}
  int64_t outer;
  size_t inner_bytes;
};

// Visits what a tensor and the pieces that lie side by side in it along the axis have in common, run by run, with
// places in bytes: copy(place in the whole, number of the piece, place in the piece, bytes).
template <typename Copy>
void ForEachPiece(const AxisView& view, const std::vector<int64_t>& extents, Copy&& copy) {
  size_t whole = 0;
  for (const int64_t extent : extents) {
    whole += static_cast<size_t>(extent) * view.inner_bytes;
  }
  for (int64_t o = 0; o < view.outer; ++o) {
    size_t at = static_cast<size_t>(o) * whole;
    for (size_t k = 0; k < extents.size(); ++k) {
      const size_t bytes = static_cast<size_t>(extents[k]) * view.inner_bytes;
      copy(at, k, static_cast<size_t>(o) * bytes, bytes);
      at += bytes;
    }
  }
}

// Writes the pieces (nullptr: zeros) side by side.
void Join(const std::vector<const LoDTensor*>& pieces, const std::vector<int64_t>& extents, LoDTensor* out,
          DataType type, size_t axis) {
  auto* to = static_cast<std::byte*>(out->mutable_data(type));
  if (out->numel() == 0) {
    return;
  }
  ForEachPiece(AxisView(out->dims(), axis, type), extents, [&](size_t at, size_t k, size_t piece_at, size_t bytes) {
    if (bytes == 0) {
      return;
    }
    if (pieces[k] == nullptr) {
      std::memset(to + at, 0, bytes);
    } else {
      std::memcpy(to + at, static_cast<const std::byte*>(pieces[k]->raw_data()) + piece_at, bytes);
    }
  });
}

// The inverse of Join. A piece that is nullptr is left out.
void Cut(const LoDTensor& x, const std::vector<LoDTensor*>& pieces, const std::vector<int64_t>& extents, size_t axis) {
  std::vector<std::byte*> to;
  for (LoDTensor* piece : pieces) {
    to.push_back(piece == nullptr ? nullptr : static_cast<std::byte*>(piece->mutable_data(x.dtype())));
  }
  if (x.numel() == 0) {
    return;
  }
  const auto* from = static_cast<const std::byte*>(x.raw_data());
  ForEachPiece(AxisView(x.dims(), axis, x.dtype()), extents, [&](size_t at, size_t k, size_t piece_at, size_t bytes) {
    if (to[k] != nullptr && bytes != 0) {
      std::memcpy(to[k] + piece_at, from + at, bytes);
    }
  });
}

void ConcatKernel(const ExecutionContext& ctx) {
  std::vector<const LoDTensor*> pieces;
  std::vector<int64_t> extents;
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), ctx.Input("X").dims().size(), "axis");
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    pieces.push_back(&ctx.Input("X", k));
    extents.push_back(pieces.back()->dims()[axis]);
  }
  Join(pieces, extents, ctx.Output("Out"), pieces[0]->dtype(), axis);
}

void ConcatGradKernel(const ExecutionContext& ctx) {
  std::vector<LoDTensor*> pieces;
  std::vector<int64_t> extents;
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
std::vector<int64_t> Sections(const OpDesc& op, int64_t extent, size_t count) {
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
    return std::vector<int64_t>(count, extent < 0 ? -1 : extent / num);
  }
  HR_ENFORCE(sections.size() == count, InvalidArgument, "attribute sections: expected ", count,
             " numbers, one for each variable of output Out, got ", ToString(Attribute(sections)));
  std::vector<int64_t> extents(sections.begin(), sections.end());
  int64_t sum = 0;
  for (const int64_t section : extents) {
    HR_ENFORCE(section >= 0, InvalidArgument, "attribute sections: expected numbers >= 0, got ",
               ToString(Attribute(sections)));
    sum += section;
  }
  HR_ENFORCE(Fits(extent, sum), InvalidArgument, "attribute sections: expected the sum ", extent,
             ", the extent of the dimension of X that is split, got ", ToString(Attribute(sections)));
  return extents;
}

void SplitKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), x.dims().size(), "axis");
  std::vector<LoDTensor*> pieces;
  for (size_t k = 0; k < ctx.OutputSize("Out"); ++k) {
    pieces.push_back(ctx.OutputOrNull("Out", k));
  }
  Cut(x, pieces, Sections(ctx.op(), x.dims()[axis], pieces.size()), axis);
}

// A section whose gradient nobody has computed has the gradient zero.
void SplitGradKernel(const ExecutionContext& ctx) {
  const DDim& dims = ctx.Input("X").dims();
  const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), dims.size(), "axis");
  std::vector<const LoDTensor*> pieces;
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
      .Attr<std::vector<int32_t>>("sections", "extents of the sections", {})
      .Attr<int32_t>("axis", "the dimension that is split; negative ones count from the back", 0);
}

}  // namespace

HEADRACE_REGISTER_OP(transpose)
    .Comment("The dimensions in another order.")
    .Input("X", "any shape")
    .Output("Out", "dims of X in the order of axis")
    .With(TransposeAttrs)
    .InferShape(InferTranspose)
    .With(KernelForAllTypes, TransposeKernel)
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(transpose_grad)
    .Comment("Gradient of transpose.")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(TransposeAttrs)
    .InferShape(InferTransposeGrad)
    .With(KernelForAllTypes, TransposeGradKernel);

HEADRACE_REGISTER_OP(transpose2)
    .Comment("The dimensions in another order.")
    .Input("X", "any shape")
    .Output("Out", "dims of X in the order of axis")
    .Output("XShape", "without elements; its dims are 0 and those of X", kDispensable)
    .With(TransposeAttrs)
    .InferShape(InferTranspose)
    .With(KernelForAllTypes, TransposeKernel)
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(transpose2_grad)
    .Comment("Gradient of transpose2.")
    .Input("Out@GRAD", "gradient of Out")
    .Input("XShape@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .With(TransposeAttrs)
    .InferShape(InferTransposeGrad)
    .With(KernelForAllTypes, TransposeGradKernel);

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
      const std::vector<int64_t> extents = Sections(ctx.op(), x[axis], ctx.OutputSize("Out"));
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
      const std::vector<int64_t> extents = Sections(ctx.op(), x[axis], ctx.InputSize("Out@GRAD"));
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
