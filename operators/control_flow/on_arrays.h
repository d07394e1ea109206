// Operators on tensors that take arrays of tensors as well.
#pragma once

#include <utility>

#include "framework/kernel_operator.h"
#include "framework/op_registry.h"
#include "operators/control_flow/array_gradient.h"

namespace headrace::ops {

// Runs the kernels of the operator, unless Out is an array: then RunOnArrays.
class ArrayOp : public OperatorBase {
 public:
  explicit ArrayOp(OpDesc op) : OperatorBase(std::move(op)), of_tensors_(desc(), OpRegistry::Get(Type())) {}

  void Prepare(const BlockDesc& block) override { of_arrays_ = IsArray(block.FindVar(Output("Out"))); }
  void Unbind() override {
    OperatorBase::Unbind();
    of_tensors_.Unbind();
  }

 private:
  virtual void RunOnArrays(const ExecutionContext& ctx) = 0;

  void RunImpl(const Scope& scope, const Place& place) override {
    if (of_arrays_) {
      RunOnArrays(Bind(scope));
    } else {
      of_tensors_.Run(scope, place);
    }
  }

  KernelOperator of_tensors_;
  bool of_arrays_ = false;
};

}  // namespace headrace::ops
