// Runs a block of a program from within an operator of the block around it.
//
// Thread-safety: as an operator: one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "framework/export.h"
#include "framework/operator.h"
#include "framework/program_desc.h"
#include "framework/scope.h"

namespace headrace {

// How many blocks may lie around a block that is run.
inline constexpr int kMaxBlockDepth = 64;

// Makes the variable that `desc` declares a tensor or an array, according to its kind, unless it is something already.
void InitializeVariable(const VarDesc& desc, Variable* variable);

// Whether a variable belongs to the caller's scope. A reader or a queue is the same one for every program that uses it,
// and what it has fetched in advance must not be lost between runs.
bool OutlivesRuns(const VarDesc& var);

// Empties the arrays that `block` declares and that do not outlive a run; `scope` has them.
void EmptyArrays(const BlockDesc& block, const Scope& scope);

class HEADRACE_API BlockRunner {
 public:
  // Makes the block `inner` runnable for an operator of `outer`; both outlive the runner. Its operators have been
  // checked. Throws InvalidArgument unless `inner` lies directly within `outer`, so that no block can run itself, at
  // most kMaxBlockDepth blocks deep, and if an operator reads a tensor of the block before one has written it.
  BlockRunner(const BlockDesc& outer, BlockRef inner);

  // Creates the block's own variables in `scope`, whose ancestors have those of the blocks around it.
  void Declare(Scope* scope) const;

  // Empties the block's own arrays, then runs the operators in their order. Throws what they throw.
  void Run(const Scope& scope, const Place& place);

 private:
  const BlockDesc& block_;
  std::vector<std::unique_ptr<OperatorBase>> ops_;
};

}  // namespace headrace
