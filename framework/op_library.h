// Operator plugins: shared libraries whose static initialisers register operators with HEADRACE_REGISTER_OP.
#pragma once

#include <string>
#include <vector>

#include "framework/export.h"

namespace headrace {

// Opens the library at `path` and returns the operator types that it registered, sorted. Opening one again returns the
// same. Throws IoError with the dynamic linker's message, or with what to rebuild if the library was built with
// other layouts of the types in the headers or with another standard library (op_library_abi.h); AlreadyExists if it
// registers an operator that exists, or InvalidArgument if it registers nothing with this libheadrace, or a declaration
// contradicts itself; then none of its operators stays registered, and opening it again throws the same. One that the
// program was linked with, or has opened by dlopen before, has registered its operators then: no types are returned.
// The library stays loaded until the process ends. Its other static initialisers must not throw: that ends the process,
// since the dynamic linker cannot be unwound. Any thread may call this.
HEADRACE_API std::vector<std::string> LoadOpLibrary(const std::string& path);

}  // namespace headrace
