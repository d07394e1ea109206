// What the operators that run a block of the program have in common, and what those of their gradients have: how the
// variables of each step are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "framework/block_runner.h"
#include "framework/op_registry.h"
#include "framework/step_scopes.h"

namespace headrace::ops {

// An operator with a block, whose variables lie in a scope of their own within that of the operator: in one for all
// steps or, if a gradient operator wants to see them, in one for each.
class BlockOp : public OperatorBase {
 public:
  // `scopes` is the output slot for the variable in which the steps are kept.
  BlockOp(OpDesc desc, const char* scopes) : OperatorBase(std::move(desc)), scopes_(scopes) {}

  void Prepare(const BlockDesc& block) override { PrepareBlock(block, {}); }
  void Unbind() override;

 protected:
  // Does what Prepare must do; the operator writes the variables `given` of its block before each step.
  void PrepareBlock(const BlockDesc& block, const std::vector<std::string>& given);
  // Begins a run on the variables of `scope`. The steps are kept if `keep` and if there is a variable for them.
  void Start(const ExecutionContext& variables, const Scope& scope, bool keep);
  // Where the next step runs.
  Scope& NextStep(const Scope& scope);
  // Ends a step. If it is kept, lets go of the memory of what no gradient operator looks at: the next step may use it.
  void EndStep();
  // Once PrepareBlock has been called.
  BlockRunner& runner() { return *runner_; }

 private:
  const HashedName scopes_;  // the slot of the steps, which may be empty
  std::optional<BlockRunner> runner_;
  std::vector<std::string> passing_;  // variables of the block that no gradient operator looks at
  uint64_t outer_id_ = 0;             // of the scope that `inner_` lies in
  std::optional<Scope> inner_;
  StepScopes* kept_ = nullptr;  // during a run
};

// The scopes in which the gradient block of each step runs, which lie within those that the operator has kept. They are
// kept from run to run.
class GradientStepScopes {
 public:
  // The scope of step `t`, which ran in `forward`. The variables of the block have no memory, unless an earlier run has
  // ended in an error.
  const Scope& Enter(const BlockRunner& runner, const Scope& forward, size_t t);
  // Takes the memory away from the variables, so that the steps use the same memory one after another.
  void Leave(size_t t);
  void Clear() { steps_.clear(); }

 private:
  struct Step {
    std::optional<Scope> scope;
    uint64_t outer_id = 0;  // of the scope that it lies in
    std::vector<Variable*> variables;
  };
  std::deque<Step> steps_;
};

}  // namespace headrace::ops
