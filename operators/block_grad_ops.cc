// while_grad, conditional_block_grad: run the gradient block of each step that the operator took, the last step first.
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
#include "operators/array_gradient.h"
#include "operators/block_op.h"

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
  BlockGradOp(OpDesc desc, std::string reads, std::string writes, std::string scopes)
      : OperatorBase(std::move(desc)),
        reads_(std::move(reads)),
        writes_(std::move(writes)),
        scopes_(std::move(scopes)),
        given_(Attr<std::vector<std::string>>("given")),
        made_(Attr<std::vector<std::string>>("made")),
        carried_(Attr<std::vector<int32_t>>("carried")) {}

  void Prepare(const BlockDesc& block) override {
    const size_t writes = Inputs(writes_).size();
    const size_t reads = Inputs(reads_).size();
    HR_ENFORCE(given_.size() == writes && Inputs(GradVarName(writes_)).size() == writes && made_.size() == reads &&
                   carried_.size() == reads && Outputs(GradVarName(reads_)).size() == reads,
               InvalidArgument, "slots '", reads_, "', '", writes_,
               "', those of their gradients and attributes 'made', ",
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
    std::for_each(given_.begin(), given_.end(), check_local);
    for (const std::string& name : made_) {
      if (name != kEmptyVarName) {
        check_local(name);
      }
    }
  }

  void Unbind() override {
    if (runner_.has_value()) {
      runner_->Unbind();
    }
    gradient_steps_.Clear();
  }

 private:
  bool IsArray(size_t write) const { return runner_->block().GetVar(given_[write]).kind == VarKind::kLoDTensorArray; }

  void RunImpl(const Scope& scope, const Place& place) override {
    HR_ENFORCE(runner_.has_value(), FailedPrecondition, "the operator has not been prepared with its program");
    const auto& steps = scope.GetVar(Input(scopes_)).Get<StepScopes>();
    HR_ENFORCE(steps.block == runner_->block().parent(), InvalidArgument, "'", Input(scopes_),
               "' holds steps of block ", steps.block, ", but the gradient block lies in block ",
               runner_->block().parent());
    PoolVector<LoDTensor> state(given_.size());
    PoolVector<LoDTensorArray*> arrays(given_.size());
    for (size_t i = 0; i < given_.size(); ++i) {
      const std::string& name = Inputs(GradVarName(writes_))[i];
      if (IsArray(i)) {
        arrays[i] = scope.GetVar(name).GetMutable<LoDTensorArray>();
      } else if (name != kEmptyVarName && scope.GetVar(name).Get<LoDTensor>().initialized()) {
        state[i] = scope.GetVar(name).Get<LoDTensor>();
      } else {
        FillZerosLike(Written(scope, i), &state[i]);
      }
    }
    for (size_t i = 0; i < made_.size(); ++i) {
      if (carried_[i] < 0) {
        Clear(scope, i);
      }
    }
    for (size_t t = steps.size; t-- > 0;) {
      ScopedWaitHook::CallIfDue();
      const Scope& step = gradient_steps_.Enter(*runner_, steps.scopes[t], t);
      for (size_t i = 0; i < given_.size(); ++i) {
        Variable& variable = step.GetVar(given_[i]);
        if (arrays[i] != nullptr) {
          std::swap(*variable.GetMutable<LoDTensorArray>(), *arrays[i]);
        } else {
          *variable.GetMutable<LoDTensor>() = std::move(state[i]);
        }
      }
      runner_->Run(step, place);
      for (size_t i = 0; i < given_.size(); ++i) {
        if (arrays[i] != nullptr) {
          std::swap(*step.GetVar(given_[i]).GetMutable<LoDTensorArray>(), *arrays[i]);
        }
      }
      TakeGradients(scope, step, &state, arrays);
      gradient_steps_.Leave(t);
    }
    for (size_t i = 0; i < made_.size(); ++i) {
      const auto write = static_cast<size_t>(carried_[i]);
      const std::string& name = Outputs(GradVarName(reads_))[i];
      if (carried_[i] >= 0 && arrays[write] == nullptr && name != kEmptyVarName) {
        *scope.GetVar(name).GetMutable<LoDTensor>() = state[write];
      }
    }
  }

  const LoDTensor& Written(const Scope& scope, size_t write) const {
    const auto& tensor = scope.GetVar(Inputs(writes_)[write]).Get<LoDTensor>();
    HR_ENFORCE(tensor.initialized(), FailedPrecondition, "'", Inputs(writes_)[write], "' has not been written yet");
    return tensor;
  }

  // The sum over no steps.
  void Clear(const Scope& scope, size_t read) const {
    const std::string& name = Outputs(GradVarName(reads_))[read];
    if (name == kEmptyVarName) {
      return;
    }
    const auto& x = scope.GetVar(Inputs(reads_)[read]).Get<LoDTensor>();
    Variable& sum = scope.GetVar(name);
    if (sum.IsType<SelectedRows>()) {
      auto* rows = sum.GetMutable<SelectedRows>();
      rows->mutable_rows()->clear();
      rows->set_height(x.dims().empty() ? 0 : x.dims()[0]);
      DDim dims = x.dims();
      if (!dims.empty()) {
        dims[0] = 0;
      }
      rows->mutable_value()->Resize(dims);
      rows->mutable_value()->mutable_data(x.dtype());
    } else {
      FillZerosLike(x, sum.GetMutable<LoDTensor>());
    }
  }

  // What the step made goes to the step before it, or to the sum over the steps.
  void TakeGradients(const Scope& scope, const Scope& step, PoolVector<LoDTensor>* state,
                     const PoolVector<LoDTensorArray*>& arrays) const {
    for (size_t i = 0; i < made_.size(); ++i) {
      if (made_[i] == kEmptyVarName || (carried_[i] >= 0 && arrays[static_cast<size_t>(carried_[i])] != nullptr)) {
        continue;
      }
      const Variable& made = step.GetVar(made_[i]);
      if (carried_[i] >= 0) {
        (*state)[static_cast<size_t>(carried_[i])] = made.Get<LoDTensor>();
      } else if (Variable& sum = scope.GetVar(Outputs(GradVarName(reads_))[i]); made.IsType<SelectedRows>()) {
        AppendRows(made.Get<SelectedRows>(), sum.GetMutable<SelectedRows>());
      } else {
        AddTensor(made.Get<LoDTensor>(), sum.GetMutable<LoDTensor>());
      }
    }
    for (size_t i = 0; i < given_.size(); ++i) {
      if (arrays[i] == nullptr && !(*state)[i].initialized()) {
        FillZerosLike(Written(scope, i), &(*state)[i]);
      }
    }
  }

  const std::string reads_;
  const std::string writes_;
  const std::string scopes_;
  const std::vector<std::string> given_;
  const std::vector<std::string> made_;
  const std::vector<int32_t> carried_;
  std::optional<BlockRunner> runner_;
  GradientStepScopes gradient_steps_;
};

OpRegistrar&& BlockGradSlots(OpRegistrar&& op, const char* reads, const char* writes, const char* scopes) {
  return std::move(op)
      .Input(reads, "what the steps read", kDuplicable | kDispensable)
      .Input(writes, "what a step leaves to the next", kDuplicable | kDispensable)
      .Input(GradVarName(writes), "gradients of what the last step left", kDuplicable | kDispensable)
      .Input(scopes, "the steps' variables")
      .Output(GradVarName(reads), "gradients of what the steps read", kDuplicable | kDispensable)
      .InPlace(GradVarName(reads), GradVarName(writes))
      .Attr<BlockRef>("sub_block", "the block that computes the gradients of a step")
      .Attr<std::vector<std::string>>("given", "the block's names of the gradients of what the step left")
      .Attr<std::vector<std::string>>("made", "the block's names of the gradients of what the step read")
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
