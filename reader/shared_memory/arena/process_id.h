// The calling process's id without a system call, since every release of a batch asks for it.
#pragma once

#include <sys/types.h>

#include "framework/export.h"

namespace headrace::shared_memory {

// Like getpid(); correct after fork(), but not in a child made by a direct call of clone(). Any thread.
HEADRACE_API pid_t ProcessId();

}  // namespace headrace::shared_memory
