// headrace._core.FileSetLock, replace_files, read_tensors and variable_file_name.
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "framework/errors.h"
#include "framework/file_replacement.h"
#include "framework/model_files.h"
#include "framework/tensor_serialization.h"
#include "framework/wait_hook.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// Bytes as they are, or tensors one after the other.
using Content = std::variant<std::string, std::vector<LoDTensor>>;

Content ContentFromPython(const py::handle& value) {
  if (py::isinstance<py::bytes>(value)) {
    return std::string(value.cast<py::bytes>());
  }
  std::vector<LoDTensor> tensors;
  for (const py::handle tensor : py::reinterpret_borrow<py::sequence>(value)) {
    tensors.push_back(tensor.cast<const LoDTensor&>());
    HR_ENFORCE(tensors.back().initialized(), FailedPrecondition, "a tensor without data cannot be written to a file");
  }
  return tensors;
}

void ReplaceFiles(const std::string& folder, const py::dict& files) {
  std::vector<std::pair<std::string, Content>> contents;
  for (const auto& [name, value] : files) {
    contents.emplace_back(name.cast<std::string>(), ContentFromPython(value));
  }
  const GilReleased nogil;
  const ScopedWaitHook hook(&CheckSignals);  // lets Ctrl-C end a wait for another writer
  FileSetReplacement set(folder);
  for (const auto& [name, content] : contents) {
    FileReplacement& file = set.Add(name);
    if (const auto* bytes = std::get_if<std::string>(&content)) {
      file.Write(*bytes);
    } else {
      for (const LoDTensor& tensor : std::get<std::vector<LoDTensor>>(content)) {
        WriteTensor(tensor, &file);
      }
    }
  }
  set.Commit();
}

std::vector<LoDTensor> ReadTensorsOf(const std::string& path, const std::vector<std::string>& names) {
  const GilReleased nogil;
  return ReadTensors(path, names);
}

// A context: the folder is locked within it.
class LockedFolder {
 public:
  LockedFolder(std::string folder, bool exclusive) : folder_(std::move(folder)), exclusive_(exclusive) {}

  void Enter() {
    const GilReleased nogil;
    const ScopedWaitHook hook(&CheckSignals);
    lock_ = std::make_unique<FileSetLock>(folder_, exclusive_);
  }
  void Exit() { lock_.reset(); }

 private:
  const std::string folder_;
  const bool exclusive_;
  std::unique_ptr<FileSetLock> lock_;
};

}  // namespace

void BindFiles(py::module_& m) {
  py::class_<LockedFolder>(m, "FileSetLock",
                           "Within it, no process replaces files of a folder by replace_files, and if it is exclusive, "
                           "no other is within one "
                           "of the\n"
                           "same folder; a replacement that was left unfinished is completed first.")
      .def(py::init<std::string, bool>(), py::arg("folder"), py::arg("exclusive") = false)
      .def("__enter__", &LockedFolder::Enter)
      .def("__exit__", [](LockedFolder& self, const py::args&) { self.Exit(); });
  m.def(
      "replace_files", &ReplaceFiles, py::arg("folder"), py::arg("files"),
      "Replaces files of a folder, which is made if need be: all of them, or none if it fails or the process dies. "
      "``files`` maps\n"
      "their names in the folder to bytes, or to lists of LoDTensors, which are written one after the other. They are "
      "on the disk\n"
      "when it returns. OSError; ValueError if a name leads out of the folder.");
  m.def(
      "read_tensors", &ReadTensorsOf, py::arg("path"), py::arg("names"),
      "The LoDTensors in a file that holds one for each of ``names``, which are for errors. OSError, or DataLoss if it "
      "does not.");
  m.def("variable_file_name", &VariableFileName, py::arg("name"),
        "The file of a variable: its name, with a folder for each \"/\" in it, as in Fluid; a name that would lead "
        "elsewhere\n"
        "or to a hidden file is quoted.");
}

}  // namespace headrace::python
