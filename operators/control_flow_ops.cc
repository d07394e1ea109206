// while, conditional_block: operators that run a block of the program.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "framework/block_runner.h"
#include "framework/op_registry.h"
#include "framework/wait_hook.h"

namespace headrace::ops {
namespace {

// The value of a bool variable of one element.
bool Holds(const Scope& scope, const std::string& name) {
  const auto& tensor = scope.GetVar(name).Get<LoDTensor>();
  HR_ENFORCE(tensor.initialized(), FailedPrecondition, "the condition '", name, "' has not been written yet");
  HR_ENFORCE(tensor.dtype() == DataType::kBool && tensor.numel() == 1, InvalidArgument, "the condition '", name,
             "': expected a single bool, got ", DataTypeName(tensor.dtype()), " of dims ", ToString(tensor.dims()));
  return *tensor.data<bool>();
}

// An operator with a block, whose variables lie in a scope of their own within that of the operator.
class BlockOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;
  void Prepare(const BlockDesc& block) override { runner_.emplace(block, Attr<BlockRef>("sub_block")); }
  void Unbind() override {
    if (runner_.has_value()) {
      runner_->Unbind();
    }
    inner_.reset();
    outer_id_ = 0;
  }

 protected:
  void RunBlock(const Scope& scope, const Place& place) {
    HR_ENFORCE(runner_.has_value(), FailedPrecondition, "the operator has not been prepared with its program");
    if (outer_id_ != scope.id()) {
      inner_.emplace(&scope);
      outer_id_ = scope.id();
      runner_->Declare(&*inner_);
    }
    runner_->Run(*inner_, place);
  }

 private:
  std::optional<BlockRunner> runner_;
  uint64_t outer_id_ = 0;  // of the scope that `inner_` lies in
  std::optional<Scope> inner_;
};

class WhileOp : public BlockOp {
 public:
  using BlockOp::BlockOp;

 private:
  void RunImpl(const Scope& scope, const Place& place) override {
    while (Holds(scope, Input("Condition"))) {
      ScopedWaitHook::CallIfDue();
      RunBlock(scope, place);
    }
  }
};

class ConditionalBlockOp : public BlockOp {
 public:
  using BlockOp::BlockOp;

 private:
  void RunImpl(const Scope& scope, const Place& place) override {
    const auto& conditions = Inputs("Cond");
    const auto holds = [&](const std::string& name) {
      return Attr<bool>("is_scalar_condition") ? Holds(scope, name) : scope.GetVar(name).Get<LoDTensor>().numel() != 0;
    };
    if (std::all_of(conditions.begin(), conditions.end(), holds)) {
      RunBlock(scope, place);
    }
  }
};

OpRegistrar&& BlockAttr(OpRegistrar&& op) { return std::move(op).Attr<BlockRef>("sub_block", "the block that is run"); }

}  // namespace

HEADRACE_REGISTER_OP(while)
    .Comment(
        "Runs a block as long as Condition holds. The block sees the variables of the blocks around it; its own start "
        "anew at each step. Not differentiable.")
    .Input("X", "variables that the block reads", kDuplicable | kDispensable)
    .Input("Condition", "bool, a single element; the block must change it")
    .Output("Out", "variables of the blocks around it that the block writes", kDuplicable | kDispensable)
    .Output("StepScopes", "Fluid's; not written", kDispensable)
    .InPlace("Out", "X")
    .InPlace("Out", "Condition")
    .With(BlockAttr)
    .Attr<bool>("is_test", "Fluid's; has no effect", false)
    .Operator<WhileOp>();

HEADRACE_REGISTER_OP(conditional_block)
    .Comment("Runs a block if all conditions hold. Otherwise its outputs stay as they are. Not differentiable.")
    .Input("Cond",
           "with is_scalar_condition: bool, a single element each; otherwise, a tensor holds if it is not empty",
           kDuplicable)
    .Input("Input", "variables that the block reads", kDuplicable | kDispensable)
    .Output("Out", "variables of the blocks around it that the block writes", kDuplicable | kDispensable)
    .Output("Scope", "Fluid's; not written", kDispensable)
    .InPlace("Out", "Input")
    .InPlace("Out", "Cond")
    .With(BlockAttr)
    .Attr<bool>("is_scalar_condition", "whether Cond holds bools", false)
    .Operator<ConditionalBlockOp>();

}  // namespace headrace::ops
