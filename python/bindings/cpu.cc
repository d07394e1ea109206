// headrace._cpu: what this processor lacks of the instruction sets that the kernels were compiled for, and the choice
// among several libraries of kernels. A module of its own, linked to nothing, since merely loading the kernels' library
// may run their instructions.
#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

// Those of HEADRACE_MARCH, from the one that libheadrace.so needs to the one that is liked best.
std::vector<std::string> Marches() {
  std::vector<std::string> marches;
  std::string_view rest = HEADRACE_MARCH;
  while (!rest.empty()) {
    const size_t end = rest.find(',');
    marches.emplace_back(rest.substr(0, end));
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return marches;
}

std::string Missing([[maybe_unused]] const std::string& march) {
  std::string missing;
#if defined(__x86_64__)
  const auto need = [&missing](bool present, const char* feature) {
    if (!present) {
      missing += (missing.empty() ? "" : ", ") + std::string(feature);
    }
  };
  if (march != "x86-64") {
    __builtin_cpu_init();
    need(__builtin_cpu_supports("avx2") != 0, "AVX2");
    need(__builtin_cpu_supports("fma") != 0, "FMA");
    need(__builtin_cpu_supports("bmi2") != 0, "BMI2");
  }
#endif
  return missing;
}

// Loads the library that this processor can run best, out of those in the package's folder. _core, which needs a
// library of this name, then takes the one that is loaded. (The dynamic linker would choose the same, but not before
// glibc 2.33.)
std::string LoadKernels(const std::string& package) {
  const std::vector<std::string> marches = Marches();
  const char* limit = std::getenv("HEADRACE_MARCH");
  for (size_t i = marches.size(); i-- > 0;) {
    if (limit != nullptr && *limit != '\0' && marches[i] != limit) {
      continue;
    }
    if (const std::string missing = Missing(marches[i]); !missing.empty()) {
      if (limit != nullptr && *limit != '\0') {
        throw pybind11::import_error("HEADRACE_MARCH=" + marches[i] + ", but this processor lacks " + missing);
      }
      continue;
    }
    const std::string path = package + (i == 0 ? "" : "/glibc-hwcaps/" + marches[i]) + "/libheadrace.so";
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
      throw pybind11::import_error(dlerror());
    }
    return marches[i];
  }
  std::string known;
  for (const std::string& march : marches) {
    known += (known.empty() ? "" : " or ") + march;
  }
  throw pybind11::import_error("HEADRACE_MARCH=" + std::string(limit == nullptr ? "" : limit) + ": expected " + known);
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  const std::vector<std::string> marches = Marches();
  m.attr("MARCH") = marches.empty() ? "" : marches.front();
  m.def(
      "missing", [march = marches.empty() ? "" : marches.front()] { return Missing(march); },
      "Names of the instruction sets that the kernels need and this processor lacks; empty if there are none.");
  m.def("load_kernels", &LoadKernels, pybind11::arg("package"),
        "Loads the library of kernels that suits this processor best, in a package that has several. HEADRACE_MARCH in "
        "the environment names another. Returns its instruction set.");
}
