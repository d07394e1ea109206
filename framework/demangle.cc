#include "framework/demangle.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace headrace {

std::string Demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : symbol;
}

}  // namespace headrace
