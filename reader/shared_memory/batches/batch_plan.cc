#include "reader/shared_memory/batches/batch_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "framework/errors.h"

namespace headrace::shared_memory {
namespace {

constexpr uint64_t kMaxRows = uint64_t{1} << 31;
constexpr uint64_t kMaxLength = uint64_t{1} << 62;
constexpr uint32_t kMaxWorld = uint32_t{1} << 30;

void Check(const SchedulerOptions& options) {
  HR_ENFORCE(options.batch_size >= 1 && options.batch_size <= kMaxRows, InvalidArgument, "batch_size must be 1 to ",
             kMaxRows, ", got ", options.batch_size);
  HR_ENFORCE(options.arena.dataset_length <= kMaxLength, InvalidArgument, "a dataset has at most ", kMaxLength,
             " samples, got ", options.arena.dataset_length);
  HR_ENFORCE(options.arena.slot_count >= 2 && options.arena.slot_count <= kMaxSlots, InvalidArgument,
             "the number of slots must be 2 to ", kMaxSlots, ", got ", options.arena.slot_count);
  HR_ENFORCE(options.prefetch >= 1 && options.prefetch < options.arena.slot_count, InvalidArgument,
             "prefetch must be 1 to ", options.arena.slot_count - 1, " (one less than the number of slots), got ",
             options.prefetch);
  HR_ENFORCE(options.producers <= kMaxProducers, InvalidArgument, "at most ", kMaxProducers, " producers, got ",
             options.producers);
  HR_ENFORCE(options.world >= 1 && options.world <= kMaxWorld && options.rank < options.world, InvalidArgument,
             "rank must be 0 to world - 1, and world 1 to ", kMaxWorld, "; got rank ", options.rank, " of ",
             options.world);
  HR_ENFORCE(options.streams == 0 || options.arena.order == IndexOrder::kStream, InvalidArgument,
             "streams are for the order of streams only");
  HR_ENFORCE(options.collators >= 1, InvalidArgument, "at least one collator is needed, got 0");
  HR_ENFORCE(options.collation == Collation::kNone || options.arena.order != IndexOrder::kStream, InvalidArgument,
             "a batch of a stream is made by one producer, whether it is collated or not");
  HR_ENFORCE(!options.round_robin || (options.collation == Collation::kWhole && options.producers >= 1),
             InvalidArgument, "round_robin gives whole batches to a known number of producers");
  HR_ENFORCE(options.streams <= kMaxProducers, InvalidArgument, "at most ", kMaxProducers, " streams, got ",
             options.streams);
}

// The number of positions of the epoch that belong to this loader.
uint64_t ShardLength(const SchedulerOptions& options) {
  return (options.arena.dataset_length + options.world - 1 - options.rank) / options.world;
}

}  // namespace

BatchPlan::BatchPlan(const SchedulerOptions& options) : options_(options) {
  Check(options);
  // If one of the loaders had no last batch, the others would wait for it.
  batches_per_epoch_ = options.drop_last ? options.arena.dataset_length / (options.batch_size * options.world)
                                         : (ShardLength(options) + options.batch_size - 1) / options.batch_size;
}

void BatchPlan::StartStreams(const EpochStart& start) {
  const uint32_t count = options_.streams;
  HR_ENFORCE(start.streams.empty() || start.streams.size() == count, InvalidArgument, "there are ", count,
             " streams, got the positions of ", start.streams.size());
  HR_ENFORCE(start.next_stream < std::max(count, 1U), InvalidArgument, "stream ", start.next_stream,
             " cannot be next, there are ", count);
  HR_ENFORCE(count == 0 || start.skip.empty(), InvalidArgument, "batches of several streams cannot be skipped");
  streams_.assign(std::max(count, 1U), {0, kEndless, 0});
  for (size_t i = 0; i < start.streams.size(); ++i) {
    const StreamPosition& position = start.streams[i];
    streams_[i] = {position.next, position.ended ? position.next : kEndless, 0};
  }
  next_stream_ = start.next_stream;
}

bool BatchPlan::EndStream(uint32_t stream, uint64_t end) {
  if (end >= streams_[stream].end) {
    return false;
  }
  streams_[stream].end = end;
  return true;
}

void BatchPlan::Closed(uint32_t stream) { --streams_[stream].open; }

uint32_t BatchPlan::NextStream() const {
  const auto count = static_cast<uint32_t>(streams_.size());
  std::optional<uint32_t> chosen;
  for (uint32_t step = 0; step < count; ++step) {
    const uint32_t stream = (next_stream_ + step) % count;
    if (streams_[stream].has_next() && (!chosen || streams_[stream].open < streams_[*chosen].open)) {
      chosen = stream;
      if (options_.in_order) {
        break;
      }
    }
  }
  return *chosen;
}

void BatchPlan::Start(const EpochStart& start) {
  for (const uint64_t batch : start.skip) {
    HR_ENFORCE(batch >= start.first_batch, InvalidArgument, "batch ", batch,
               " cannot be skipped by an epoch that begins at batch ", start.first_batch);
  }
  if (options_.arena.order == IndexOrder::kStream) {
    StartStreams(start);
  }
  epoch_ = start.epoch;
  batch_ = start.first_batch;
  skip_epoch_ = start.epoch;
  skip_ = start.skip;
  std::sort(skip_.begin(), skip_.end());
  skip_.erase(std::unique(skip_.begin(), skip_.end()), skip_.end());
  skipped_ = 0;
  supply_.clear();
  supply_ended_ = false;
  PassSkipped();
  if (options_.arena.order == IndexOrder::kStream && options_.streams == 0) {
    streams_[0].next = batch_;
  }
}

void BatchPlan::PassSkipped() {
  for (; epoch_ == skip_epoch_ && skipped_ < skip_.size() && skip_[skipped_] == batch_; ++skipped_) {
    ++batch_;
  }
}

void BatchPlan::Supply(uint64_t rows, std::string_view indices, bool pickled) {
  HR_ENFORCE(rows >= 1 && rows <= kMaxRows, InvalidArgument, "a batch must have 1 to ", kMaxRows, " rows, got ", rows);
  HR_ENFORCE(pickled || indices.size() == rows * sizeof(int64_t), InvalidArgument, "a batch of ", rows,
             " rows needs as many indices of ", sizeof(int64_t), " bytes, got ", indices.size(), " bytes");
  supply_.push_back({epoch_, batch_++, 0, rows, 0, std::string(indices), pickled});
  PassSkipped();
}

bool BatchPlan::HasNext(uint64_t consumer_epoch) const {
  if (options_.arena.order == IndexOrder::kExplicit) {
    return !supply_.empty();
  }
  if (options_.arena.order == IndexOrder::kStream) {
    return std::any_of(streams_.begin(), streams_.end(), [](const Stream& stream) { return stream.has_next(); });
  }
  return batch_ < batches_per_epoch_ || (options_.cross_epochs && batches_per_epoch_ != 0 && epoch_ == consumer_epoch);
}

PlannedBatch BatchPlan::Next() {
  if (options_.arena.order == IndexOrder::kExplicit) {
    PlannedBatch planned = std::move(supply_.front());
    supply_.pop_front();
    return planned;
  }
  if (options_.arena.order == IndexOrder::kStream) {
    PlannedBatch planned;
    planned.epoch = epoch_;
    planned.stream = NextStream();
    planned.rows = options_.batch_size;
    planned.batch = streams_[planned.stream].next++;
    ++streams_[planned.stream].open;
    next_stream_ = static_cast<uint32_t>((planned.stream + 1) % streams_.size());
    if (options_.streams == 0) {
      batch_ = streams_[0].next;
      PassSkipped();
      streams_[0].next = batch_;
    }
    return planned;
  }
  if (batch_ >= batches_per_epoch_) {
    ++epoch_;
    batch_ = 0;
  }
  const uint64_t first = batch_ * options_.batch_size;
  PlannedBatch planned;
  planned.epoch = epoch_;
  planned.batch = batch_++;
  planned.rows = std::min(options_.batch_size, ShardLength(options_) - first);
  planned.first_position = first * options_.world + options_.rank;
  PassSkipped();
  return planned;
}

bool BatchPlan::Exhausted(uint64_t epoch) const {
  if (options_.arena.order == IndexOrder::kExplicit) {
    return supply_.empty();
  }
  if (options_.arena.order == IndexOrder::kStream) {
    return !HasNext(epoch);
  }
  return epoch_ > epoch || batch_ >= batches_per_epoch_;
}

}  // namespace headrace::shared_memory
