// _core.mark_signal: tells the reader of a signal handler's output that the output is complete.
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iterator>

#include "framework/errors.h"
#include "python/bindings/bindings.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

int mark_fd = -1;

// Async-signal-safe.
void WriteMark(int) {
  const int saved = errno;
  char text[16];
  char* begin = std::end(text);
  *--begin = '\n';
  for (pid_t rest = getpid(); rest != 0; rest /= 10) {
    *--begin = static_cast<char>('0' + rest % 10);
  }
  *--begin = '#';
  [[maybe_unused]] const ssize_t written = write(mark_fd, begin, static_cast<size_t>(std::end(text) - begin));
  errno = saved;
}

void MarkSignal(int signal, int fd) {
  mark_fd = fd;
  struct sigaction action{};
  action.sa_handler = &WriteMark;
  action.sa_flags = SA_RESTART;
  HR_ENFORCE(sigaction(signal, &action, nullptr) == 0, InvalidArgument, "signal ", signal,
             " cannot be handled: ", std::strerror(errno));
}

}  // namespace

void BindMarkSignal(py::module_& m) {
  m.def("mark_signal", &MarkSignal, py::arg("signal"), py::arg("fd"),
        "Has the signal write a line to the descriptor: '#' and the number of this process. One signal per process.");
}

}  // namespace headrace::python
