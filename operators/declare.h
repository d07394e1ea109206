// Lets several statements declare one operator.
#pragma once

#include "framework/op_registry.h"

namespace headrace::ops {

// For the next part of a declaration: the methods of a registrar return what they are called on, which stays where it
// is.
inline OpRegistrar&& More(OpRegistrar& op) { return static_cast<OpRegistrar&&>(op); }

}  // namespace headrace::ops
