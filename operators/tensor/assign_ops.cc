// assign: a copy of a tensor, of SelectedRows, or of an array. target_gradient: one that is checked. assign_value:
// constants that are part of the program.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/array_gradient.h"
#include "operators/control_flow/on_arrays.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

void AssignRows(const SelectedRows& x, SelectedRows* out) {
  if (&x != out) {
    *out->mutable_rows() = x.rows();
    out->set_height(x.height());
    out->mutable_value()->CopyFrom(x.value());
  }
}

void AssignTensor(const LoDTensor& x, LoDTensor* out) {
  if (&x != out) {
    out->CopyFrom(x);
  }
}

void AssignKernel(const ExecutionContext& ctx) {
  if (ctx.IsSelectedRows("X")) {
    AssignRows(ctx.InputRows("X"), ctx.OutputRows("Out"));
    return;
  }
  AssignTensor(ctx.Input("X"), ctx.Output("Out"));
}

void MemoryGradientKernel(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("X@GRAD");
  auto* data = static_cast<std::byte*>(out->mutable_data(ctx.Input("X").dtype()));
  const auto bytes = static_cast<int64_t>(out->nbytes());
  if (const LoDTensor* gradient = ctx.InputOrNull("Out@GRAD")) {
    ParallelCopy(static_cast<const std::byte*>(gradient->raw_data()), bytes, data);
  } else {
    ParallelFill(data, bytes, std::byte{0});
  }
}

// The gradient of an operator that passes `in` on as `out`.
std::vector<OpDesc> CopyGradient(const std::string& out, const std::string& in) {
  return {OpDesc{"assign", {{"X", {GradVarName(out)}}}, {{"Out", {GradVarName(in)}}}, {}}};
}

// The same of X.
std::vector<OpDesc> PassGradientOn(const OpDesc& op) { return CopyGradient(op.Output("Out")[0], op.Input("X")[0]); }

// The same of arrays. Out has been overwritten as a whole, so nothing before depends on it any more.
std::vector<OpDesc> PassArrayGradientOn(const OpDesc& op) {
  const std::string out_grad = GradVarName(op.Output("Out")[0]);
  const std::string x_grad = GradVarName(op.Input("X")[0]);
  if (x_grad == out_grad) {
    return {};
  }
  return {OpDesc{"sum_grad",
                 {{"Out@GRAD", {out_grad}}, {"X@GRAD", {x_grad}}},
                 {{"Out@GRAD", {out_grad}}, {"X@GRAD", {x_grad}}},
                 {{"times", std::vector<int32_t>{1}}}}};
}

void InferAssign(InferShapeContext& ctx) {
  const VarDesc* x = ctx.InputDesc("X");
  if (IsArray(x)) {
    if (VarDesc* out = ctx.OutputDesc("Out")) {
      out->kind = VarKind::kLoDTensorArray;
      out->tensor = x->tensor;
    }
    return;
  }
  const VarDesc* out = ctx.OutputDesc("Out");
  HR_ENFORCE(!IsArray(out), TypeMismatch, "output Out: expected a variable of the kind of input X, a ",
             VarKindName(x->kind), ", got '", out->name, "', a LoDTensorArray");
  ctx.ShareAll("X", "Out");
  if (ctx.InputIsSelectedRows("X")) {
    ctx.SetOutputSelectedRows("Out");
  }
}

class AssignOp : public ArrayOp {
 public:
  using ArrayOp::ArrayOp;

 private:
  void RunOnArrays(const ExecutionContext& ctx) override {
    const auto& x = ctx.InputAs<LoDTensorArray>("X");
    auto* out = ctx.OutputAs<LoDTensorArray>("Out");
    if (&x == out) {
      return;
    }
    out->resize(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      LoDTensor& element = (*out)[i];
      if (x[i].initialized()) {
        element.CopyFrom(x[i]);
        element.set_lod(x[i].lod());
      } else {  // nothing has been written to this place
        element = LoDTensor();
      }
    }
  }
};

template <typename T, typename Attr = T>
void AssignValueKernel(const ExecutionContext& ctx, const char* attr) {
  const auto& values = ctx.Attr<std::vector<Attr>>(attr);
  std::transform(values.begin(), values.end(), ctx.Output("Out")->mutable_data<T>(),
                 [](Attr value) { return static_cast<T>(value); });
}

// Checks that one of the lists of values has as many as `dims` have elements, `attr`, and that the others are empty.
void CheckValues(const InferShapeContext& ctx, const DDim& dims, HashedName attr) {
  const std::pair<std::string_view, size_t> lists[] = {
      {"bool_values", ctx.Attr<std::vector<int32_t>>("bool_values").size()},
      {"fp32_values", ctx.Attr<std::vector<float>>("fp32_values").size()},
      {"int32_values", ctx.Attr<std::vector<int32_t>>("int32_values").size()},
      {"int64_values", ctx.Attr<std::vector<int64_t>>("int64_values").size()},
  };
  for (const auto& [name, count] : lists) {
    const int64_t expected = name == attr ? Numel(dims) : 0;
    HR_ENFORCE(static_cast<int64_t>(count) == expected, InvalidArgument, "attribute ", name, ": expected ", expected,
               " values for dims ", ToString(dims), " and dtype ", DataTypeName(TypeAttr(ctx, "dtype")), ", got ",
               count);
  }
}

void InferAssignValue(InferShapeContext& ctx) {
  const auto& shape = ctx.Attr<std::vector<int32_t>>("shape");
  const DDim dims(shape.begin(), shape.end());
  HR_ENFORCE(Numel(dims) >= 0, InvalidArgument, "attribute shape: expected known dimensions, got ", ToString(dims));
  const DataType type = TypeAttr(ctx, "dtype");
  if (type == DataType::kBool) {
    CheckValues(ctx, dims, "bool_values");
  } else if (type == DataType::kFloat32) {
    CheckValues(ctx, dims, "fp32_values");
  } else if (type == DataType::kInt32) {
    CheckValues(ctx, dims, "int32_values");
  } else if (type == DataType::kInt64) {
    CheckValues(ctx, dims, "int64_values");
  }  // there is no kernel for others
  SetOutput(ctx, "Out", dims, type);
}

}  // namespace

HEADRACE_REGISTER_OP(assign)
    .Comment("A copy.")
    .Input("X", "a tensor, SelectedRows or an array", kSelectedRows)
    .Output("Out", "of the same kind: dims, dtype, LoD and elements of X", kSelectedRows)
    .InPlace("Out", "X")
    .InferShape(InferAssign)
    .With(KernelForAllTypes, AssignKernel)
    .Operator<AssignOp>()
    .Gradient(PassGradientOn)
    .ArrayGradient(PassArrayGradientOn);

HEADRACE_REGISTER_OP(target_gradient)
    .Comment("A copy of the gradient that fluid.gradients is given for a target, whose dims each run checks.")
    .Input("Target", "any tensor; only its dims are used", kShapeOnly)
    .Input("Weights", "dims and dtype of Target")
    .Output("Out", "elements of Weights; LoD of Target")
    .InPlace("Out", "Weights")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Weights", ctx.InputDim("Target"));
      EnforceSameType(ctx, "Weights", "Target");
      ctx.ShareAll("Target", "Out");
    })
    .With(KernelForAllTypes, [](const ExecutionContext& ctx) { AssignTensor(ctx.Input("Weights"), ctx.Output("Out")); })
    .Gradient([](const OpDesc& op) { return CopyGradient(op.Output("Out")[0], op.Input("Weights")[0]); });

HEADRACE_REGISTER_OP(rnn_memory_helper)
    .Comment("A copy. Fluid's recurrent networks have it in their steps.")
    .Input("X", "any tensor")
    .Output("Out", "dims, dtype, LoD and elements of X")
    .Attr<int32_t>("dtype", "Fluid's; makes no difference", static_cast<int32_t>(DataType::kFloat32))
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .With(KernelForAllTypes, AssignKernel)
    .Gradient(PassGradientOn);

HEADRACE_REGISTER_OP(rnn_memory_helper_grad)
    .Comment("Gradient of rnn_memory_helper, as Fluid's programs have it. Here, the backward pass adds an assign.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Out", "as in the operator; not used", kDispensable | kShapeOnly)
    .Input("Out@GRAD", "gradient of Out; zero without it", kDispensable)
    .Output("X@GRAD", "dims, dtype and LoD of X")
    .Attr<int32_t>("dtype", "Fluid's; makes no difference", static_cast<int32_t>(DataType::kFloat32))
    .InferShape([](InferShapeContext& ctx) {
      if (ctx.HasInput("Out@GRAD")) {
        EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
        EnforceSameType(ctx, "Out@GRAD", "X");
      }
      ctx.ShareAll("X", "X@GRAD");
    })
    .With(KernelForAllTypes, MemoryGradientKernel);

HEADRACE_REGISTER_OP(assign_value)
    .Comment("A tensor of constants that are part of the program.")
    .Output("Out", "the tensor")
    .Attr<std::vector<int32_t>>("shape", "dims of Out")
    .Attr<int32_t>("dtype", "DataType of Out: bool, float32, int32 or int64", static_cast<int32_t>(DataType::kFloat32))
    .Attr<std::vector<int32_t>>("bool_values", "the elements of a bool tensor: not 0 for true", {})
    .Attr<std::vector<float>>("fp32_values", "the elements of a float32 tensor", {})
    .Attr<std::vector<int32_t>>("int32_values", "the elements of an int32 tensor", {})
    .Attr<std::vector<int64_t>>("int64_values", "the elements of an int64 tensor", {})
    .KernelTypeFromAttr("dtype")
    .InferShape(InferAssignValue)
    .Kernel<bool>([](const ExecutionContext& ctx) { AssignValueKernel<bool, int32_t>(ctx, "bool_values"); })
    .Kernel<float>([](const ExecutionContext& ctx) { AssignValueKernel<float>(ctx, "fp32_values"); })
    .Kernel<int32_t>([](const ExecutionContext& ctx) { AssignValueKernel<int32_t>(ctx, "int32_values"); })
    .Kernel<int64_t>([](const ExecutionContext& ctx) { AssignValueKernel<int64_t>(ctx, "int64_values"); });

}  // namespace headrace::ops
