// while, conditional_block: operators that run a block of the program. block_grad_ops.cc has their gradients.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "framework/block_runner.h"
#include "framework/op_registry.h"
#include "framework/step_scopes.h"
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

// An operator with a block, whose variables lie in a scope of their own within that of the operator: in one for all
// steps or, if a gradient operator wants to see them, in one for each.
class BlockOp : public OperatorBase {
 public:
  BlockOp(OpDesc desc, std::string_view scopes) : OperatorBase(std::move(desc)), scopes_(Outputs(scopes)) {}

  void Prepare(const BlockDesc& block) override {
    runner_.emplace(block, Attr<BlockRef>("sub_block"));
    for (const std::string& name : scopes_) {
      const VarDesc& var = block.GetVar(name);
      // Anywhere else it could outlive the scope that the steps' scopes lie in.
      HR_ENFORCE(block.HasLocalVar(name) && var.kind == VarKind::kStepScopes && !var.persistable, InvalidArgument, "'",
                 name, "' must be a StepScopes of block ", block.index(), " that does not persist");
    }
  }

  void Unbind() override {
    if (runner_.has_value()) {
      runner_->Unbind();
    }
    inner_.reset();
    outer_id_ = 0;
  }

 protected:
  // Whether the steps are kept.
  void Start(const Scope& scope, bool keep) {
    HR_ENFORCE(runner_.has_value(), FailedPrecondition, "the operator has not been prepared with its program");
    kept_ = keep && !scopes_.empty() ? scope.GetVar(scopes_.front()).GetMutable<StepScopes>() : nullptr;
    if (kept_ != nullptr) {
      if (kept_->outer_id != scope.id() || kept_->block != runner_->block().index()) {
        kept_->scopes.clear();
        kept_->outer_id = scope.id();
        kept_->block = runner_->block().index();
      }
      kept_->size = 0;
    } else if (outer_id_ != scope.id()) {
      inner_.emplace(&scope);
      outer_id_ = scope.id();
      runner_->Declare(&*inner_);
    }
  }

  void RunStep(const Scope& scope, const Place& place) {
    if (kept_ == nullptr) {
      runner_->Run(*inner_, place);
      return;
    }
    if (kept_->size == kept_->scopes.size()) {
      kept_->scopes.emplace_back(&scope);
      runner_->Declare(&kept_->scopes.back());
    }
    runner_->Run(kept_->scopes[kept_->size], place);
    ++kept_->size;
  }

 private:
  const std::vector<std::string> scopes_;  // the variable of the steps, if there is one
  std::optional<BlockRunner> runner_;
  uint64_t outer_id_ = 0;  // of the scope that `inner_` lies in
  std::optional<Scope> inner_;
  StepScopes* kept_ = nullptr;  // during a run
};

class WhileOp : public BlockOp {
 public:
  explicit WhileOp(OpDesc desc) : BlockOp(std::move(desc), "StepScopes") {}

 private:
  void RunImpl(const Scope& scope, const Place& place) override {
    Start(scope, !Attr<bool>("is_test"));
    while (Holds(scope, Input("Condition"))) {
      ScopedWaitHook::CallIfDue();
      RunStep(scope, place);
    }
  }
};

class ConditionalBlockOp : public BlockOp {
 public:
  explicit ConditionalBlockOp(OpDesc desc) : BlockOp(std::move(desc), "Scope") {}

 private:
  void RunImpl(const Scope& scope, const Place& place) override {
    Start(scope, true);
    const auto& conditions = Inputs("Cond");
    const auto holds = [&](const std::string& name) {
      return Attr<bool>("is_scalar_condition") ? Holds(scope, name) : scope.GetVar(name).Get<LoDTensor>().numel() != 0;
    };
    if (std::all_of(conditions.begin(), conditions.end(), holds)) {
      RunStep(scope, place);
    }
  }
};

OpRegistrar&& BlockAttr(OpRegistrar&& op) { return std::move(op).Attr<BlockRef>("sub_block", "the block that is run"); }

}  // namespace

HEADRACE_REGISTER_OP(while)
    .Comment(
        "Runs a block as long as Condition holds. The block sees the variables of the blocks around it; its own start "
        "anew at each step.")
    .Input("X", "variables that the block reads", kDuplicable | kDispensable)
    .Input("Condition", "bool, a single element; the block must change it")
    .Output("Out", "variables of the blocks around it that the block writes", kDuplicable | kDispensable)
    .Output("StepScopes", "the block's own variables in each step, for the gradient; a variable of this block",
            kDispensable)
    .InPlace("Out", "X")
    .InPlace("Out", "Condition")
    .With(BlockAttr)
    .Attr<bool>("is_test", "whether no gradient is wanted, so that no steps need to be kept", false)
    .Operator<WhileOp>()
    .GradientByBlock({.reads = "X", .writes = "Out", .scopes = "StepScopes"});

HEADRACE_REGISTER_OP(conditional_block)
    .Comment("Runs a block if all conditions hold. Otherwise its outputs stay as they are.")
    .Input("Cond",
           "with is_scalar_condition: bool, a single element each; otherwise, a tensor holds if it is not empty",
           kDuplicable)
    .Input("Input", "variables that the block reads", kDuplicable | kDispensable)
    .Output("Out", "variables of the blocks around it that the block writes", kDuplicable | kDispensable)
    .Output("Scope", "the block's own variables, for the gradient; a variable of this block", kDispensable)
    .InPlace("Out", "Input")
    .InPlace("Out", "Cond")
    .With(BlockAttr)
    .Attr<bool>("is_scalar_condition", "whether Cond holds bools", false)
    .Operator<ConditionalBlockOp>()
    .GradientByBlock({.reads = "Input", .writes = "Out", .scopes = "Scope"});

}  // namespace headrace::ops
