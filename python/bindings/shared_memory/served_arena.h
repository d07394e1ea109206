// For which arena a thread is a worker: it is refused a batch of that arena, for which it might wait in vain.
#pragma once

#include "reader/shared_memory/arena/arena.h"

namespace headrace::python {

// The arena; null: this thread is no worker, as most.
const shared_memory::Arena*& ServedArena();

}  // namespace headrace::python
