// What a sample costs its producer, and how batches are cut for it: into how many chunks, and who collates.
//
// What is in the batches does not depend on it.
//
// Thread-safety: none; BatchScheduler guards it with its mutex.
#pragma once

#include <cstdint>

#include "reader/shared_memory/batch_plan.h"
#include "reader/shared_memory/control_block.h"
#include "reader/shared_memory/slot.h"

namespace headrace::shared_memory {

class SampleCost {
 public:
  explicit SampleCost(const SchedulerOptions& options) : options_(options), producers_(options.producers) {}

  // For how many producers batches are cut.
  void SetProducers(uint32_t producers) { producers_ = producers; }
  // Takes note of what the first `end` producers say that they have done, if that was not done for a while: `now_ns`
  // may be coarse.
  void Measure(const ProducerRecord* records, uint32_t end, uint64_t now_ns);

  // How a batch of so many rows is made.
  ClaimKind KindOf(uint64_t rows) const;
  // How many rows one claims at once.
  uint32_t ChunkRows(ClaimKind kind, uint64_t rows) const;

 private:
  const SchedulerOptions options_;
  uint32_t producers_;
  double sample_ns_ = 0;  // 0: not known yet
  uint64_t measured_ns_ = 0;
  uint64_t work_ns_ = 0;
  uint64_t samples_ = 0;
};

}  // namespace headrace::shared_memory
