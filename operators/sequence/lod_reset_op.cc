// lod_reset: the same rows, in other sequences.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"

namespace headrace::ops {
namespace {

// Offsets of one level over `rows` rows (-1: not known), from numbers that may be anything.
LoD OneLevel(const int32_t* values, size_t n, int64_t rows, const char* where) {
  const bool fit = n >= 2 && values[0] == 0 && std::is_sorted(values, values + n) && Fits(values[n - 1], rows);
  HR_ENFORCE(fit, InvalidArgument, where, ": expected two or more offsets that ascend from 0 to ",
             rows < 0 ? "the number of rows of X" : StrCat(rows, ", the number of rows of X"), ", got ",
             ToString(Attribute(std::vector<int32_t>(values, values + n))));
  return {LoDOffsets(values, values + n)};
}

LoD TargetLoD(const AttributeIndex& op, int64_t rows) {
  const auto& offsets = op.Attr<std::vector<int32_t>>("target_lod");
  return OneLevel(offsets.data(), offsets.size(), rows, "attribute target_lod");
}

LoD GivenLoD(const ExecutionContext& ctx) {
  const LoDTensor* y = ctx.InputOrNull("Y");
  const int64_t rows = ctx.Input("X").dims()[0];
  if (y == nullptr) {
    return TargetLoD(ctx.attrs(), rows);
  }
  if (!y->lod().empty()) {
    return y->lod();
  }
  return OneLevel(y->data<int32_t>(), static_cast<size_t>(y->numel()), rows, "input Y");
}

// Y has a LoD, which a program need not declare, or offsets.
void CheckY(const InferShapeContext& ctx) {
  const DataType type = ctx.InputType("Y");
  HR_ENFORCE(!ctx.IsRuntime() || ctx.InputLoDLevel("Y") > 0 || type == DataType::kInt32, TypeMismatch,
             "input Y: expected a LoD, or int32 offsets, got ", DataTypeName(type), " of dims ",
             ToString(ctx.InputDim("Y")), " without a LoD");
}

LoD NewLoD(const ExecutionContext& ctx) {
  LoD given = GivenLoD(ctx);
  const LoDTensor* y = ctx.InputOrNull("Y");
  if (!ctx.Attr<bool>("append") || (y != nullptr && !y->lod().empty())) {
    return given;
  }
  LoD lod = ctx.Input("X").lod();
  lod.push_back(std::move(given.front()));
  return lod;
}

void LoDResetKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  LoD lod = NewLoD(ctx);
  CheckLoD(lod, x.dims()[0]);
  LoDTensor* out = ctx.Output("Out");
  if (out != &x) {
    out->CopyFrom(x);
  }
  out->set_lod(std::move(lod));
}

void LoDResetGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  if (x_grad != &out_grad) {
    x_grad->CopyFrom(out_grad);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(lod_reset)
    .Comment("X with another LoD. Out may be X.")
    .Input("X", "[rows, ...]")
    .Input("Y",
           "a tensor with the LoD that Out gets, or, without a LoD, int32 offsets [n]; then target_lod has no effect",
           kDispensable)
    .Output("Out", "dims and elements of X")
    .InPlace("Out", "X")
    .Attr<std::vector<int32_t>>("target_lod", "the offsets of one level, from 0 to the number of rows", {})
    .Attr<bool>("append", "whether the offsets are one more level, below those of X; not with the LoD of Y", false)
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRankAtLeast(ctx, "X", 1);
      if (ctx.HasInput("Y")) {
        CheckY(ctx);
      } else {
        (void)TargetLoD(ctx.attrs(), ctx.InputDim("X")[0]);
      }
      SetOutput(ctx, "Out", ctx.InputDim("X"), ctx.InputType("X"));
      const int32_t given = ctx.HasInput("Y") ? ctx.InputLoDLevel("Y") : 0;
      const int32_t above = ctx.Attr<bool>("append") ? ctx.InputLoDLevel("X") : 0;
      ctx.ShareLoD("X", "Out");  // where Out is X, the kernel finds that of X still there
      ctx.SetOutputLoDLevel("Out", given > 0 ? given : above + 1);
    })
    .With(KernelForAllTypes, LoDResetKernel)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {"Y"}}));

HEADRACE_REGISTER_OP(lod_reset_grad)
    .Comment("Gradient of lod_reset. X@GRAD may be Out@GRAD.")
    .Input("X", "as in the operator; only its dims and its LoD are used", kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims and LoD of X")
    .InPlace("X@GRAD", "Out@GRAD")
    .Attr<std::vector<int32_t>>("target_lod", "as in the operator", {})
    .Attr<bool>("append", "as in the operator", false)
    .KernelTypeFrom("Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
      ctx.ShareLoD("X", "X@GRAD");
    })
    .With(KernelForAllTypes, LoDResetGradKernel);

}  // namespace headrace::ops
