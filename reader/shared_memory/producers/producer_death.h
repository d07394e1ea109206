// What the scheduler reports about producers at work, and about those that died. A producer is a worker's end of the
// arena. For Python's workers, python/headrace/data/_workers/process_pool.py replaces the process, and deaths.py there
// decides what else follows.
#pragma once

#include <cstdint>

#include "reader/shared_memory/arena/slot.h"

namespace headrace::shared_memory {

// What a producer is doing, or was doing when it died.
struct HeldClaim {
  uint32_t producer = 0;
  uint64_t sequence = 0;  // identifies the batch among all that this scheduler ever opens
  uint64_t epoch = 0;
  uint64_t batch = 0;
  uint32_t row = 0;  // the current one, counted among all planned rows; 0 for a collation
  ClaimKind kind = ClaimKind::kRows;
  bool at_row = false;  // it has started the row; false: it is still preparing for its claim
};

// What a dead producer was doing. Its claim is free again in any case. How often a row may kill its producers is up to
// the caller, which counts the deaths and calls Abandon or Skip.
struct ProducerDeath : HeldClaim {
  bool busy = false;     // it held a claim; if not, only `producer` has a meaning
  bool corrupt = false;  // the scheduler killed it for what it had written
};

}  // namespace headrace::shared_memory
