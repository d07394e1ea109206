#include "framework/op_library.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

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

// The loaded libheadrace whose code this is not, or empty.
std::string OtherLibheadrace() {
  std::string other;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* found) {
        const std::string_view path = object->dlpi_name;
        const auto own = reinterpret_cast<uintptr_t>(&OtherLibheadrace);
        bool is_own = false;
        for (const ElfW(Phdr)* segment = object->dlpi_phdr; segment < object->dlpi_phdr + object->dlpi_phnum;
             segment++) {
          const uintptr_t begin = object->dlpi_addr + segment->p_vaddr;
          is_own = is_own || (segment->p_type == PT_LOAD && own - begin < segment->p_memsz);
        }
        if (!is_own && path.substr(path.rfind('/') + 1).starts_with("libheadrace.so")) {
          *static_cast<std::string*>(found) = path;
        }
        return 0;
      },
      &other);
  return other;
}

bool IsLoaded(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) {
    dlclose(handle);
  }
  return handle != nullptr;
}

// What dlerror says, with the name of a missing symbol as its source has it.
std::string Readable(std::string reason) {
  constexpr std::string_view kBefore = "undefined symbol: ";
  const size_t found = reason.find(kBefore);
  if (found == std::string::npos) {
    return reason;
  }
  const size_t begin = found + kBefore.size();
  const size_t size = reason.find_first_of(" ,", begin) - begin;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(reason.substr(begin, size).c_str(), nullptr, nullptr, &status), std::free);
  return name == nullptr ? reason : StrCat(reason, " (", name.get(), "): is the library linked with all that it uses?");
}

// Why a library has registered nothing that this program could use.
std::string WhyNothing() {
  Dl_info own{};
  dladdr(reinterpret_cast<const void*>(&LoadOpLibrary), &own);
  const std::string other = OtherLibheadrace();
  if (other.empty()) {
    return "it registers neither operators nor kernels";
  }
  return StrCat("its operators are registered with '", other, "', which it was linked with, while this program runs '",
                own.dli_fname, "'; link it with that");
}

}  // namespace

std::vector<std::string> LoadOpLibrary(const std::string& path) {
  // Held while the library's initialisers run: a second thread must not see the handle before its operators. Recursive,
  // for initialisers that load a library themselves.
  static auto* mutex = new std::recursive_mutex;
  static auto* libraries = new std::map<void*, Library>;
  const std::lock_guard lock(*mutex);

  // dlopen("") would give the program itself.
  HR_ENFORCE(!path.empty(), InvalidArgument, "expected the path of an operator library, got an empty text");
  const bool loaded_before = IsLoaded(path);  // then the operators of a library that is not ours to know are in place
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
                   Readable(reason));
  }
  if (const auto it = libraries->find(handle); it == libraries->end()) {
    Library library;
    const std::string refused = StrCat("operator library '", path, "' is refused: ");
    try {
      HR_ENFORCE(loaded_before || !log.empty(), InvalidArgument, WhyNothing());
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
