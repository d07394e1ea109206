// write_to_array, read_from_array, lod_array_length: lists of tensors. Their gradients change that of the array in
// place.
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/array_gradient.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// A mistaken index must not take all memory: arrays are dense.
constexpr int64_t kMaxArrayLength = int64_t{1} << 20;

// The place in an array that input I names: a single int64 in [0, kMaxArrayLength).
size_t PlaceIn(const ExecutionContext& ctx) {
  const LoDTensor& tensor = ctx.Input("I");
  const std::string& name = ctx.InputVar("I")->name();
  HR_ENFORCE(tensor.numel() == 1, InvalidArgument, "input I: expected a single element, '", name, "' has dims ",
             ToString(tensor.dims()));
  const int64_t place = *tensor.data<int64_t>();
  HR_ENFORCE(0 <= place && place < kMaxArrayLength, OutOfRange, "input I: expected a place in [0, ", kMaxArrayLength,
             "), '", name, "' is ", place);
  return static_cast<size_t>(place);
}

class WriteToArrayOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& x = ctx.Input("X");
    auto& array = *ctx.OutputAs<LoDTensorArray>("Out");
    const size_t place = PlaceIn(ctx);
    if (place >= array.size()) {
      array.resize(place + 1);
    }
    array[place].CopyFrom(x);
    array[place].set_lod(x.lod());
  }
};

// What it reads shares the array's memory until one of the two is written.
class ReadFromArrayOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const auto& array = ctx.InputAs<LoDTensorArray>("X");
    const size_t place = PlaceIn(ctx);
    HR_ENFORCE(place < array.size() && array[place].initialized(), OutOfRange, "input I: nothing has been written to '",
               Input("X"), "' at ", place, "; it has ", array.size(), " elements");
    *ctx.Output("Out") = array[place];
  }
};

class WriteToArrayGradOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    auto& array = *ctx.OutputAs<LoDTensorArray>("Out@GRAD");
    LoDTensor taken = TakeFromPlace(PlaceIn(ctx), &array);
    LoDTensor* x_grad = ctx.OutputOrNull("X@GRAD");
    if (x_grad == nullptr) {
      return;
    }
    if (taken.initialized()) {
      *x_grad = std::move(taken);
    } else {  // the place was never read
      SetZerosLike(ctx.Input("X"), x_grad);
    }
  }
};

class ReadFromArrayGradOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& gradient = ctx.Input("Out@GRAD");
    AddToPlace(gradient, PlaceIn(ctx), ctx.OutputAs<LoDTensorArray>("X@GRAD"));
  }
};

class ArrayLengthOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const auto& array = ctx.InputAs<LoDTensorArray>("X");
    LoDTensor* out = ctx.Output("Out");
    out->Resize({1});
    *out->mutable_data<int64_t>() = static_cast<int64_t>(array.size());
  }
};

void EnforcePlace(const InferShapeContext& ctx) {
  EnforceType(ctx, "I", DataType::kInt64);
  const DDim dims = ctx.InputDim("I");
  HR_ENFORCE(Fits(Numel(dims), 1), InvalidArgument, "input I: expected a single element, got dims ", ToString(dims));
}

}  // namespace

HEADRACE_REGISTER_OP(write_to_array)
    .Comment("Copies a tensor to a place of an array, which grows as far as it has to.")
    .Input("X", "any tensor")
    .Input("I", "int64, a single element: the place, from 0 on")
    .Output("Out", "a LoDTensorArray; its other elements stay")
    .InferShape([](InferShapeContext& ctx) {
      EnforcePlace(ctx);
      EnforceArray(ctx.OutputDesc("Out"), "output Out");
      SetOutput(ctx, "Out", ctx.InputDim("X"), ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Operator<WriteToArrayOp>()
    .Gradient([](const OpDesc& op) {
      const std::string out_grad = GradVarName(op.Output("Out")[0]);
      return std::vector<OpDesc>{{"write_to_array_grad",
                                  {{"X", op.Input("X")}, {"I", op.Input("I")}, {"Out@GRAD", {out_grad}}},
                                  {{"X@GRAD", {GradVarName(op.Input("X")[0])}}, {"Out@GRAD", {out_grad}}},
                                  {}}};
    });

HEADRACE_REGISTER_OP(write_to_array_grad)
    .Comment("Gradient of write_to_array: takes the gradient of the place out of that of the array.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("I", "as in the operator")
    .Input("Out@GRAD", "gradients of the array's elements")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Out@GRAD", "without that of the place")
    .InPlace("Out@GRAD", "Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforcePlace(ctx);
      EnforceArray(ctx.OutputDesc("Out@GRAD"), "output Out@GRAD");
      InferGradients(ctx, {"X"});
    })
    .Operator<WriteToArrayGradOp>();

HEADRACE_REGISTER_OP(read_from_array)
    .Comment("The tensor at a place of an array.")
    .Input("X", "a LoDTensorArray")
    .Input("I", "int64, a single element: the place, from 0 on")
    .Output("Out", "the tensor, with its LoD")
    .InferShape([](InferShapeContext& ctx) {
      EnforcePlace(ctx);
      EnforceArray(ctx.InputDesc("X"), "input X");
      ctx.ShareAll("X", "Out");
    })
    .Operator<ReadFromArrayOp>()
    .Gradient([](const OpDesc& op) {
      const std::string x_grad = GradVarName(op.Input("X")[0]);
      return std::vector<OpDesc>{
          {"read_from_array_grad",
           {{"I", op.Input("I")}, {"Out@GRAD", {GradVarName(op.Output("Out")[0])}}, {"X@GRAD", {x_grad}}},
           {{"X@GRAD", {x_grad}}},
           {}}};
    });

HEADRACE_REGISTER_OP(read_from_array_grad)
    .Comment("Gradient of read_from_array: adds to the gradient of the place.")
    .Input("I", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("X@GRAD", "gradients of the array's elements, so far")
    .Output("X@GRAD", "the same array")
    .InPlace("X@GRAD", "X@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforcePlace(ctx);
      EnforceArray(ctx.OutputDesc("X@GRAD"), "output X@GRAD");
    })
    .Operator<ReadFromArrayGradOp>();

HEADRACE_REGISTER_OP(lod_array_length)
    .Comment("How many elements an array has.")
    .Input("X", "a LoDTensorArray")
    .Output("Out", "int64 [1]")
    .InferShape([](InferShapeContext& ctx) {
      EnforceArray(ctx.InputDesc("X"), "input X");
      SetOutput(ctx, "Out", {1}, DataType::kInt64);
    })
    .Operator<ArrayLengthOp>();

}  // namespace headrace::ops
