// Shape inference while a program is built.
#pragma once

#include "framework/program_desc.h"

namespace headrace {

// Runs the shape function of `op`, which OpRegistry::Check has passed and whose variables exist, over the VarDescs that
// `block` and its ancestors declare; -1 stands for dimensions known only at run time. Writes dims, dtype and LoD depth
// of the outputs; if it throws, nothing is written.
void InferShapeAtCompileTime(BlockDesc* block, const OpDesc& op);

}  // namespace headrace
