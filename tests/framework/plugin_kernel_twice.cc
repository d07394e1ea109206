// A library that must be refused: the operator has a kernel for float already.
#include "framework/op_registry.h"

namespace {

HEADRACE_REGISTER_OP(plugin_beside_a_kernel).Output("Out", "").Kernel<float>([](const headrace::ExecutionContext&) {});
HEADRACE_REGISTER_KERNEL(sigmoid, int32_t, [](const headrace::ExecutionContext&) {});
HEADRACE_REGISTER_KERNEL(sigmoid, float, [](const headrace::ExecutionContext&) {});

}  // namespace
