#include "framework/op_library.h"

#include <dlfcn.h>

#include <exception>
#include <map>
#include <mutex>

#include "framework/errors.h"
#include "framework/op_registration_log.h"

namespace headrace {
namespace {

// What became of a library. One that was refused stays loaded, as its refusal is final: operators are never
// unregistered.
struct Library {
  std::vector<std::string> types;
  std::exception_ptr refusal;
};

}  // namespace

std::vector<std::string> LoadOpLibrary(const std::string& path) {
  // Held while the library's initialisers run: a second thread must not see the handle before its operators. Recursive,
  // for initialisers that load a library themselves.
  static auto* mutex = new std::recursive_mutex;
  static auto* libraries = new std::map<void*, Library>;
  const std::lock_guard lock(*mutex);

  OpRegistrationLog log;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = dlerror();
    const std::string reason = error == nullptr ? "unknown reason" : error;
    const bool other_abi = reason.find("headrace_op_library_abi_") != std::string::npos;
    Throw<IoError>("cannot load operator library '", path, "': ",
                   other_abi ? "it was built with the headers of another version of headrace; build it anew with those "
                               "of this version: "
                             : "",
                   reason);
  }
  if (const auto it = libraries->find(handle); it == libraries->end()) {
    Library library;
    const std::string refused = StrCat("operator library '", path, "' is refused: ");
    try {
      library.types = log.Commit();
    } catch (const AlreadyExists& error) {
      library.refusal = std::make_exception_ptr(AlreadyExists(StrCat(refused, error.message())));
    } catch (const Error& error) {
      library.refusal = std::make_exception_ptr(InvalidArgument(StrCat(refused, error.message())));
    }
    libraries->emplace(handle, std::move(library));
  }
  const Library& library = libraries->at(handle);
  if (library.refusal) {
    RethrowCopy(library.refusal);
  }
  return library.types;
}

}  // namespace headrace
