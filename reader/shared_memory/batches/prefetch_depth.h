// Decides how many batches to keep open: as many as keep the consumer from waiting, so that large batches occupy no
// more memory than that takes. Small ones are not worth the trouble: as many as are allowed.
//
// Grows while the consumer waits and producers have nothing to do. Shrinks once more than one batch has been ready
// whenever the consumer took another, many times in a row; if it then has to grow again, it takes twice as many times
// before it shrinks the next time. So a consumer whose pace varies waits ever more rarely, and never for the same
// reason in each round.
//
// Thread-safety: none; BatchScheduler guards it with its mutex.
#pragma once

#include <cstdint>

#include "framework/export.h"
#include "reader/shared_memory/batches/batch_plan.h"

namespace headrace::shared_memory {

class HEADRACE_API PrefetchDepth {
 public:
  explicit PrefetchDepth(const SchedulerOptions& options);

  // How many batches to keep open.
  uint32_t value() const { return adapts_ ? depth_ : limit_; }
  // Whether it depends on what happens. False also before it is known that batches are large enough: ask again.
  bool adapts() const { return adapts_; }

  // The consumer waits, and `idle` producers have nothing to do; a batch has work for `chunks` of them. Returns whether
  // value() has grown.
  bool Grow(uint32_t idle, uint32_t chunks);
  // The consumer has taken a batch of so many bytes, and `spare` further ones are ready. Returns whether value() was
  // found to suffice, or to be too large, for a while: slots not used meanwhile will not be used soon.
  bool Taken(uint64_t bytes, uint32_t spare);

 private:
  const uint32_t limit_;
  const uint64_t unlimited_bytes_;
  bool adapts_;
  uint32_t depth_;
  bool shrunk_ = false;   // at least once
  uint32_t patience_;     // this many batches, before it shrinks
  uint32_t taken_ = 0;    // of them
  uint32_t least_spare_;  // after each of those
};

}  // namespace headrace::shared_memory
