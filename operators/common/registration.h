// For declarations of operators that have kernels for many dtypes.
#pragma once

#include "framework/op_registry.h"

namespace headrace::ops {

// For the next statement of a declaration: the methods of a registrar return what they are called on, which stays where
// it is.
inline OpRegistrar&& More(OpRegistrar& op) { return static_cast<OpRegistrar&&>(op); }

// For OpRegistrar::With: the same kernel for every dtype.
OpRegistrar&& KernelForAllTypes(OpRegistrar&& op, const KernelFn& kernel);

}  // namespace headrace::ops
