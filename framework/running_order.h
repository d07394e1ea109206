// The order in which an executor runs the operators of a block.
#pragma once

#include <vector>

#include "framework/block_desc.h"
#include "framework/op_desc.h"

namespace headrace {

// The operators that read data, and what must precede them, come first; otherwise the order of the program is kept. An
// operator must precede a later one if it writes what that one reads or writes, or reads what that one writes.
std::vector<const OpDesc*> RunningOrder(const BlockDesc& block);

}  // namespace headrace
