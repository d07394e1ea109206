// Stands for another libheadrace.
#include <string>
#include <vector>

extern "C" __attribute__((visibility("default"))) int headrace_of_elsewhere() { return 0; }

namespace headrace {

__attribute__((visibility("default"))) std::vector<std::string> LoadOpLibrary(const std::string& /*path*/) {
  return {};
}

}  // namespace headrace
