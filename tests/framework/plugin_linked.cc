// A library that the program itself has loaded.
#include "framework/op_registry.h"

namespace headrace {

HEADRACE_REGISTER_OP(plugin_linked).Output("Out", "").Kernel<float>([](const ExecutionContext&) {});

}  // namespace headrace
