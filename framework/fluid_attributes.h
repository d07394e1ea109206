// Attributes and outputs of Fluid's operators that change no result: programs that Fluid has saved have them, and
// operators need not declare them.
#pragma once

#include <string>
#include <string_view>

#include "framework/attribute.h"
#include "framework/op_desc.h"

namespace headrace {

// Whether `name` is one of them, for operator `type`. Thread-safe.
bool IsFluidAttr(std::string_view type, std::string_view name);

// Whether operator `type`, which does not declare attribute `name`, computes what `value` asks for all the same. Throws
// Unimplemented if `name` is known, but not that value. Thread-safe.
bool IsNeutralFluidAttr(std::string_view type, const std::string& name, const Attribute& value);

// Leaves out outputs that name the variable of an input which the operator does not change. Thread-safe.
void DropNeutralFluidOutputs(OpDesc* op);

}  // namespace headrace
