// What messages say of a system call that has failed.
#pragma once

#include <string>

#include "framework/export.h"

namespace headrace::shared_memory {

// The system's text for an error number and, where a limit causes it, which one, and what to do. Thread-safe.
HEADRACE_API std::string SystemError(int error);

}  // namespace headrace::shared_memory
