// Checks that an operator fits the block it is in; shared by building, parsing and preparing a program.
#pragma once

#include "framework/program_desc.h"

namespace headrace {

// Throws NotFound, naming operator, slot and variable, unless `block` or an ancestor declares every variable of `op`.
void CheckVariablesExist(const BlockDesc& block, const OpDesc& op);

// Throws OutOfRange, naming the attribute, if `op` refers to a block that the program does not have.
void CheckBlockRefs(const BlockDesc& block, const OpDesc& op);

}  // namespace headrace
