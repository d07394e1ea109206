// Checks a batch against the declaration of a queue or a reader.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/export.h"
#include "framework/lod_tensor.h"
#include "framework/program_desc.h"

namespace headrace {

// The required form of every batch.
struct BatchContract {
  std::vector<TensorSpec> specs;   // one per tensor; -1 in dims fits anything
  bool dims_only = false;          // nothing is known but the dims
  std::vector<bool> checked = {};  // empty: all; else false where operators look at dims and LoD, and integers will do
  bool any_dtype = false;          // where not checked, operators look at the dtype, too
  bool undeclared = false;         // of a queue: one tensor or more, each with a sound LoD; no specs
};

// Throws InvalidArgument (count, shape, LoD, no memory) or TypeMismatch (dtype) unless `batch` fits. The message names
// the batch by `number` (counted from 0), the variable by names[i] (its position if `names` is too short), the
// expected and the actual value.
HEADRACE_API void CheckBatch(const BatchContract& contract, const std::vector<std::string>& names,
                             const LoDTensorArray& batch, uint64_t number);

// Throws InvalidArgument unless `contract` is declared and has a spec, every dimension is -1 or more, every LoD depth 0
// or more, and `checked` is empty or about each tensor. `what` names the owner in messages.
HEADRACE_API void CheckContract(const BatchContract& contract, const std::string& what);

}  // namespace headrace
