// Names of symbols as their sources have them.
#pragma once

#include <string>

namespace headrace {

// A name that is not mangled stays as it is.
std::string Demangled(const char* symbol);

}  // namespace headrace
