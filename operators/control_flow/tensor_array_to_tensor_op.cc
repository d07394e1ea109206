// tensor_array_to_tensor: the elements of an array side by side, or as slices.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/array_gradient.h"
#include "operators/math/join_and_cut.h"

namespace headrace::ops {
namespace {

// How elements lie in the whole.
struct Layout {
  // `rank`: that of an element.
  Layout(const ExecutionContext& ctx, size_t rank)
      : is_stack(ctx.Attr<bool>("use_stack")),
        axis(FrontAxis(ctx.Attr<int32_t>("axis"), rank + (is_stack ? 1 : 0), "axis")) {}

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

  // The dims of an element that has `extent` in the whole.
  DDim ElementDims(const DDim& whole, int64_t extent) const {
    DDim dims = whole;
    if (is_stack) {
      dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
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

// The extents of the elements in the whole, as they were in the operator. Without OutIndex nothing but the array tells
// them, which may have been written since.
PoolVector<int64_t> ElementExtents(const ExecutionContext& ctx, const Layout& layout) {
  PoolVector<int64_t> extents;
  if (const LoDTensor* index = ctx.InputOrNull("OutIndex")) {
    extents.assign(index->data<int32_t>(), index->data<int32_t>() + index->numel());
    return extents;
  }
  for (const LoDTensor& element : FullArray(ctx)) {
    HR_ENFORCE(layout.is_stack || layout.axis < element.dims().size(), InvalidArgument, "input X: an element has dims ",
               ToString(element.dims()), ", which have no dimension ", layout.axis);
    extents.push_back(layout.Extent(element));
  }
  return extents;
}

class TensorArrayToTensorOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensorArray& array = FullArray(ctx);
    const Layout layout(ctx, array[0].dims().size());
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
    const LoDTensor& whole = ctx.Input("Out@GRAD");
    const size_t rank = whole.dims().size();
    HR_ENFORCE(rank > 0, InvalidArgument, "input Out@GRAD: expected the dims of Out, got a scalar");
    const Layout layout(ctx, ctx.Attr<bool>("use_stack") ? rank - 1 : rank);
    const PoolVector<int64_t> extents = ElementExtents(ctx, layout);
    LoDTensorArray parts(extents.size());
    PoolVector<LoDTensor*> pieces;
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].Resize(layout.ElementDims(whole.dims(), extents[i]));
      pieces.push_back(&parts[i]);
    }
    Cut(whole, pieces, extents, layout.axis);
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
      OpDesc gradient{"tensor_array_to_tensor_grad",
                      {{"X", op.Input("X")}, {"Out@GRAD", {GradVarName(op.Output("Out")[0])}}, {"X@GRAD", {x_grad}}},
                      {{"X@GRAD", {x_grad}}},
                      op.attrs};
      if (!op.Output("OutIndex").empty()) {
        gradient.inputs["OutIndex"] = op.Output("OutIndex");
      }
      return std::vector<OpDesc>{std::move(gradient)};
    });

HEADRACE_REGISTER_OP(tensor_array_to_tensor_grad)
    .Comment("Gradient of tensor_array_to_tensor: adds to those of the array's elements.")
    .Input("X", "as in the operator; used without OutIndex only, and then as it was")
    .Input("OutIndex", "as in the operator", kDispensable)
    .Input("Out@GRAD", "gradient of Out")
    .Input("X@GRAD", "gradients of the array's elements, so far")
    .Output("X@GRAD", "the same array")
    .InPlace("X@GRAD", "X@GRAD")
    .With(Attributes)
    .InferShape([](InferShapeContext& ctx) {
      if (ctx.HasInput("OutIndex")) {
        EnforceType(ctx, "OutIndex", DataType::kInt32);
      }
      EnforceArray(ctx.OutputDesc("X@GRAD"), "output X@GRAD");
    })
    .Operator<TensorArrayToTensorGradOp>();

}  // namespace headrace::ops
