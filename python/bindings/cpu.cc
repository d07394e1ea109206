// headrace._cpu: what this processor lacks of the instruction set that the kernels were compiled for. A module of its
// own, linked to nothing, since merely loading the kernels' library may run their instructions.
#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

namespace {

std::string Missing() {
  std::string missing;
#if defined(__x86_64__)
  constexpr std::string_view kMarch = HEADRACE_MARCH;
  const auto need = [&missing](bool present, const char* feature) {
    if (!present) {
      missing += (missing.empty() ? "" : ", ") + std::string(feature);
    }
  };
  if (kMarch != "x86-64") {
    __builtin_cpu_init();
    need(__builtin_cpu_supports("avx2") != 0, "AVX2");
    need(__builtin_cpu_supports("fma") != 0, "FMA");
    need(__builtin_cpu_supports("bmi2") != 0, "BMI2");
  }
#endif
  return missing;
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  m.attr("MARCH") = HEADRACE_MARCH;
  m.def("missing", &Missing,
        "Names of the instruction sets that the kernels need and this processor lacks; empty if there are none.");
}
