// Checks that operators fit the block they are in; shared by building, parsing and preparing a program.
#pragma once

#include <cstddef>

#include "framework/program_desc.h"

namespace headrace {

// How many blocks deep a block may lie: blocks are looked into, prepared and run by recursion.
inline constexpr int kMaxBlockDepth = 64;

// Throws NotFound, naming operator, slot and variable, unless `block` or an ancestor declares every variable of `op`;
// InvalidArgument if a declaration has another name than the variable.
void CheckVariablesExist(const BlockDesc& block, const OpDesc& op);

// Throws OutOfRange, naming the attribute, if `op` refers to a block that the program does not have.
void CheckBlockRefs(const BlockDesc& block, const OpDesc& op);

// Checks the operators of `block` and of the blocks within it (OpRegistry::Check, which completes them, and the above),
// and that each block that they run lies within `block`, belongs to one operator and is not too deep.
void CheckProgram(ProgramDesc* program, size_t block);

// Throws TypeMismatch, naming operator and variable, if an operator of `block` or of the blocks that it runs would get
// variables of a kind or dtype that it does not take. The operators have been checked.
void CheckTypes(const ProgramDesc& program, size_t block);

}  // namespace headrace
