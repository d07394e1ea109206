// What an operator with a block keeps for its gradient operator: the variables that the block had in each step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "framework/scope.h"

namespace headrace {

// Thread-safety: none. Lifetime: the scopes lie in the scope in which the operator ran; so must the variable that holds
// this.
struct StepScopes {
  std::deque<Scope> scopes;  // those beyond `size` are of a longer, earlier run, and wait to be used again
  std::deque<std::vector<Variable*>> passing;  // for each of them: variables that no gradient operator looks at
  size_t size = 0;                             // steps of the last run
  int32_t block = -1;                          // the block whose variables they hold
};

}  // namespace headrace
