// _core.exit_with: no worker outlives the main process.
#include <poll.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "python/bindings/bindings.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

// Ends this process as soon as the process behind `pidfd` has ended, whatever Python is doing. The descriptor is kept.
void ExitWith(int pidfd) {
  std::thread([pidfd] {
    pollfd descriptor{pidfd, POLLIN, 0};
    while (poll(&descriptor, 1, -1) < 0 && errno == EINTR) {
    }
    _exit(1);
  }).detach();
}

}  // namespace

void BindExitWith(py::module_& m) {
  m.def("exit_with", &ExitWith, py::arg("pidfd"),
        "Ends this process as soon as the process behind the pidfd has ended.");
}

}  // namespace headrace::python
