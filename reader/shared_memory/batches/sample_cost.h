// Measures what a sample costs its producer, and decides from it into how many chunks to cut batches. The content of
// the batches does not depend on it.
//
// Thread-safety: none; BatchScheduler guards it with its mutex.
#pragma once

#include <cstdint>

#include "reader/shared_memory/arena/control_block.h"
#include "reader/shared_memory/arena/slot.h"
#include "reader/shared_memory/batches/batch_plan.h"

namespace headrace::shared_memory {

class SampleCost {
 public:
  explicit SampleCost(const SchedulerOptions& options) : options_(options), producers_(options.producers) {}

  // The number of producers to cut batches for.
  void SetProducers(uint32_t producers) { producers_ = producers; }
  // Reads the counters of the first `end` producers, unless it did so a short while ago. `now_ns` may be coarse.
  void Measure(const ProducerRecord* records, uint32_t end, uint64_t now_ns);

  // How many rows a producer claims at once.
  uint32_t ChunkRows(ClaimKind kind, uint64_t rows) const;

 private:
  const SchedulerOptions options_;
  uint32_t producers_;
  double sample_ns_ = 0;  // 0: not yet known
  uint64_t measured_ns_ = 0;
  uint64_t work_ns_ = 0;
  uint64_t samples_ = 0;
};

}  // namespace headrace::shared_memory
