// headrace._core.start_profiler and stop_profiler.
#include "framework/profiler.h"

#include <pybind11/stl.h>

#include <vector>

#include "python/bindings/bindings.h"

namespace headrace::python {

namespace py = pybind11;

void BindProfiler(py::module_& m) {
  m.def("start_profiler", &Profiler::Start, "Discards all records, and starts recording operators and readers.");
  m.def(
      "stop_profiler",
      [] {
        std::vector<py::tuple> spans;
        for (const ProfiledSpan& span : Profiler::Stop()) {
          const char* kind = span.kind == ProfiledSpan::Kind::kOperator ? "operator" : "reader";
          spans.push_back(py::make_tuple(kind, span.name, span.thread, span.begin_ns, span.end_ns, span.bytes));
        }
        return spans;
      },
      "Records no more, and returns (kind, name, thread, begin, end, bytes) of what has ended since the start; times "
      "in\nnanoseconds of the monotonic clock.");
  m.def("profiler_is_on", &Profiler::is_on);
}

}  // namespace headrace::python
