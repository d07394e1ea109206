// Which variables of a program depend on parameters, and so may carry a gradient: the first step of appending a
// backward pass (see backward.cc).
//
// Thread-safety: none; these functions only read the program.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "framework/block_desc.h"
#include "framework/data_type.h"
#include "framework/op_desc.h"

namespace headrace {

using Names = std::set<std::string>;

bool IsFloatingPoint(DataType type);

bool Contains(const std::vector<std::string>& names, const std::string& name);

// Whether variable `name` is an array of tensors.
bool IsArray(const BlockDesc& block, const std::string& name);

// Whether variable `name` is a tensor, or an array of tensors, of a floating-point type that neither has stop_gradient
// nor is in `no_grad`.
bool CarriesGradient(const BlockDesc& block, const Names& no_grad, const std::string& name);

// The block that an operator runs, if it is one that is differentiated by its block.
const BlockDesc* InnerBlock(const BlockDesc& block, const OpDesc& op);

// The variables of `block` and those around it that an operator reads and writes. A written variable counts as read if
// part of it stays: the other places of an array, and all that a loop without steps or a condition that does not hold
// leaves.
struct Access {
  Access(const BlockDesc& block, const OpDesc& op);

  std::vector<std::string> reads;
  std::vector<std::string> writes;
};

// What is known of the blocks within blocks, by their index. All of it stays true.
struct Findings {
  std::map<int32_t, Names> influenced;  // variables that depend on a parameter
  std::map<int32_t, Names> given;       // those that a step is given a gradient of
  // What depends on a parameter, but has stop_gradient, as many layers make what only the gradient of an operator
  // reads, or is in no_grad: through it, that gradient depends on the parameter. Of all blocks.
  Names stopped;
};

// Adds to `names`, which depend on a parameter, those that operator `op` makes depend on it. Returns whether `op` reads
// one of them.
bool PassInfluenceOn(const BlockDesc& block, const OpDesc& op, const Names& no_grad, Names* names, Findings* findings);

}  // namespace headrace
