// Checks an operator of a program against the declaration of its type.
#pragma once

#include <string>

#include "framework/op_desc.h"
#include "framework/op_info.h"

namespace headrace {

// As OpRegistry::HasAttrLike.
bool HasAttrLike(const OpInfo& info, const std::string& name);

// As OpRegistry::Check, for an operator of the type that `info` declares; what it throws has no context.
void CheckAgainstDeclaration(const OpInfo& info, OpDesc* op);

}  // namespace headrace
