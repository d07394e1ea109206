#include "reader/shared_memory/batches/open_batches.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "framework/errors.h"
#include "reader/shared_memory/waiting/futex.h"

namespace headrace::shared_memory {
namespace {

// How batches are made.
ClaimKind ClaimKindOf(const SchedulerOptions& options) {
  if (options.arena.order == IndexOrder::kStream) {
    return ClaimKind::kStream;
  }
  switch (options.collation) {
    case Collation::kNone:
      return ClaimKind::kRows;
    case Collation::kWhole:
      return ClaimKind::kWhole;
    case Collation::kSplit:
      return ClaimKind::kItems;
  }
  Throw<InvalidArgument>("unknown way to collate ", static_cast<uint32_t>(options.collation));
}

}  // namespace

OpenBatches::OpenBatches(const SchedulerOptions& options, BatchPlan plan, Arena& arena, ProducerTable& producers,
                         TraceRing& trace)
    : options_(options),
      arena_(arena),
      control_(arena.control()),
      constants_(control_.constants),
      producers_(producers),
      trace_(trace),
      plan_(std::move(plan)),
      slots_(arena),
      reader_(arena),
      cost_(options),
      depth_(options) {
  constants_.stride = options.world;
  constants_.in_order = options.in_order ? 1 : 0;
  constants_.collators = options.collators;
  constants_.checksum = ChecksumOf(constants_, 0);
  control_.constants = constants_;
  control_.oldest.store(next_sequence_, std::memory_order_relaxed);
  control_.next.store(next_sequence_, std::memory_order_relaxed);
}

void OpenBatches::StartEpoch(const EpochStart& start) {
  const uint64_t epoch = start.epoch;
  const bool planned_ahead =
      options_.arena.order == IndexOrder::kSequential || options_.arena.order == IndexOrder::kShuffled;
  bool continues =
      started_ && planned_ahead && start.skip.empty() && !plan_.Skips(epoch) && start.revision == revision_;
  if (continues && !options_.in_order && epoch == epoch_) {
    continues = false;  // batches after the first may have been taken as well
  } else if (continues) {
    continues = batches_.empty()
                    ? plan_.IsAt(epoch, start.first_batch)
                    : batches_.front().facts.epoch == epoch && batches_.front().facts.batch == start.first_batch;
  }
  if (!continues) {
    plan_.Start(start);
    WithdrawAll();
  }
  if (options_.arena.order == IndexOrder::kStream) {
    stream_ends_.assign(std::max(options_.streams, 1U), {});
  }
  revision_ = start.revision;
  started_ = true;
  epoch_ = epoch;
  Open();
}

void OpenBatches::Supply(uint64_t rows, std::string_view indices, bool pickled) {
  HR_ENFORCE(started_ && !plan_.supply_ended(), FailedPrecondition,
             "batches can be supplied between StartEpoch and EndSupply only");
  plan_.Supply(rows, indices, pickled);
  Open();
}

uint32_t OpenBatches::WantedSupply() const {
  const auto have = static_cast<uint32_t>(batches_.size() + plan_.supplied());
  return plan_.supply_ended() || have >= options_.prefetch ? 0 : options_.prefetch - have;
}

const std::string& OpenBatches::StreamEndAttachment(uint32_t stream) const {
  HR_ENFORCE(stream < stream_ends_.size(), OutOfRange, "stream ", stream, " is not one of ", stream_ends_.size());
  return stream_ends_[stream];
}

void OpenBatches::Stop() {
  stopped_ = true;
  WithdrawAll();
  control_.stop.store(1);
  control_.work_signal.fetch_add(1);
  FutexWake(control_.work_signal);
}

void OpenBatches::SetProducers(uint32_t producers, int64_t spin_ns) {
  cost_.SetProducers(producers);
  producers_.GrowTo(producers);
  spin_ns_ = spin_ns;
  control_.spin_ns.store(spin_ns, std::memory_order_relaxed);
}

void OpenBatches::Open() {
  if (!started_ || stopped_) {
    return;
  }
  uint32_t opened_chunks = 0;
  uint32_t producers = 0;
  // The ring has no room for batches further apart. Only a batch that many others have overtaken falls so far behind.
  while (batches_.size() < depth_.value() && plan_.HasNext(epoch_) &&
         (batches_.empty() || next_sequence_ - batches_.front().facts.sequence < kMaxSlots)) {
    const std::optional<uint32_t> slot = slots_.Acquire();
    if (!slot) {
      break;
    }
    OpenIn(*slot, plan_.Next());
    const BatchFacts& facts = batches_.back().facts;
    opened_chunks += facts.chunks;
    producers |= facts.producer == kAnybody ? kAllSleepers : SleeperBit(facts.producer);
  }
  if (opened_chunks != 0) {
    // If one producer is meant, wake all that share its bit: it may be the last of them.
    WakeProducers(options_.streams == 0 && !options_.round_robin ? opened_chunks : kMaxProducers, producers);
  }
}

void OpenBatches::OpenMore() {
  if (!depth_.adapts() || batches_.empty()) {
    return;
  }
  // Sleeping producers may have been woken for work, and not have come round to it.
  const bool work_left = std::any_of(batches_.begin(), batches_.end(), [this](const OpenBatch& batch) {
    const uint32_t producer = batch.facts.producer;
    return batch.has_slot && arena_.slot(batch.slot).cursor.load(std::memory_order_relaxed) < batch.facts.chunks &&
           (producer == kAnybody || IsAsleep(control_, producer));
  });
  if (work_left) {
    return;
  }
  const uint32_t idle = CountSleepers(control_, producers_.end());
  if (idle != 0 && depth_.Grow(idle, batches_.back().facts.chunks)) {
    Open();
  }
}

void OpenBatches::OpenIn(uint32_t slot, PlannedBatch plan) {
  cost_.Measure(control_.producers, producers_.end(), CoarseNanoseconds());
  OpenBatch& batch = batches_.emplace_back();
  batch.slot = slot;
  BatchFacts& facts = batch.facts;
  facts.sequence = next_sequence_++;
  facts.epoch = plan.epoch;
  facts.batch = plan.batch;
  facts.first_position = plan.first_position;
  facts.indices_bytes = plan.indices.size();
  facts.revision = revision_;
  facts.rows = static_cast<uint32_t>(plan.rows);
  facts.kind = ClaimKindOf(options_);
  facts.chunk_rows = cost_.ChunkRows(facts.kind, plan.rows);
  facts.chunks = (facts.rows + facts.chunk_rows - 1) / facts.chunk_rows + (facts.split() ? 1 : 0);
  facts.stream = plan.stream;
  facts.producer = options_.streams != 0  ? plan.stream
                   : options_.round_robin ? static_cast<uint32_t>(plan.batch % options_.producers)
                                          : kAnybody;
  facts.pickled_indices = plan.pickled ? 1 : 0;
  batch.indices = std::move(plan.indices);
  std::memcpy(arena_.slot_data(slot) + kDataOffset, batch.indices.data(), batch.indices.size());
  Publish(batch);
  control_.ring[facts.sequence % kMaxSlots].store(slot, std::memory_order_relaxed);
  if (batches_.size() == 1) {
    control_.oldest.store(facts.sequence);
  }
  if (trace_) {
    trace_.Write(BatchEvent(TraceKind::kOpened, slot, facts, MonotonicNanoseconds()));
  }
  control_.next.store(next_sequence_, std::memory_order_release);
}

void OpenBatches::Publish(const OpenBatch& batch) {
  const BatchFacts& facts = batch.facts;
  SlotHeader& header = arena_.slot(batch.slot);
  header.facts = facts;
  std::copy(batch.excluded.begin(), batch.excluded.end(), header.excluded);
  header.claimable.store(ClaimableWord(facts.chunks, facts.kind, facts.producer), std::memory_order_relaxed);
  header.layout_state.store(kLayoutEmpty, std::memory_order_relaxed);
  header.side_bytes.store(facts.split() ? KeptTableBytes(facts.rows) : 0, std::memory_order_relaxed);
  header.cursor.store(0, std::memory_order_relaxed);
  header.done_ns.store(0, std::memory_order_relaxed);
  // No word of the slot's last batch can be taken for one of this batch, so the order of these stores does not matter.
  for (uint32_t chunk = 0; chunk < facts.chunks; ++chunk) {
    header.deaths[chunk].store(0, std::memory_order_relaxed);
    header.chunk_words[chunk].store(ChunkWord(facts.sequence, kChunkUnclaimed), std::memory_order_release);
  }
  header.sequence.store(facts.sequence, std::memory_order_release);
}

void OpenBatches::WakeProducers(uint32_t producers, uint32_t sleepers) {
  control_.work_signal.fetch_add(1);
  if (AnySleeper(control_, producers_.end())) {
    FutexWake(control_.work_signal, static_cast<int>(producers), sleepers);
  }
}

void OpenBatches::HaveAllLookAgain() {
  control_.rescan.fetch_add(1, std::memory_order_release);
  WakeProducers(kMaxProducers, kAllSleepers);
}

void OpenBatches::Reopen(OpenBatch& batch) {
  // A collation that was not needed must not be claimed by a producer that still sees the old kind.
  CloseClaims(batch);
  BatchFacts& facts = batch.facts;
  facts.kind = ClaimKind::kWhole;
  facts.chunk_rows = facts.rows;
  facts.chunks = 1;
  facts.excluded = static_cast<uint32_t>(batch.excluded.size());
  batch.remake = false;
  batch.done_chunks = 0;
  batch.any_failed = false;
  batch.collated = false;
  Publish(batch);
  HaveAllLookAgain();
}

void OpenBatches::CloseClaims(const OpenBatch& batch) {
  SlotHeader& header = arena_.slot(batch.slot);
  // Backwards, because a collation becomes claimable when all chunks before it are done.
  for (uint32_t chunk = batch.facts.chunks; chunk-- > 0;) {
    uint64_t expected = ChunkWord(batch.facts.sequence, kChunkUnclaimed);
    header.chunk_words[chunk].compare_exchange_strong(expected, ChunkWord(batch.facts.sequence, kChunkWithdrawn));
  }
}

void OpenBatches::Withdraw(OpenBatch& batch, bool written_over) {
  if (batch.has_slot) {
    CloseClaims(batch);
    slots_.Drain({batch.slot, batch.facts, written_over});
    batch.has_slot = false;
  }
}

void OpenBatches::WithdrawAll() {
  for (OpenBatch& batch : batches_) {
    Withdraw(batch);
  }
  batches_.clear();
  PublishOldest();
  slots_.FreeDrained();
}

void OpenBatches::PublishOldest() {
  // Sequentially consistent with MarkDone, like everything that Wait does afterwards.
  control_.oldest.store(batches_.empty() ? next_sequence_ : batches_.front().facts.sequence);
}

bool OpenBatches::IsReady(OpenBatch& batch) {
  if (!batch.has_slot || batch.concluded) {
    return true;
  }
  const SlotHeader& header = arena_.slot(batch.slot);
  if (batch.remake) {
    if (batch.IsLetGo(header)) {
      Reopen(batch);
    }
    return false;
  }
  switch (batch.Look(header)) {
    case OpenBatch::State::kMaking:
      return false;
    case OpenBatch::State::kInvalid:
      FailCorrupt(batch, "the word of a chunk is none that a producer writes", std::nullopt);
      return true;
    case OpenBatch::State::kDone:
      break;
  }
  try {
    reader_.CheckFacts(batch);
    if (batch.any_failed) {
      batch.problem = reader_.ReadProblem(batch);
      if (batch.problem.kind == ProblemKind::kMismatch) {
        // Which of two layouts came first depends on the producers' speed, and so do the rows that were tried and may
        // have failed. If one producer makes the batch again, row by row, it depends on nothing but its samples.
        batch.problem = {};
        Reopen(batch);
        return false;
      }
    }
    if (batch.made_alone()) {
      batch.end = reader_.ReadEnd(batch);
    }
    batch.concluded = true;
  } catch (const DataLoss& error) {
    std::optional<uint32_t> author;
    const uint64_t word = header.chunk_words[batch.facts.LastChunk()].load(std::memory_order_relaxed);
    if (batch.made_alone() && Claimant(word) != 0) {
      author = static_cast<uint32_t>(Claimant(word) - 1);
    }
    FailCorrupt(batch, error.message(), author);
  }
  return true;
}

void OpenBatches::SettleStreams() {
  for (bool ended = true; ended;) {
    ended = false;
    for (OpenBatch& batch : batches_) {
      if (batch.settled || !IsReady(batch)) {
        continue;
      }
      batch.settled = true;
      // No producer can get past an abandoned batch.
      const StreamEnd end = batch.problem.kind == ProblemKind::kKilled ? StreamEnd::kAfter : batch.end.stream_end;
      if (end != StreamEnd::kGoesOn) {
        const uint32_t stream = batch.facts.stream;
        const bool is_news = plan_.EndStream(stream, batch.facts.batch + (end == StreamEnd::kAfter ? 1 : 0));
        if (is_news && batch.problem.kind != ProblemKind::kKilled) {
          stream_ends_[stream] = reader_.Text(batch.slot, batch.end.attachment);
        }
        ended = true;
      }
    }
    if (ended) {
      for (auto batch = batches_.begin(); batch != batches_.end();) {
        if (plan_.IsWithin(batch->facts.stream, batch->facts.batch)) {
          ++batch;
        } else {
          plan_.Closed(batch->facts.stream);
          Withdraw(*batch);
          batch = batches_.erase(batch);
        }
      }
      slots_.FreeDrained();
      // Another batch may be the oldest now. The producer that completed it just before has not woken the consumer, so
      // look again.
      PublishOldest();
      Open();
    }
  }
}

std::deque<OpenBatch>::iterator OpenBatches::FindReady() {
  const bool streams = options_.arena.order == IndexOrder::kStream;
  if (streams) {
    SettleStreams();
  }
  for (auto batch = batches_.begin(); batch != batches_.end(); ++batch) {
    if (batch->facts.epoch != epoch_) {
      break;
    }
    // A batch of a stream that was completed only now may turn out not to be delivered at all.
    if (streams ? batch->settled : IsReady(*batch)) {
      return batch;
    }
    if (options_.in_order) {
      break;
    }
  }
  return batches_.end();
}

std::deque<OpenBatch>::iterator OpenBatches::FindUndone(uint64_t sequence, uint32_t row) {
  const auto batch = std::find_if(batches_.begin(), batches_.end(),
                                  [&](const OpenBatch& each) { return each.facts.sequence == sequence; });
  if (batch == batches_.end() || !batch->has_slot || batch->concluded || row >= batch->facts.rows) {
    return batches_.end();
  }
  if (batch->remake) {
    return batch;
  }
  // While a batch is being collated, none of its rows counts as done.
  const SlotHeader& header = arena_.slot(batch->slot);
  const bool done = batch->facts.split() ? OpenBatch(*batch).Look(header) == OpenBatch::State::kDone
                                         : IsDone(header.chunk_words[row / batch->facts.chunk_rows].load(), sequence);
  return done ? batches_.end() : batch;
}

bool OpenBatches::Abandon(uint64_t sequence, uint32_t row) {
  const auto batch = FindUndone(sequence, row);
  if (batch == batches_.end()) {
    return false;
  }
  Withdraw(*batch);
  batch->problem = {ProblemKind::kKilled, row, {}};
  return true;
}

bool OpenBatches::Skip(uint64_t sequence, uint32_t row) {
  const auto batch = FindUndone(sequence, row);
  if (batch == batches_.end() || options_.arena.order == IndexOrder::kStream) {
    return false;
  }
  const auto place = std::lower_bound(batch->excluded.begin(), batch->excluded.end(), row);
  if (place != batch->excluded.end() && *place == row) {
    return true;
  }
  if (batch->excluded.size() == kMaxExcluded) {
    return false;
  }
  batch->excluded.insert(place, row);
  if (batch->excluded.size() == batch->facts.rows) {
    Withdraw(*batch);
    batches_.erase(batch);
    slots_.FreeDrained();
    PublishOldest();
    Open();
    return true;
  }
  CloseClaims(*batch);
  batch->remake = true;
  IsReady(*batch);  // reopens it now if nobody else is at work on it
  return true;
}

void OpenBatches::FailCorrupt(OpenBatch& batch, std::string_view what, std::optional<uint32_t> author) {
  const SlotHeader& header = arena_.slot(batch.slot);
  const uint64_t sequence = batch.facts.sequence;
  for (uint32_t chunk = 0; chunk < batch.facts.chunks; ++chunk) {
    const uint64_t word = header.chunk_words[chunk].load();
    if (IsClaimed(word, sequence) && IsValid(word, sequence)) {
      producers_.KillCorrupt(static_cast<uint32_t>(Claimant(word) - 1));
    }
  }
  if (author) {
    producers_.KillCorrupt(*author);
  }
  batch.problem = {
      ProblemKind::kCorrupt, 0,
      StrCat("the shared memory of batch ", batch.facts.batch, " of epoch ", batch.facts.epoch, " is corrupt: ", what)};
  Withdraw(batch, /*written_over=*/true);
}

uint32_t OpenBatches::CountReady() const {
  return static_cast<uint32_t>(std::count_if(batches_.begin(), batches_.end(), [this](const OpenBatch& batch) {
    return !batch.has_slot || batch.concluded || (!batch.remake && batch.IsDoneNow(arena_.slot(batch.slot)));
  }));
}

void OpenBatches::RestoreControlBlock() {
  for (const OpenBatch& batch : batches_) {
    control_.ring[batch.facts.sequence % kMaxSlots].store(batch.slot, std::memory_order_relaxed);
  }
  if (std::memcmp(&control_.constants, &constants_, sizeof(constants_)) != 0) {
    std::memcpy(&control_.constants, &constants_, sizeof(constants_));
  }
  control_.spin_ns.store(spin_ns_, std::memory_order_relaxed);
  control_.stop.store(stopped_ ? 1 : 0);
  control_.next.store(next_sequence_);
  PublishOldest();
}

OpenBatches::Next OpenBatches::LookAtNext() {
  if (const auto ready = FindReady(); ready != batches_.end()) {  // it may open batches, which moves the end
    return Next::kReady;
  }
  if (batches_.empty()) {
    Open();  // a draining slot may have become free
  }
  // Batches of the next epoch open after all of this one.
  if (batches_.empty() ? !plan_.Exhausted(epoch_) : batches_.front().facts.epoch == epoch_) {
    return Next::kBeingMade;
  }
  return options_.arena.order == IndexOrder::kExplicit && !plan_.supply_ended() ? Next::kNeedsIndices
                                                                                : Next::kEndOfEpoch;
}

std::optional<OpenBatch> OpenBatches::TakeReady() {
  const auto found = FindReady();
  if (found == batches_.end()) {
    return std::nullopt;
  }
  OpenBatch batch = std::move(*found);
  if (found == batches_.begin()) {
    batches_.pop_front();
  } else {
    batches_.erase(found);
  }
  if (options_.arena.order == IndexOrder::kStream) {
    plan_.Closed(batch.facts.stream);
  }
  return batch;
}

void OpenBatches::Advance() {
  PublishOldest();
  Open();
}

}  // namespace headrace::shared_memory
