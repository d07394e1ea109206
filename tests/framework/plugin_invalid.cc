// An operator library that must be refused: its second operator has nothing to run.
#include "framework/op_registry.h"

namespace {

HEADRACE_REGISTER_OP(plugin_good).Output("Out", "").Kernel<float>([](const headrace::ExecutionContext&) {});
HEADRACE_REGISTER_OP(plugin_hollow).Output("Out", "");

}  // namespace
