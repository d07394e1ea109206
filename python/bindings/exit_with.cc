// _core.exit_with: no worker outlives the program of the main process.
#include <dirent.h>
#include <fcntl.h>
#include <pybind11/pybind11.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "framework/start_thread.h"
#include "python/bindings/bindings.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

// Removes a folder and the sockets in it. Does nothing if it contains anything else, or is already gone.
void RemoveSockets(const std::string& folder) {
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) {
    return;
  }
  while (const dirent* entry = readdir(entries)) {
    struct stat status{};
    if (fstatat(dirfd(entries), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(status.st_mode)) {
      unlinkat(dirfd(entries), entry->d_name, 0);
    }
  }
  closedir(entries);
  rmdir(folder.c_str());
}

// Works whatever Python is doing, and even while this process is stopped, because the parent's end sends SIGCONT.
// (SIGKILL as that signal would come too soon: the kernel sends it when the thread that forked ends, and a forkserver
// may end before the main process's sockets are removed. SIGCONT does nothing to a process that is not stopped.)
void ExitWith(int life, const std::string& sockets) {
  prctl(PR_SET_PDEATHSIG, SIGCONT);
  StartThread("the thread that watches the main process", [life, sockets] {
    struct flock whole{};  // shared: all workers get it at once
    whole.l_type = F_RDLCK;
    whole.l_whence = SEEK_SET;
    while (fcntl(life, F_SETLKW, &whole) != 0 && (errno == EINTR || errno == ENOLCK)) {
      usleep(1000);
    }
    if (!sockets.empty()) {
      RemoveSockets(sockets);
    }
    _exit(1);
  }).detach();
}

}  // namespace

void BindExitWith(py::module_& m) {
  m.def("exit_with", &ExitWith, py::arg("life"), py::arg("sockets") = "",
        "Exits this process as soon as no process holds a POSIX lock on the file `life`, and removes the folder "
        "`sockets`, "
        "if one is given, where whoever held it had sockets. The descriptor must stay open.");
}

}  // namespace headrace::python
