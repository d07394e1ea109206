// Which batches there are, and in which order they are opened: a function of the options and of the consumer's calls,
// never of the producers.
//
// A batch is planned when it is about to be opened, so that an epoch costs nothing before it is walked through, at
// whichever batch it begins.
//
// Thread-safety: none; BatchScheduler guards its plan with its mutex.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "framework/export.h"
#include "reader/shared_memory/arena.h"

namespace headrace::shared_memory {

struct SchedulerOptions {
  ArenaOptions arena;          // order, dataset_length and seed included
  uint64_t batch_size = 1;     // rows; for kExplicit each supplied batch says its own
  bool drop_last = false;      // leave out a last batch with fewer rows
  uint32_t rank = 0;           // this loader is one of `world` that share each epoch: row r of its batch b is
  uint32_t world = 1;          // at position (b * batch_size + r) * world + rank. Not for kExplicit.
  uint32_t prefetch = 2;       // batches opened ahead of the consumer, the one it waits for included
  uint32_t producers = 1;      // how many are going to fill them: decides how finely a batch is cut
  bool whole_batches = false;  // a batch is never cut: its maker needs all samples at once
  bool in_order = true;        // hand out batches in the order of their numbers, else as they are complete
  bool cross_epochs = true;    // open the next epoch's first batches while this one ends
};

// Where an epoch begins.
struct EpochStart {
  uint64_t epoch = 0;
  uint64_t first_batch = 0;
  std::vector<uint64_t> skip;  // batches, from first_batch on, that are left out
};

struct PlannedBatch {
  uint64_t epoch = 0;
  uint64_t batch = 0;
  uint64_t rows = 0;
  uint64_t first_position = 0;  // of row 0 in the epoch; that of the next row is `world` further
  std::string indices;          // kExplicit
  bool pickled = false;
};

class BatchPlan {
 public:
  // Throws InvalidArgument for options out of range.
  explicit BatchPlan(const SchedulerOptions& options);

  // Batches in an epoch, those to skip included; not for kExplicit.
  uint64_t batches_per_epoch() const { return batches_per_epoch_; }

  // From here on. Throws InvalidArgument if a batch to skip is before the first.
  void Start(const EpochStart& start);
  // Whether the next batch would be that one.
  bool IsAt(uint64_t epoch, uint64_t batch) const { return epoch_ == epoch && batch_ == batch; }
  // Whether batches of the epoch are left out.
  bool Skips(uint64_t epoch) const { return epoch == skip_epoch_ && !skip_.empty(); }

  // kExplicit: appends a batch to the epoch. See BatchScheduler::Supply.
  void Supply(uint64_t rows, std::string_view indices, bool pickled);
  void EndSupply() { supply_ended_ = true; }
  bool supply_ended() const { return supply_ended_; }
  size_t supplied() const { return supply_.size(); }

  // Whether there is a batch to open while the consumer is in `consumer_epoch`.
  bool HasNext(uint64_t consumer_epoch) const;
  // That batch.
  PlannedBatch Next();
  // Whether all batches of the epoch have been given out. For kExplicit: all that were supplied.
  bool Exhausted(uint64_t epoch) const;

 private:
  void PassSkipped();

  const SchedulerOptions options_;
  uint64_t batches_per_epoch_ = 0;
  uint64_t epoch_ = 0;
  uint64_t batch_ = 0;  // the next
  uint64_t skip_epoch_ = 0;
  std::vector<uint64_t> skip_;  // sorted
  size_t skipped_ = 0;          // so many of them were passed
  std::deque<PlannedBatch> supply_;
  bool supply_ended_ = false;
};

}  // namespace headrace::shared_memory
