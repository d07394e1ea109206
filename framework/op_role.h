// The role of an operator in a program: its attribute "op_role", a sum of the numbers below, which are Fluid's. Every
// operator has it, even undeclared; it is stored with the program, and decides which operators a test program leaves
// out.
#pragma once

#include <cstdint>
#include <string_view>

#include "framework/export.h"
#include "framework/op_desc.h"

namespace headrace {

enum OpRole : int32_t {
  kRoleForward = 0,
  kRoleBackward = 1,
  kRoleOptimize = 2,  // changes parameters, or their state
  kRoleLRSched = 16,  // computes the learning rate
  kRoleLoss = 256,    // computes a loss, or fills in its gradient
  kRoleTraining = kRoleBackward | kRoleOptimize | kRoleLRSched,
};

constexpr std::string_view kOpRoleAttr = "op_role";
// As Fluid writes it: a parameter and its gradient, then perhaps others, for an operator that completes the gradient of
// a parameter or updates it. Absent elsewhere.
constexpr std::string_view kOpRoleVarAttr = "op_role_var";
// The name scopes that an operator was added in: "/encoder/layer_0/". Absent: "/".
constexpr std::string_view kOpNameScopeAttr = "op_namescope";

// The role; kRoleForward if it has not been given.
HEADRACE_API int32_t RoleOf(const OpDesc& op);
inline bool HasRole(const OpDesc& op, int32_t roles) { return (RoleOf(op) & roles) != 0; }

}  // namespace headrace
