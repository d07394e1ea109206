// while_grad, conditional_block_grad: run the gradient block of each step that the operator took, the last step first.
// framework/backward.cc builds that block.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/block_runner.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/wait_hook.h"
#include "operators/control_flow/array_gradient.h"
#include "operators/control_flow/block_op.h"

namespace headrace::ops {
namespace {

void FillZerosLike(const LoDTensor& like, LoDTensor* out) {
  SetZerosLike(like, out);
  out->set_lod(like.lod());
}

// The slots, whose names depend on the operator that this is the gradient of:
//
//   Out, Out@GRAD   variables that a step leaves to the next, with the gradients of what the last one left (@EMPTY@: 0)
//   X, X@GRAD       what the steps read, with its gradients: of a variable that is carried from step to step, of what
//                   the first one found; of any other, the sum over the steps
//   StepScopes      what the operator kept
//
// An array is its own state: its gradients are those of its elements as they are at that point, and every gradient
// operator changes them in place. So it stands in both Out and X, with the same gradient.
class BlockGradOp : public OperatorBase {
 public:
  BlockGradOp(OpDesc desc, HashedName reads, HashedName writes, HashedName scopes)
      : OperatorBase(std::move(desc)),
        reads_(reads),
        writes_(writes),
        scopes_(scopes),
        given_(Attr<std::vector<std::string>>("given")),
        made_(Attr<std::vector<std::string>>("made")),
        carried_(Attr<std::vector<int32_t>>("carried")) {}

  void Prepare(const BlockDesc& block) override {
    const size_t writes = Inputs(writes_.ToString()).size();
    const size_t reads = Inputs(reads_.ToString()).size();
    HR_ENFORCE(
        given_.size() == writes && Inputs(writes_.Gradient().ToString()).size() == writes && made_.size() == reads &&
            carried_.size() == reads && Outputs(reads_.Gradient().ToString()).size() == reads,
        InvalidArgument, "slots '", reads_, "', '", writes_, "', those of their gradients and attributes 'made', ",
        "'carried' and 'given' must have a place for each variable");
    for (const int32_t index : carried_) {
      HR_ENFORCE(index >= -1 && (index < 0 || static_cast<size_t>(index) < writes), OutOfRange,
                 "attribute 'carried': expected places in slot '", writes_, "' or -1, got ", index);
    }
    runner_.emplace(block, Attr<BlockRef>("sub_block"), given_, /*is_gradient=*/true);
    const auto check_local = [this](const std::string& name) {
      HR_ENFORCE(runner_->block().HasLocalVar(name), NotFound, "attributes 'given' and 'made': block ",
                 runner_->block().index(), " declares no variable '", name, "'");
    };
    for (const std::string& name : given_) {
      check_local(name);
      is_array_.push_back(runner_->block().GetVar(name).kind == VarKind::kLoDTensorArray);
    }
    for (const std::string& name : made_) {
      if (name != kEmptyVarName) {
        check_local(name);
      }
    }
  }

  void Unbind() override {
    OperatorBase::Unbind();
    if (runner_.has_value()) {
      runner_->Unbind();
    }
    gradient_steps_.Clear();
    steps_.Clear();
  }

 private:
  // The variables of a step's gradient block, in the order of the attributes that name them; nullptr: @EMPTY@.
  struct Step {
    std::vector<Variable*> given;
    std::vector<Variable*> made;
  };

  Step FindStep(const Scope& gradient) const {
    Step step{gradient.GetVars(given_), {}};
    for (const std::string& name : made_) {
      step.made.push_back(name == kEmptyVarName ? nullptr : &gradient.GetVar(name));
    }
    return step;
  }

  void RunImpl(const Scope& scope, const Place& place) override {
    HR_ENFORCE(runner_.has_value(), FailedPrecondition, "the operator has not been prepared with its program");
    const ExecutionContext& ctx = Bind(scope);
    const auto& steps = ctx.InputAs<StepScopes>(scopes_);
    HR_ENFORCE(steps.block == runner_->block().parent(), InvalidArgument, "'", ctx.InputVar(scopes_)->name(),
               "' holds steps of block ", steps.block, ", but the gradient block lies in block ",
               runner_->block().parent());
    PoolVector<LoDTensor> state(given_.size());
    PoolVector<LoDTensorArray*> arrays(given_.size());
    for (size_t i = 0; i < given_.size(); ++i) {
      Variable* gradient = ctx.InputVar(writes_.Gradient(), i);
      if (is_array_[i]) {
        HR_ENFORCE(gradient != nullptr, InvalidArgument, "input ", writes_.Gradient(), ": that of an array is missing");
        arrays[i] = gradient->GetMutable<LoDTensorArray>();
      } else if (gradient != nullptr && gradient->Get<LoDTensor>().initialized()) {
        state[i] = gradient->Get<LoDTensor>();
      } else {
        FillZerosLike(ctx.Input(writes_, i), &state[i]);
      }
    }
    for (size_t i = 0; i < made_.size(); ++i) {
      if (carried_[i] < 0) {
        Clear(ctx, i);
      }
    }
    for (size_t t = steps.size; t-- > 0;) {
      ScopedWaitHook::CallIfDue();
      const Scope& gradient = gradient_steps_.Enter(*runner_, steps.scopes[t], t);
      const Step& step = steps_.At(gradient, [&] { return FindStep(gradient); });
      for (size_t i = 0; i < given_.size(); ++i) {
        if (arrays[i] != nullptr) {
          std::swap(*step.given[i]->GetMutable<LoDTensorArray>(), *arrays[i]);
        } else {
          *step.given[i]->GetMutable<LoDTensor>() = std::move(state[i]);
        }
      }
      runner_->Run(gradient, place);
      for (size_t i = 0; i < given_.size(); ++i) {
        if (arrays[i] != nullptr) {
          std::swap(*step.given[i]->GetMutable<LoDTensorArray>(), *arrays[i]);
        }
      }
      TakeGradients(ctx, step, &state, arrays);
      gradient_steps_.Leave(t);
    }
    for (size_t i = 0; i < made_.size(); ++i) {
      const auto write = static_cast<size_t>(carried_[i]);
      if (carried_[i] >= 0 && arrays[write] == nullptr && ctx.HasOutput(reads_.Gradient(), i)) {
        *ctx.Output(reads_.Gradient(), i) = state[write];
      }
    }
  }

  // The sum over no steps.
  void Clear(const ExecutionContext& ctx, size_t read) const {
    Variable* sum = ctx.OutputVar(reads_.Gradient(), read);
    if (sum == nullptr) {
      return;
    }
    const auto& x = ctx.InputAs<LoDTensor>(reads_, read);
    if (sum->IsType<SelectedRows>()) {
      auto* rows = sum->GetMutable<SelectedRows>();
      rows->mutable_rows()->clear();
      rows->set_height(x.dims().empty() ? 0 : x.dims()[0]);
      DDim dims = x.dims();
      if (!dims.empty()) {
        dims[0] = 0;
      }
      rows->mutable_value()->Resize(dims);
      rows->mutable_value()->mutable_data(x.dtype());
    } else {
      FillZerosLike(x, sum->GetMutable<LoDTensor>());
    }
  }

  // What the step made goes to the step before it, or to the sum over the steps.
  void TakeGradients(const ExecutionContext& ctx, const Step& step, PoolVector<LoDTensor>* state,
                     const PoolVector<LoDTensorArray*>& arrays) const {
    for (size_t i = 0; i < made_.size(); ++i) {
      if (step.made[i] == nullptr || (carried_[i] >= 0 && arrays[static_cast<size_t>(carried_[i])] != nullptr)) {
        continue;
      }
      const Variable& made = *step.made[i];
      if (carried_[i] >= 0) {
        (*state)[static_cast<size_t>(carried_[i])] = made.Get<LoDTensor>();
      } else if (made.IsType<SelectedRows>()) {
        AppendRows(made.Get<SelectedRows>(), ctx.OutputRows(reads_.Gradient(), i));
      } else {
        AddTensor(made.Get<LoDTensor>(), ctx.Output(reads_.Gradient(), i));
      }
    }
    for (size_t i = 0; i < given_.size(); ++i) {
      if (arrays[i] == nullptr && !(*state)[i].initialized()) {
        FillZerosLike(ctx.Input(writes_, i), &(*state)[i]);
      }
    }
  }

  const HashedName reads_;
  const HashedName writes_;
  const HashedName scopes_;
  const std::vector<std::string> given_;
  const std::vector<std::string> made_;
  const std::vector<int32_t> carried_;
  std::optional<BlockRunner> runner_;
  std::vector<bool> is_array_;  // for each of `given_`
  GradientStepScopes gradient_steps_;
  ScopeBindings<Step> steps_;  // by the scope of the gradient block
};

OpRegistrar&& BlockGradSlots(OpRegistrar&& op, const char* reads, const char* writes, const char* scopes) {
  return std::move(op)
      .Input(reads, "variables that the steps read", kDuplicable | kDispensable)
      .Input(writes, "what a step leaves to the next", kDuplicable | kDispensable)
      .Input(GradVarName(writes), "gradients of the results of the last step", kDuplicable | kDispensable)
      .Input(scopes, "the steps' variables")
      .Output(GradVarName(reads), "gradients of the variables that the steps read", kDuplicable | kDispensable)
      .InPlace(GradVarName(reads), GradVarName(writes))
      .Attr<BlockRef>("sub_block", "the block that computes the gradients of a step")
      .Attr<std::vector<std::string>>("given", "the block's names of the gradients of the step's results")
      .Attr<std::vector<std::string>>("made", "the block's names of the gradients of the variables that the step reads")
      .Attr<std::vector<int32_t>>("carried",
                                  "for each variable that is read, its place among those that are left or -1");
}

class WhileGradOp : public BlockGradOp {
 public:
  explicit WhileGradOp(OpDesc desc) : BlockGradOp(std::move(desc), "X", "Out", "StepScopes") {}
};

class ConditionalBlockGradOp : public BlockGradOp {
 public:
  explicit ConditionalBlockGradOp(OpDesc desc) : BlockGradOp(std::move(desc), "Input", "Out", "Scope") {}
};

}  // namespace

HEADRACE_REGISTER_OP(while_grad)
    .Comment("Gradient of while: runs the gradient block of each step, the last step first.")
    .With(BlockGradSlots, "X", "Out", "StepScopes")
    .Operator<WhileGradOp>();

HEADRACE_REGISTER_OP(conditional_block_grad)
    .Comment("Gradient of conditional_block: runs the gradient block if the block was run.")
    .With(BlockGradSlots, "Input", "Out", "Scope")
    .Operator<ConditionalBlockGradOp>();

}  // namespace headrace::ops
