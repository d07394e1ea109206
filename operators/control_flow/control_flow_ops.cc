// while, conditional_block: operators that run a block of the program. control_flow_grad_ops.cc has their gradients.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "framework/wait_hook.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/block_op.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// The value of a bool variable of one element.
bool Holds(const ExecutionContext& ctx, HashedName slot, size_t i = 0) {
  const auto& tensor = ctx.InputAs<LoDTensor>(slot, i);
  const std::string& name = ctx.InputVar(slot, i)->name();
  HR_ENFORCE(tensor.initialized(), FailedPrecondition, "the condition '", name, "' has not been written yet");
  HR_ENFORCE(tensor.dtype() == DataType::kBool && tensor.numel() == 1, InvalidArgument, "the condition '", name,
             "': expected a single bool, got ", DataTypeName(tensor.dtype()), " of dims ", ToString(tensor.dims()));
  return *tensor.data<bool>();
}

class WhileOp : public BlockOp {
 public:
  explicit WhileOp(OpDesc desc) : BlockOp(std::move(desc), "StepScopes") {}

 private:
  void RunImpl(const Scope& scope, const Place& place) override {
    const ExecutionContext& ctx = Bind(scope);
    Start(ctx, scope, !Attr<bool>("is_test"));
    while (Holds(ctx, "Condition")) {
      ScopedWaitHook::CallIfDue();
      runner().Run(NextStep(scope), place);
      EndStep();
    }
  }
};

// Whether one of the tensors that the block reads has no elements. Those without a value do not count.
bool ReadsEmptyTensor(const ExecutionContext& ctx) {
  for (size_t i = 0; i < ctx.InputSize("Input"); ++i) {
    const Variable* variable = ctx.InputVar("Input", i);
    if (variable == nullptr || !variable->initialized() || !variable->IsType<LoDTensor>()) {
      continue;
    }
    const auto& tensor = variable->Get<LoDTensor>();
    if (tensor.initialized() && tensor.numel() == 0) {
      return true;
    }
  }
  return false;
}

class ConditionalBlockOp : public BlockOp {
 public:
  explicit ConditionalBlockOp(OpDesc desc) : BlockOp(std::move(desc), "Scope") {}

  void Prepare(const BlockDesc& block) override {
    BlockOp::Prepare(block);
    written_.clear();
    for (const std::string& name : Outputs("Out")) {
      const VarDesc* var = block.FindVar(name);
      written_.push_back(var != nullptr && var->kind == VarKind::kLoDTensor ? std::optional(var->tensor)
                                                                            : std::nullopt);
    }
  }

 private:
  void RunImpl(const Scope& scope, const Place& place) override {
    const ExecutionContext& ctx = Bind(scope);
    Start(ctx, scope, true);
    const bool is_scalar = Attr<bool>("is_scalar_condition");
    bool all_hold = true;
    for (size_t i = 0; i < ctx.InputSize("Cond"); ++i) {
      all_hold = all_hold && (is_scalar ? Holds(ctx, "Cond", i) : ctx.InputAs<LoDTensor>("Cond", i).numel() != 0);
    }
    if (all_hold && !is_scalar && ReadsEmptyTensor(ctx)) {
      WriteNoRows(ctx);
      return;
    }
    if (all_hold) {
      runner().Run(NextStep(scope), place);
      EndStep();
    }
  }

  // Outputs that have no value yet get no rows: none came in.
  void WriteNoRows(const ExecutionContext& ctx) const {
    for (size_t i = 0; i < written_.size(); ++i) {
      Variable* variable = ctx.OutputVar("Out", i);
      if (!written_[i].has_value() || variable == nullptr) {
        continue;
      }
      auto* tensor = variable->GetMutable<LoDTensor>();
      if (!tensor->initialized()) {
        DDim dims = written_[i]->dims.empty() ? DDim{0} : written_[i]->dims;
        dims[0] = 0;
        std::replace(dims.begin(), dims.end(), int64_t{-1}, int64_t{0});
        tensor->Resize(dims).mutable_data(written_[i]->dtype);
        tensor->set_lod({});
      }
    }
  }

  std::vector<std::optional<TensorSpec>> written_;  // what the outputs that are tensors are declared as
};

void EnforceConditions(const InferShapeContext& ctx, HashedName slot) {
  for (size_t i = 0; i < ctx.InputSize(slot); ++i) {
    EnforceType(ctx, slot, DataType::kBool, i);
    const DDim dims = ctx.InputDim(slot, i);
    HR_ENFORCE(Fits(Numel(dims), 1), InvalidArgument, "input ", slot, ": expected a single element, got dims ",
               ToString(dims));
  }
}

OpRegistrar&& BlockAttr(OpRegistrar&& op) { return std::move(op).Attr<BlockRef>("sub_block", "the block that is run"); }

}  // namespace

HEADRACE_REGISTER_OP(while)
    .Comment(
        "Runs a block as long as Condition holds. The block sees the variables of the blocks around it; its own start "
        "newly at each step.")
    .Input("X", "variables that the block reads", kDuplicable | kDispensable)
    .Input("Condition", "bool, a single element; the block must change it")
    .Output("Out", "variables of the blocks around it that the block writes", kDuplicable | kDispensable)
    .Output("StepScopes", "the block's own variables in each step, for the gradient; a variable of this block",
            kDispensable)
    .InPlace("Out", "X")
    .InPlace("Out", "Condition")
    .With(BlockAttr)
    .Attr<bool>("is_test", "whether no gradient is wanted, so that no steps need to be kept", false)
    .InferShape([](InferShapeContext& ctx) { EnforceConditions(ctx, "Condition"); })
    .Operator<WhileOp>()
    .GradientByBlock({.reads = "X", .writes = "Out", .scopes = "StepScopes", .runs_at_most_once = false});

HEADRACE_REGISTER_OP(conditional_block)
    .Comment("Runs a block if all conditions hold. Otherwise its outputs stay as they are.")
    .Input("Cond",
           "with is_scalar_condition: bool, a single element each; otherwise, a tensor holds if it is not empty",
           kDuplicable)
    .Input("Input",
           "variables that the block reads; without is_scalar_condition, it does not run if one of them is an empty "
           "tensor, and leaves outputs that have no value without rows",
           kDuplicable | kDispensable)
    .Output("Out", "variables of the blocks around it that the block writes", kDuplicable | kDispensable)
    .Output("Scope", "the block's own variables, for the gradient; a variable of this block", kDispensable)
    .InPlace("Out", "Input")
    .InPlace("Out", "Cond")
    .With(BlockAttr)
    .Attr<bool>("is_scalar_condition", "whether Cond holds bools", false)
    .InferShape([](InferShapeContext& ctx) {
      if (ctx.Attr<bool>("is_scalar_condition")) {
        EnforceConditions(ctx, "Cond");
      }
    })
    .Operator<ConditionalBlockOp>()
    .GradientByBlock({.reads = "Input", .writes = "Out", .scopes = "Scope", .runs_at_most_once = true});

}  // namespace headrace::ops
