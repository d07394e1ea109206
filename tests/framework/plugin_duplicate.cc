// An operator library that must be refused: its second operator has the name of another plugin's.
#include "framework/op_registry.h"

namespace {

HEADRACE_REGISTER_OP(plugin_innocent).Output("Out", "").Kernel<float>([](const headrace::ExecutionContext&) {});
HEADRACE_REGISTER_OP(plugin_relu6).Output("Out", "").Kernel<float>([](const headrace::ExecutionContext&) {});

}  // namespace
