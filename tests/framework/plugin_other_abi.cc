// A library of operators like any other, but built as for another libheadrace; see CMakeLists.txt.
#include "framework/op_registry.h"

namespace {

HEADRACE_REGISTER_OP(plugin_other_abi).Output("Out", "nothing").Kernel<float>([](const headrace::ExecutionContext&) {});

}  // namespace
