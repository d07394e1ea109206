// tensor_array_to_tensor: the elements of an array side by side, or as slices.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/array_gradient.h"
#include "operators/math/join_and_cut.h"

namespace headrace::ops {
namespace {

// How elements of dims `element` lie in the whole.
struct Layout {
  Layout(const ExecutionContext& ctx, const DDim& element)
      : is_stack(ctx.Attr<bool>("use_stack")),
        axis(FrontAxis(ctx.Attr<int32_t>("axis"), element.size() + (is_stack ? 1 : 0), "axis")) {}

  int64_t Extent(const LoDTensor& element) const { return is_stack ? 1 : element.dims()[axis]; }

  // The dims of the whole, or of an element but for the axis.
  DDim Dims(const DDim& element, int64_t extent) const {
    DDim dims = element;
    if (is_stack) {
      dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), extent);
    } else {
      dims[axis] = extent;
    }
    return dims;
  }

  const bool is_stack;
  const size_t axis;
};

const LoDTensorArray& FullArray(const ExecutionContext& ctx) {
  const auto& array = ctx.InputAs<LoDTensorArray>("X");
  HR_ENFORCE(!array.empty(), InvalidArgument, "input X: expected an array with elements, '", ctx.InputVar("X")->name(),
             "' has none");
  for (size_t i = 0; i < array.size(); ++i) {
    HR_ENFORCE(array[i].initialized(), FailedPrecondition, "input X: nothing has been written to '",
               ctx.InputVar("X")->name(), "' at ", i);
  }
  return array;
}

class TensorArrayToTensorOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensorArray& array = FullArray(ctx);
    const Layout layout(ctx, array[0].dims());
    const DDim known = layout.Dims(array[0].dims(), 0);
    PoolVector<const LoDTensor*> pieces;
    PoolVector<int64_t> extents;
    int64_t sum = 0;
    for (size_t i = 0; i < array.size(); ++i) {
      const LoDTensor& element = array[i];
      HR_ENFORCE(element.dtype() == array[0].dtype() && element.dims().size() == array[0].dims().size() &&
                     layout.Dims(element.dims(), 0) == known,
                 InvalidArgument, "input X: element ", i, " is ", DataTypeName(element.dtype()), " of dims ",
                 ToString(element.dims()), ", which does not fit element 0, ", DataTypeName(array[0].dtype()),
                 " of dims ", ToString(array[0].dims()));
      pieces.push_back(&element);
      extents.push_back(layout.Extent(element));
      sum = AddExtents(sum, extents.back());
    }
    LoDTensor* out = ctx.Output("Out");
    out->Resize(layout.Dims(array[0].dims(), sum));
    out->set_lod({});
    Join(pieces, extents, out, array[0].dtype(), layout.axis);
    if (LoDTensor* index = ctx.OutputOrNull("OutIndex")) {
      index->Resize({static_cast<int64_t>(extents.size())});
      auto* to = index->mutable_data<int32_t>();
      for (const int64_t extent : extents) {
        *to++ = static_cast<int32_t>(extent);
      }
    }
  }
};

class TensorArrayToTensorGradOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensorArray& array = FullArray(ctx);
    const Layout layout(ctx, array[0].dims());
    LoDTensorArray parts(array.size());
    PoolVector<LoDTensor*> pieces;
    PoolVector<int64_t> extents;
    for (size_t i = 0; i < array.size(); ++i) {
      parts[i].Resize(array[i].dims());
      pieces.push_back(&parts[i]);
      extents.push_back(layout.Extent(array[i]));
    }
    Cut(ctx.Input("Out@GRAD"), pieces, extents, layout.axis);
    for (size_t i = 0; i < parts.size(); ++i) {
      AddToPlace(parts[i], i, ctx.OutputAs<LoDTensorArray>("X@GRAD"));
    }
  }
};

OpRegistrar&& Attributes(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("axis", "the dimension of Out along which the elements lie; negative ones count from the back", 0)
      .Attr<bool>("use_stack", "whether the elements are slices of Out, which has a dimension more", false);
}

}  // namespace

HEADRACE_REGISTER_OP(tensor_array_to_tensor)
    .Comment("The elements of an array as one tensor, side by side or as slices.")
    .Input("X", "a LoDTensorArray with elements of the same dims, but for axis unless they are slices, and dtype")
    .Output("Out", "the elements along axis")
    .Output("OutIndex", "int32, one for each element: its extent along axis", kDispensable)
    .With(Attributes)
    .InferShape([](InferShapeContext& ctx) {
      EnforceArray(ctx.InputDesc("X"), "input X");
      DDim dims = ctx.InputDim("X");
      const bool is_stack = ctx.Attr<bool>("use_stack");
      if (!dims.empty() || is_stack) {
        const size_t axis = FrontAxis(ctx.Attr<int32_t>("axis"), dims.size() + (is_stack ? 1 : 0), "axis");
        if (is_stack) {
          dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), -1);
        } else {
          dims[axis] = -1;
        }
      }
      SetOutput(ctx, "Out", dims, ctx.InputType("X"));
      if (ctx.HasOutput("OutIndex")) {
        SetOutput(ctx, "OutIndex", {-1}, DataType::kInt32);
      }
    })
    .Operator<TensorArrayToTensorOp>()
    .Gradient([](const OpDesc& op) {
      const std::string x_grad = GradVarName(op.Input("X")[0]);
      return std::vector<OpDesc>{
          {"tensor_array_to_tensor_grad",
           {{"X", op.Input("X")}, {"Out@GRAD", {GradVarName(op.Output("Out")[0])}}, {"X@GRAD", {x_grad}}},
           {{"X@GRAD", {x_grad}}},
           op.attrs}};
    });

HEADRACE_REGISTER_OP(tensor_array_to_tensor_grad)
    .Comment("Gradient of tensor_array_to_tensor: adds to those of the array's elements.")
    .Input("X", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("X@GRAD", "gradients of the array's elements, so far")
    .Output("X@GRAD", "the same array")
    .InPlace("X@GRAD", "X@GRAD")
    .With(Attributes)
    .InferShape([](InferShapeContext& ctx) { EnforceArray(ctx.OutputDesc("X@GRAD"), "output X@GRAD"); })
    .Operator<TensorArrayToTensorGradOp>();

}  // namespace headrace::ops
