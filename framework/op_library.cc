#include "framework/op_library.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>

#include "framework/demangle.h"
#include "framework/errors.h"
#include "framework/op_library_abi.h"
#include "framework/op_registration_log.h"

namespace headrace {
namespace {

// What became of a library. One that was refused stays loaded, as its refusal is final: operators are never
// unregistered.
struct Library {
  std::vector<std::string> types;
  std::exception_ptr refusal;
};

Dl_info InfoOf(const void* function) {
  Dl_info info{};
  dladdr(function, &info);
  return info;
}

bool IsLoaded(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) {
    dlclose(handle);
  }
  return handle != nullptr;
}

// What dlerror says, with the name of a missing symbol as its source has it.
std::string Readable(const std::string& reason) {
  constexpr std::string_view kBefore = "undefined symbol: ";
  const size_t found = reason.find(kBefore);
  if (found == std::string::npos) {
    return reason;
  }
  const size_t begin = found + kBefore.size();
  const std::string symbol = reason.substr(begin, reason.find_first_of(" ,", begin) - begin);
  const std::string name = Demangled(symbol.c_str());
  return name == symbol ? reason : StrCat(reason, " (", name, "): is the library linked with all that it uses?");
}

std::string StandardLibraryName(uint64_t library) {
  return library > kLibcxx ? StrCat("libc++ with _LIBCPP_ABI_VERSION=", library - kLibcxx)
                           : StrCat("libstdc++ with _GLIBCXX_USE_CXX11_ABI=", library - 1);
}

// Why the library at `path` does not fit this libheadrace: what the name of the OpLibraryAbi that it refers to tells.
// Empty if it fits, or if nothing is known of it.
std::string WhyNotThisAbi(const std::string& path) {
  const Dl_info own = InfoOf(reinterpret_cast<const void*>(&OpLibraryAbi<kOpLibraryLayout, kStandardLibrary>));
  const std::string name = own.dli_sname == nullptr ? "" : own.dli_sname;
  const size_t digits = name.find(std::to_string(kOpLibraryLayout));
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return "";
  }
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (digits == std::string::npos || bytes.find(name) != std::string::npos) {
    return "";
  }
  const size_t found = bytes.find(name.substr(0, digits));  // among the names of the symbols that it needs
  if (found == std::string::npos) {
    return "";
  }
  const std::string other = Demangled(bytes.c_str() + found);  // "void headrace::OpLibraryAbi<layout, library>()"
  const size_t comma = other.find(", ");
  const uint64_t library = comma == std::string::npos ? 0 : std::strtoull(other.c_str() + comma + 2, nullptr, 10);
  if (library != 0 && library != kStandardLibrary) {
    return StrCat("it was built with ", StandardLibraryName(library), ", and '", own.dli_fname, "' with ",
                  StandardLibraryName(kStandardLibrary), "; rebuild it with the latter");
  }
  return StrCat(
      "it was built with the headers of another version of headrace, or with options that change how types "
      "are laid out, such as _GLIBCXX_DEBUG; rebuild it with the headers of '",
      own.dli_fname, "' and without such options");
}

// Why a loaded library has registered nothing that this program could use.
std::string WhyNothing(void* library) {
  const Dl_info own = InfoOf(reinterpret_cast<const void*>(&LoadOpLibrary));
  // The library and what it was linked with are searched, not what else is loaded.
  const void* theirs = own.dli_sname == nullptr ? nullptr : dlsym(library, own.dli_sname);
  const Dl_info other = InfoOf(theirs);
  if (theirs == nullptr || other.dli_fbase == own.dli_fbase) {
    return "it registers neither operators nor kernels";
  }
  return StrCat("its operators are registered with '", other.dli_fname,
                "', which it was linked with, while this program runs '", own.dli_fname, "'; link it with that");
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
    const std::string why = WhyNotThisAbi(path);
    Throw<IoError>("cannot load operator library '", path, "': ", why.empty() ? Readable(reason) : why);
  }
  if (const auto it = libraries->find(handle); it == libraries->end()) {
    Library library;
    const std::string refused = StrCat("operator library '", path, "' is refused: ");
    try {
      HR_ENFORCE(loaded_before || !log.empty(), InvalidArgument, WhyNothing(handle));
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
