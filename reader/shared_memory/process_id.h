// The calling process's id, without a system call: what a batch's release asks every time.
#pragma once

#include <sys/types.h>

#include "framework/export.h"

namespace headrace::shared_memory {

// As getpid(); correct after fork(), not in a child that was made by a clone() of one's own. Any thread.
HEADRACE_API pid_t ProcessId();

}  // namespace headrace::shared_memory
