// A library that must be refused: there is no such operator.
#include "framework/op_registry.h"

namespace {

HEADRACE_REGISTER_OP(plugin_beside_a_kernel).Output("Out", "").Kernel<float>([](const headrace::ExecutionContext&) {});
HEADRACE_REGISTER_KERNEL(plugin_that_is_nowhere, float, [](const headrace::ExecutionContext&) {});

}  // namespace
