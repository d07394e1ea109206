// Which batches there are, and in which order they open: a function of the options and of the consumer's calls, never
// of the producers, unless several streams are to be delivered in any order.
//
// A batch is planned only when it is about to be opened, so starting an epoch costs nothing, at whichever batch.
//
// Streams (kStream) end when their producers say so. Several streams take turns, leaving out those that have ended; to
// be delivered in any order, the stream with the fewest open batches is next, so that a slow one does not fill up what
// may be open.
// When an end becomes known, batches beyond it may be open already: they are not delivered. So the order of delivery
// does not depend on when the end becomes known. If all producers share one stream, each of them iterates over all of
// it and passes over the batches that it has not claimed.
//
// Thread-safety: none; BatchScheduler guards its plan with its mutex.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "framework/export.h"
#include "reader/shared_memory/arena/arena.h"

namespace headrace::shared_memory {

// How samples become a batch, and which producers do it.
enum class Collation : uint32_t {
  kNone = 0,   // the producer of each row writes it to its place
  kWhole = 1,  // one producer makes all samples and collates them
  kSplit = 2,  // several producers make the samples, one collates copies of them
};

// SchedulerOptions::prefetch_bytes: however large batches are, `prefetch` of them are open.
inline constexpr uint64_t kAnyBytes = ~uint64_t{0};

struct SchedulerOptions {
  ArenaOptions arena;       // order, dataset_length and seed included
  uint64_t batch_size = 1;  // rows; for kExplicit each supplied batch has its own
  bool drop_last = false;   // leave out a last batch that has fewer rows
  uint32_t rank = 0;        // this loader is one of `world` that share each epoch: row r of its batch b is
  uint32_t world = 1;       // at position (b * batch_size + r) * world + rank. Not for kExplicit and kStream.
  uint32_t streams = 0;     // kStream: producer s alone makes stream s; 0: one stream, shared by all (BatchPlan)
  uint32_t prefetch = 2;    // batches opened ahead of the consumer, the one it waits for included
  uint64_t prefetch_bytes = kAnyBytes;     // so many only while that takes no more memory; else as the consumer
                                           // needs them (PrefetchDepth)
  uint32_t producers = 1;                  // how many will fill them: decides how finely a batch is cut
  Collation collation = Collation::kNone;  // not for kStream
  bool round_robin = false;                // kWhole: producer b % producers alone makes batch b of an epoch
  uint32_t collators = kMaxProducers;      // kSplit: producers with a lower id collate
  bool in_order = true;                    // hand out batches in the order of their numbers, else as they complete
  bool pin_memory = false;                 // page-lock the batches that are taken for CUDA (pinned_memory.h)
  bool fence_device = true;  // with pin_memory: reuse a slot once devices have finished what was submitted before its
                             // release (device_fence.h); false: the caller has waited for that before releasing it
  bool cross_epochs = true;  // open the next epoch's first batches while this one ends
};

// Where a stream is.
struct StreamPosition {
  uint64_t next = 0;   // its next batch
  bool ended = false;  // it has none
};

// Where an epoch starts.
struct EpochStart {
  uint64_t epoch = 0;
  uint64_t first_batch = 0;
  std::vector<uint64_t> skip = {};  // batches to leave out, all from first_batch on
  // Several streams: the position of each, and which is next; empty: all at their start.
  std::vector<StreamPosition> streams = {};
  uint32_t next_stream = 0;
  // Of the dataset: claims carry it, so that a producer knows which state to read. Batches that were opened with
  // another revision are withdrawn.
  uint64_t revision = 0;
};

struct PlannedBatch {
  uint64_t epoch = 0;
  uint64_t batch = 0;  // kStream: in its stream
  uint32_t stream = 0;
  uint64_t rows = 0;
  uint64_t first_position = 0;  // of row 0 in the epoch; the next row's is `world` further
  std::string indices;          // kExplicit
  bool pickled = false;
};

class HEADRACE_API BatchPlan {
 public:
  // Throws InvalidArgument for options out of range.
  explicit BatchPlan(const SchedulerOptions& options);

  // Batches in an epoch, including those to skip; not for kExplicit.
  uint64_t batches_per_epoch() const { return batches_per_epoch_; }

  // Starts here. Throws InvalidArgument if a batch to skip comes before the first.
  void Start(const EpochStart& start);
  // Whether the next batch is this one.
  bool IsAt(uint64_t epoch, uint64_t batch) const { return epoch_ == epoch && batch_ == batch; }
  // Whether batches of the epoch are left out.
  bool Skips(uint64_t epoch) const { return epoch == skip_epoch_ && !skip_.empty(); }

  // kExplicit: appends a batch to the epoch. See BatchScheduler::Supply.
  void Supply(uint64_t rows, std::string_view indices, bool pickled);
  void EndSupply() { supply_ended_ = true; }
  bool supply_ended() const { return supply_ended_; }
  size_t supplied() const { return supply_.size(); }

  // Notes that the stream has no batch from `end` on. Returns whether that is news.
  bool EndStream(uint32_t stream, uint64_t end);
  // Notes that a batch of the stream is no longer open.
  void Closed(uint32_t stream);
  // Whether the batch comes before the end of its stream, as far as that is known.
  bool IsWithin(uint32_t stream, uint64_t batch) const { return batch < streams_[stream].end; }

  // Whether there is a batch to open while the consumer reads `consumer_epoch`.
  bool HasNext(uint64_t consumer_epoch) const;
  // That batch.
  PlannedBatch Next();
  // Whether Next has returned all batches of the epoch; for kExplicit, all that were supplied.
  bool Exhausted(uint64_t epoch) const;

 private:
  struct Stream {
    uint64_t next;
    uint64_t end;  // kEndless: not known
    uint64_t open = 0;
    bool has_next() const { return next < end; }
  };
  static constexpr uint64_t kEndless = ~uint64_t{0};

  void PassSkipped();
  void StartStreams(const EpochStart& start);
  // The stream of the next batch.
  uint32_t NextStream() const;

  const SchedulerOptions options_;
  uint64_t batches_per_epoch_ = 0;
  uint64_t epoch_ = 0;
  uint64_t batch_ = 0;  // the next
  uint64_t skip_epoch_ = 0;
  std::vector<uint64_t> skip_;  // sorted
  size_t skipped_ = 0;          // how many of them have been passed
  std::deque<PlannedBatch> supply_;
  bool supply_ended_ = false;
  std::vector<Stream> streams_;
  uint32_t next_stream_ = 0;
};

}  // namespace headrace::shared_memory
