// A library with an operator whose kernel calls a function that this libheadrace does not have.
#include "framework/op_registry.h"

namespace headrace {
void FunctionOfAnotherVersion(const ExecutionContext& ctx);
}  // namespace headrace

namespace {

HEADRACE_REGISTER_OP(plugin_missing_symbol)
    .Output("Out", "nothing")
    .Kernel<float>([](const headrace::ExecutionContext& ctx) { headrace::FunctionOfAnotherVersion(ctx); });

}  // namespace
