#include "reader/shared_memory/arena/system_error.h"

#include <cerrno>
#include <system_error>

namespace headrace::shared_memory {
namespace {

const char* HintFor(int error) {
  switch (error) {
    case EMFILE:
      return ". The limit on file descriptors is reached: raise it (ulimit -n), or use fewer loaders or workers";
    case ENFILE:
      return ". The system has no file descriptors left (fs.file-max): use fewer loaders or workers";
    case ENOMEM:
      return ". Memory is short, or address space is limited (ulimit -v): use fewer loaders or workers, or smaller "
             "batches";
    default:
      return "";
  }
}

}  // namespace

std::string SystemError(int error) { return std::generic_category().message(error) + HintFor(error); }

}  // namespace headrace::shared_memory
