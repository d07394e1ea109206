// Runs a block of a program from within an operator of the block around it.
//
// Thread-safety: as an operator: one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "framework/export.h"
#include "framework/operator.h"
#include "framework/program_desc.h"
#include "framework/scope.h"

namespace headrace {

// Makes the variable that `desc` declares a tensor, rows of one, or an array, according to its kind, unless it is
// something already.
HEADRACE_API void InitializeVariable(const VarDesc& desc, Variable* variable);

// Whether a variable belongs to the caller's scope. A reader or a queue is the same one for every program that uses it,
// and what it has fetched in advance must not be lost between runs.
HEADRACE_API bool OutlivesRuns(const VarDesc& var);

// The variables that `block` declares, that do not outlive a run, and in which the next run could find what this one
// has left: arrays, which keep what is not written, and what only blocks within write, which may not run.
HEADRACE_API std::vector<std::string> LeftFromRuns(const BlockDesc& block);

// Empties a tensor, rows of one, or an array.
HEADRACE_API void Clear(Variable* variable);

// `op`, an operator of `block`, made runnable and prepared. Errors come out with its type as context.
HEADRACE_API std::unique_ptr<OperatorBase> PreparedOperator(const BlockDesc& block, const OpDesc& op);

// Adds the names of the variables outside of a block that operators within blocks of `op`, an operator of `block`, read
// and write. Blocks that `op` cannot run are left out.
HEADRACE_API void AddInnerNames(const BlockDesc& block, const OpDesc& op, std::vector<std::string>* inputs,
                                std::vector<std::string>* outputs);

class HEADRACE_API BlockRunner {
 public:
  // Makes the block `inner` runnable for an operator of `outer`; both outlive the runner and have been checked by the
  // executor. The operator writes the variables `given` of the block before it runs it. Throws InvalidArgument unless
  // `inner` lies directly within `outer` or, if it computes the gradient of a block, comes later in the program than
  // `outer`, so that no block can run itself; if an operator reads a tensor of the block before one has written it; and
  // if a variable of the block would outlive the run, since those belong into the root block.
  BlockRunner(const BlockDesc& outer, BlockRef inner, const std::vector<std::string>& given = {},
              bool is_gradient = false);

  const BlockDesc& block() const { return block_; }

  // Creates the block's own variables in `scope`, whose ancestors have those of the blocks around it.
  void Declare(Scope* scope) const;

  // Empties what the run before may have left (LeftFromRuns), but for what is given, then runs the operators in their
  // order. Throws what they throw.
  void Run(const Scope& scope, const Place& place);

  // As OperatorBase::Unbind, for all operators.
  void Unbind();

 private:
  void CreateOps();
  const std::vector<Variable*>& LeftIn(const Scope& scope);

  const BlockDesc& block_;
  const std::vector<std::string> given_;
  std::vector<std::string> left_;  // what each run starts without
  ScopeBindings<std::vector<Variable*>> left_in_;
  std::vector<std::unique_ptr<OperatorBase>> ops_;
};

}  // namespace headrace
