// Which batches there are, and in which order they are opened: a function of the options and of the consumer's calls,
// never of the producers.
//
// A batch is planned when it is about to be opened, so that an epoch costs nothing before it is walked through, at
// whichever batch it begins.
//
// Streams (kStream) end when their makers say so, and not before. Several streams take turns, those that have ended
// left out. Batches may be open beyond the end of their stream when that becomes known: they are not delivered. So the
// order of what is delivered does not depend on when it becomes known. With one stream for all producers, each of them
// iterates over the whole stream and passes over the batches that it has not claimed.
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

// Who makes a batch of samples.
enum class Collation : uint32_t {
  kNone = 0,   // each row is written to its place by whoever makes it
  kWhole = 1,  // one producer makes all samples and collates them
  kSplit = 2,  // the samples are made by several, and collated by one
  // Split where it pays: where the producers are more than the batches in flight, or a batch takes one of them long,
  // and a sample takes longer than to hand it over. What is in the batches does not depend on it.
  kAdaptive = 3,
};

struct SchedulerOptions {
  ArenaOptions arena;       // order, dataset_length and seed included
  uint64_t batch_size = 1;  // rows; for kExplicit each supplied batch says its own
  bool drop_last = false;   // leave out a last batch with fewer rows
  uint32_t rank = 0;        // this loader is one of `world` that share each epoch: row r of its batch b is
  uint32_t world = 1;       // at position (b * batch_size + r) * world + rank. Not for kExplicit and kStream.
  uint32_t streams = 0;     // kStream: stream s is made by producer s alone; 0: one stream, by all (BatchPlan)
  uint32_t prefetch = 2;    // batches opened ahead of the consumer, the one it waits for included
  uint32_t producers = 1;   // how many are going to fill them: decides how finely a batch is cut
  Collation collation = Collation::kNone;  // not for kStream
  uint32_t collators = kMaxProducers;      // kSplit, kAdaptive: producers with a lower id collate
  bool in_order = true;                    // hand out batches in the order of their numbers, else as they are complete
  bool pin_memory = false;                 // lock the batches that are taken for CUDA (pinned_memory.h)
  bool fence_device = true;  // with pin_memory: a slot is used again once devices have ended what was submitted before
                             // its release (device_fence.h); false: who releases it has waited for that
  bool cross_epochs = true;  // open the next epoch's first batches while this one ends
};

// Where a stream is.
struct StreamPosition {
  uint64_t next = 0;   // its next batch
  bool ended = false;  // it has none
};

// Where an epoch begins.
struct EpochStart {
  uint64_t epoch = 0;
  uint64_t first_batch = 0;
  std::vector<uint64_t> skip = {};  // batches, from first_batch on, that are left out
  // Several streams: where each of them is, and which is next; none: all at their begin.
  std::vector<StreamPosition> streams = {};
  uint32_t next_stream = 0;
};

struct PlannedBatch {
  uint64_t epoch = 0;
  uint64_t batch = 0;  // kStream: in its stream
  uint32_t stream = 0;
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

  // The last batch of a stream is the one before `end`, or earlier.
  void EndStream(uint32_t stream, uint64_t end);
  // Whether a batch is before the end of its stream, as far as that is known.
  bool IsWithin(uint32_t stream, uint64_t batch) const { return batch < streams_[stream].end; }

  // Whether there is a batch to open while the consumer is in `consumer_epoch`.
  bool HasNext(uint64_t consumer_epoch) const;
  // That batch.
  PlannedBatch Next();
  // Whether all batches of the epoch have been given out. For kExplicit: all that were supplied.
  bool Exhausted(uint64_t epoch) const;

 private:
  struct Stream {
    uint64_t next;
    uint64_t end;  // kEndless: not known
  };
  static constexpr uint64_t kEndless = ~uint64_t{0};

  void PassSkipped();
  void StartStreams(const EpochStart& start);

  const SchedulerOptions options_;
  uint64_t batches_per_epoch_ = 0;
  uint64_t epoch_ = 0;
  uint64_t batch_ = 0;  // the next
  uint64_t skip_epoch_ = 0;
  std::vector<uint64_t> skip_;  // sorted
  size_t skipped_ = 0;          // so many of them were passed
  std::deque<PlannedBatch> supply_;
  bool supply_ended_ = false;
  std::vector<Stream> streams_;
  uint32_t next_stream_ = 0;
};

}  // namespace headrace::shared_memory
