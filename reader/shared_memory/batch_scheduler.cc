#include "reader/shared_memory/batch_scheduler.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "framework/errors.h"
#include "reader/shared_memory/batch_producer.h"
#include "reader/shared_memory/futex.h"
#include "reader/shared_memory/process_id.h"

namespace headrace::shared_memory {
namespace {

// A claim should be worth its price (a few hundred nanoseconds, in Python some microseconds) and short enough that the
// workers end a batch together.
constexpr double kLeastClaimNs = 50'000;
constexpr double kClaimNs = 300'000;
// How often Wait looks whether a device has ended its work, where there is no slot to go on with.
constexpr int64_t kLookAtDeviceNs = 200'000;
// How often Wait looks for deaths while batches are ready.
constexpr uint64_t kLookEveryNs = 20'000'000;
// Kept samples are pickled and copied once more.
constexpr double kWorthKeepingNs = 50'000;
// So long a batch may take one producer while the others make the next ones.
constexpr double kLongBatchNs = 20'000'000;
// The samples from which a batch was collated stay in its slot, for their pages to be used again; but not in those of
// a consumer that keeps more batches than this.
constexpr uint32_t kHeldWithSamples = 2;

// A clock that is cheap to read; it moves every few milliseconds.
uint64_t CoarseNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000ULL + static_cast<uint64_t>(now.tv_nsec);
}

// Of a batch that is complete. Its collation, if it was not needed, must not be claimed by anybody who still takes the
// slot for that batch when it is another's.
void WithdrawLast(SlotHeader& header, uint64_t sequence) {
  if (header.kind.load(std::memory_order_relaxed) != static_cast<uint32_t>(ClaimKind::kItems)) {
    return;
  }
  uint64_t unclaimed = ClaimWord(sequence, kUnclaimed);
  header.claims[header.chunks.load(std::memory_order_relaxed) - 1].compare_exchange_strong(
      unclaimed, ClaimWord(sequence, kWithdrawn));
}

}  // namespace

std::shared_ptr<BatchScheduler> BatchScheduler::Create(const SchedulerOptions& options) {
  return std::shared_ptr<BatchScheduler>(new BatchScheduler(options, BatchPlan(options)));
}

BatchScheduler::BatchScheduler(const SchedulerOptions& options, BatchPlan plan)
    : options_(options),
      arena_(Arena::Create(options.arena)),
      owner_(ProcessId()),
      batches_per_epoch_(plan.batches_per_epoch()),
      begin_ns_(MonotonicNanoseconds()),
      pinned_(options.pin_memory ? std::make_unique<PinnedMemory>() : nullptr),
      fence_(options.pin_memory && options.fence_device ? std::make_unique<DeviceFence>() : nullptr),
      plan_(std::move(plan)),
      slots_(*arena_),
      retired_(kMaxProducers) {
  trace_ = arena_->trace(kMaxProducers);
  completion_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  HR_ENFORCE(completion_fd_ >= 0, IoError, "eventfd failed: ", std::strerror(errno));
  ControlBlock& control = arena_->control();
  control.stride = options.world;
  control.in_order = options.in_order ? 1 : 0;
  control.collators = options.collators;
  control.oldest.store(next_sequence_, std::memory_order_relaxed);
  control.next.store(next_sequence_, std::memory_order_relaxed);
  SetProducers(options.producers);
}

BatchScheduler::~BatchScheduler() {
  if (InOwner()) {
    Shutdown();
  }
  close(completion_fd_);
}

bool BatchScheduler::InOwner() const { return ProcessId() == owner_; }

void BatchScheduler::StartEpoch(const EpochStart& start) {
  std::unique_lock lock(mutex_);
  const uint64_t epoch = start.epoch;
  const bool planned_ahead =
      options_.arena.order == IndexOrder::kSequential || options_.arena.order == IndexOrder::kShuffled;
  bool continues = started_ && planned_ahead && start.skip.empty() && !plan_.Skips(epoch);
  if (continues && !options_.in_order && epoch == consumer_epoch_) {
    continues = false;  // further batches than those before the first may have been taken
  } else if (continues) {
    continues = in_flight_.empty() ? plan_.IsAt(epoch, start.first_batch)
                                   : in_flight_.front().epoch == epoch && in_flight_.front().batch == start.first_batch;
  }
  if (!continues) {
    plan_.Start(start);
    WithdrawAll();
  }
  started_ = true;
  consumer_epoch_ = epoch;
  consumer_batch_ = start.first_batch;
  OpenBatches();
  WakeConsumer();

  const std::vector<uint32_t> idle = slots_.TakeIdle();
  lock.unlock();
  for (const uint32_t slot : idle) {
    if (pinned_ != nullptr) {
      pinned_->Unpin(PinnedBegin(slot));  // it keeps the pages, which would not be the slot's any more
    }
    arena_->Release(slot, 0);
  }
  lock.lock();
  slots_.AddCold(idle);
}

void BatchScheduler::Supply(uint64_t rows, std::string_view indices, bool pickled) {
  HR_ENFORCE(indices.size() < arena_->slot_bytes() - kDataOffset, ResourceExhausted, "the indices of a batch need ",
             indices.size(), " bytes, a slot has ", arena_->slot_bytes() - kDataOffset);
  const std::lock_guard lock(mutex_);
  HR_ENFORCE(started_ && !plan_.supply_ended(), FailedPrecondition,
             "batches can be supplied between StartEpoch and EndSupply only");
  plan_.Supply(rows, indices, pickled);
  OpenBatches();
}

void BatchScheduler::EndSupply() {
  const std::lock_guard lock(mutex_);
  plan_.EndSupply();
}

uint32_t BatchScheduler::WantedSupply() const {
  const std::lock_guard lock(mutex_);
  const auto have = static_cast<uint32_t>(in_flight_.size() + plan_.supplied());
  return plan_.supply_ended() || have >= options_.prefetch ? 0 : options_.prefetch - have;
}

void BatchScheduler::OpenBatches() {
  if (!started_ || stopped_) {
    return;
  }
  uint32_t opened_chunks = 0;
  uint32_t makers = 0;
  // The ring has no room for batches further apart; only a batch that others have overtaken for long gets so far
  // behind.
  while (in_flight_.size() < options_.prefetch && plan_.HasNext(consumer_epoch_) &&
         (in_flight_.empty() || next_sequence_ - in_flight_.front().sequence < kMaxSlots)) {
    const std::optional<uint32_t> slot = slots_.Acquire();
    if (!slot) {
      break;
    }
    Open(*slot, plan_.Next());
    const SlotHeader& header = arena_->slot(*slot);
    opened_chunks += header.chunks.load(std::memory_order_relaxed);
    makers |= options_.streams == 0 ? kAllSleepers : SleeperBit(header.stream);
  }
  if (opened_chunks != 0) {
    // Of several that share a bit it may be the last one that is meant.
    SignalWork(options_.streams == 0 ? opened_chunks : kMaxProducers, makers);
  }
}

void BatchScheduler::MeasureSamples() {
  const ControlBlock& control = arena_->control();
  uint64_t work_ns = 0;
  uint64_t collate_ns = 0;  // noted before the claim's end, and work_ns at it: for a while this may be more
  uint64_t samples = 0;
  for (uint32_t i = 0; i < producers_end_; ++i) {
    work_ns += control.producers[i].work_ns.load(std::memory_order_relaxed);
    collate_ns += control.producers[i].collate_ns.load(std::memory_order_relaxed);
    samples += control.producers[i].samples.load(std::memory_order_relaxed);
  }
  work_ns -= std::min(work_ns, collate_ns);
  if (samples > sampled_count_ && work_ns > sampled_ns_) {
    const double recent = static_cast<double>(work_ns - sampled_ns_) / static_cast<double>(samples - sampled_count_);
    sample_ns_ = sample_ns_ == 0 ? recent : 0.75 * sample_ns_ + 0.25 * recent;
    sampled_ns_ = work_ns;
    sampled_count_ = samples;
  }
}

ClaimKind BatchScheduler::PlannedKind(uint64_t rows) const {
  if (options_.arena.order == IndexOrder::kStream) {
    return ClaimKind::kStream;
  }
  switch (options_.collation) {
    case Collation::kNone:
      return ClaimKind::kRows;
    case Collation::kWhole:
      return ClaimKind::kWhole;
    case Collation::kSplit:
      return ClaimKind::kItems;
    case Collation::kAdaptive:
      break;
  }
  const bool first = sample_ns_ == 0;  // early, by all together
  const bool few_collators = options_.collators < producers_;
  const bool worth_it = sample_ns_ >= kWorthKeepingNs &&
                        (producers_ > options_.prefetch || sample_ns_ * static_cast<double>(rows) >= kLongBatchNs);
  return first || few_collators || worth_it ? ClaimKind::kItems : ClaimKind::kWhole;
}

uint32_t BatchScheduler::ChunkRows(ClaimKind kind, uint64_t rows) const {
  if (MakesBatch(kind)) {
    return static_cast<uint32_t>(rows);
  }
  // Two claims for each producer in what is open.
  const double share_ns = sample_ns_ * static_cast<double>(rows) * options_.prefetch / (2.0 * std::max(producers_, 1U));
  const double claim_ns = std::clamp(share_ns, kLeastClaimNs, kClaimNs);
  // Before the first sample is made: one at a time, so that all producers work on the first batch.
  uint64_t chunk = sample_ns_ == 0 ? 1 : static_cast<uint64_t>(std::min(claim_ns / sample_ns_, 2e9));
  const uint64_t max_chunks = kind == ClaimKind::kItems ? kMaxChunks - 1 : kMaxChunks;
  chunk = std::max(chunk, (rows + max_chunks - 1) / max_chunks);
  return static_cast<uint32_t>(std::clamp<uint64_t>(chunk, 1, rows));
}

void BatchScheduler::SetClaims(SlotHeader& header, uint64_t sequence, ClaimKind kind) {
  const bool split = kind == ClaimKind::kItems;
  const uint32_t chunks = (header.rows + header.chunk_rows - 1) / header.chunk_rows + (split ? 1 : 0);
  header.kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  header.layout_state.store(kLayoutEmpty, std::memory_order_relaxed);
  header.side_bytes.store(split ? KeptTableBytes(header.rows) : 0, std::memory_order_relaxed);
  header.items_failed.store(0, std::memory_order_relaxed);
  header.cursor.store(0, std::memory_order_relaxed);
  for (std::atomic<uint64_t>& word : header.done) {
    word.store(0, std::memory_order_relaxed);
  }
  header.chunks.store(chunks, std::memory_order_relaxed);
  header.made_rows = header.rows;
  header.stream_end = static_cast<uint32_t>(StreamEnd::kGoesOn);
  header.attachment = {0, 0};
  header.kept_bytes = 0;
  header.done_ns.store(0, std::memory_order_relaxed);
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    header.problems[chunk].kind = kNoProblem;
    header.deaths[chunk].store(0, std::memory_order_relaxed);
    header.claims[chunk].store(ClaimWord(sequence, kUnclaimed), std::memory_order_release);
  }
}

void BatchScheduler::Open(uint32_t slot, const PlannedBatch& plan) {
  SlotHeader& header = arena_->slot(slot);
  const uint64_t sequence = next_sequence_++;
  header.rows = static_cast<uint32_t>(plan.rows);
  MeasureSamples();
  const ClaimKind kind = PlannedKind(plan.rows);
  header.chunk_rows = ChunkRows(kind, plan.rows);
  header.maker.store(options_.streams == 0 ? kAnybody : plan.stream, std::memory_order_relaxed);
  header.stream = plan.stream;
  header.epoch = plan.epoch;
  header.batch = plan.batch;
  header.first_position = plan.first_position;
  header.indices_bytes = plan.indices.size();
  header.pickled_indices = plan.pickled ? 1 : 0;
  header.excluded_count = 0;
  std::memcpy(arena_->slot_data(slot) + kDataOffset, plan.indices.data(), plan.indices.size());
  SetClaims(header, sequence, kind);
  header.sequence.store(sequence, std::memory_order_release);
  in_flight_.push_back({sequence, plan.epoch, plan.batch, plan.stream, slot, header.rows});
  ControlBlock& control = arena_->control();
  control.ring[sequence % kMaxSlots].store(slot, std::memory_order_relaxed);
  if (in_flight_.size() == 1) {
    control.oldest.store(sequence);
  }
  if (trace_) {
    Note(TraceKind::kOpened, slot, MonotonicNanoseconds());
  }
  control.next.store(next_sequence_, std::memory_order_release);
}

void BatchScheduler::Note(TraceKind kind, uint32_t slot, uint64_t ns) {
  const SlotHeader& header = arena_->slot(slot);
  trace_.Write({kind, TraceEvent::kScheduler, ns, ns, header.epoch, header.batch, header.stream, slot, 0, header.rows});
}

void BatchScheduler::SignalWork(uint32_t producers, uint32_t sleepers) {
  ControlBlock& control = arena_->control();
  control.work_signal.fetch_add(1);
  if (control.work_sleepers.load() != 0) {
    FutexWake(control.work_signal, static_cast<int>(producers), sleepers);
  }
}

void BatchScheduler::SignalRescan() {
  arena_->control().rescan.fetch_add(1, std::memory_order_release);
  SignalWork(kMaxProducers, kAllSleepers);
}

void BatchScheduler::Reopen(Flight& flight) {
  SlotHeader& header = arena_->slot(flight.slot);
  WithdrawLast(header, flight.sequence);
  flight.remake = false;
  header.chunk_rows = header.rows;
  header.excluded_count = static_cast<uint32_t>(flight.excluded.size());
  std::copy(flight.excluded.begin(), flight.excluded.end(), header.excluded);
  SetClaims(header, flight.sequence, ClaimKind::kWhole);
  SignalRescan();
}

void BatchScheduler::ReopenIfDrained(Flight& flight) {
  if (flight.remake && AllDone(arena_->slot(flight.slot))) {
    Reopen(flight);
  }
}

void BatchScheduler::CloseClaims(const Flight& flight) {
  SlotHeader& header = arena_->slot(flight.slot);
  // From the last on: a collation becomes claimable when all before it is done.
  for (uint32_t chunk = header.chunks.load(std::memory_order_relaxed); chunk-- > 0;) {
    uint64_t expected = ClaimWord(flight.sequence, kUnclaimed);
    if (header.claims[chunk].compare_exchange_strong(expected, ClaimWord(flight.sequence, kWithdrawn))) {
      header.done[chunk / 64].fetch_or(uint64_t{1} << (chunk % 64));
    }
  }
}

void BatchScheduler::Withdraw(const Flight& flight) {
  if (!flight.abandoned) {
    CloseClaims(flight);
    slots_.Drain(flight.slot);
  }
}

std::deque<BatchScheduler::Flight>::iterator BatchScheduler::FindUndone(uint64_t sequence, uint32_t row) {
  const auto flight =
      std::find_if(in_flight_.begin(), in_flight_.end(), [&](const Flight& each) { return each.sequence == sequence; });
  if (flight == in_flight_.end() || flight->abandoned || row >= flight->rows) {
    return in_flight_.end();
  }
  const SlotHeader& header = arena_->slot(flight->slot);
  const auto kind = static_cast<ClaimKind>(header.kind.load(std::memory_order_relaxed));
  // A collation is not done before the batch is, whichever row it is asked by.
  const uint32_t chunk = row / header.chunk_rows;
  const bool done =
      kind == ClaimKind::kItems ? AllDone(header) : (header.done[chunk / 64].load() & (uint64_t{1} << chunk % 64)) != 0;
  return done && !flight->remake ? in_flight_.end() : flight;
}

bool BatchScheduler::Abandon(uint64_t sequence, uint32_t row) {
  const std::lock_guard lock(mutex_);
  const auto flight = FindUndone(sequence, row);
  if (flight == in_flight_.end()) {
    return false;
  }
  Withdraw(*flight);
  flight->abandoned = true;
  flight->killed_row = row;
  WakeConsumer();
  return true;
}

bool BatchScheduler::Skip(uint64_t sequence, uint32_t row) {
  const std::lock_guard lock(mutex_);
  const auto flight = FindUndone(sequence, row);
  if (flight == in_flight_.end() || options_.arena.order == IndexOrder::kStream) {
    return false;
  }
  const auto place = std::lower_bound(flight->excluded.begin(), flight->excluded.end(), row);
  if (place != flight->excluded.end() && *place == row) {
    return true;
  }
  if (flight->excluded.size() == kMaxExcluded) {
    return false;
  }
  flight->excluded.insert(place, row);
  if (flight->excluded.size() == flight->rows) {
    Withdraw(*flight);
    in_flight_.erase(flight);
    slots_.FreeDrained();
    PublishOldest();
    OpenBatches();
    WakeConsumer();
    return true;
  }
  CloseClaims(*flight);
  flight->remake = true;
  ReopenIfDrained(*flight);
  return true;
}

void BatchScheduler::WithdrawAll() {
  for (const Flight& flight : in_flight_) {
    Withdraw(flight);
  }
  in_flight_.clear();
  PublishOldest();
  slots_.FreeDrained();
}

void BatchScheduler::PublishOldest() {
  // Sequentially consistent with MarkDone, as is all that Wait does afterwards.
  arena_->control().oldest.store(in_flight_.empty() ? next_sequence_ : in_flight_.front().sequence);
}

void BatchScheduler::SettleStreams() {
  for (bool ended = true; ended;) {
    ended = false;
    for (Flight& flight : in_flight_) {
      if (flight.settled || !IsComplete(flight)) {
        continue;
      }
      flight.settled = true;
      const auto end =
          flight.abandoned ? StreamEnd::kAfter : static_cast<StreamEnd>(arena_->slot(flight.slot).stream_end);
      if (end != StreamEnd::kGoesOn) {
        plan_.EndStream(flight.stream, flight.batch + (end == StreamEnd::kAfter ? 1 : 0));
        ended = true;
      }
    }
    if (ended) {
      std::erase_if(in_flight_, [this](const Flight& flight) {
        const bool beyond = !plan_.IsWithin(flight.stream, flight.batch);
        if (beyond) {
          Withdraw(flight);
        }
        return beyond;
      });
      slots_.FreeDrained();
      // Another batch may be the oldest now: whoever completed it just before has not woken the consumer, so look anew.
      PublishOldest();
      OpenBatches();
    }
  }
}

bool BatchScheduler::IsComplete(const Flight& flight) const {
  return flight.abandoned || (!flight.remake && AllDone(arena_->slot(flight.slot)));
}

bool BatchScheduler::ReopenIfMismatched(Flight& flight) {
  if (flight.abandoned) {
    return false;
  }
  const SlotHeader& header = arena_->slot(flight.slot);
  const uint32_t chunks = header.chunks.load(std::memory_order_relaxed);
  bool mismatch = false;
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    mismatch = mismatch || header.problems[chunk].kind == kMismatch;
  }
  if (!mismatch || MakesBatch(static_cast<ClaimKind>(header.kind.load(std::memory_order_relaxed)))) {
    return false;
  }
  // Which of two layouts came first depends on the producers' speed, and so does which rows were tried and may have
  // failed besides. Made anew by one of them, row by row, the batch depends on nothing but its samples.
  Reopen(flight);
  return true;
}

std::deque<BatchScheduler::Flight>::iterator BatchScheduler::FindReady() {
  if (options_.arena.order == IndexOrder::kStream) {
    SettleStreams();
  }
  for (auto flight = in_flight_.begin(); flight != in_flight_.end(); ++flight) {
    if (flight->epoch != consumer_epoch_) {
      break;
    }
    ReopenIfDrained(*flight);
    const bool done = options_.arena.order == IndexOrder::kStream ? flight->settled : IsComplete(*flight);
    if (done && !ReopenIfMismatched(*flight)) {
      return flight;
    }
    if (options_.in_order) {
      break;
    }
  }
  return in_flight_.end();
}

bool BatchScheduler::Decided(WaitOutcome* outcome) {
  if (stopped_) {
    *outcome = WaitOutcome::kStopped;
    return true;
  }
  HR_ENFORCE(started_, FailedPrecondition, "no epoch was started");
  if (const auto ready = FindReady(); ready != in_flight_.end()) {
    *outcome = WaitOutcome::kBatch;
    return true;
  }
  if (in_flight_.empty()) {
    OpenBatches();  // a draining slot may have become free
  }
  // Batches of the next epoch are opened after all of this one.
  if (in_flight_.empty() ? !plan_.Exhausted(consumer_epoch_) : in_flight_.front().epoch == consumer_epoch_) {
    return false;
  }
  *outcome = options_.arena.order == IndexOrder::kExplicit && !plan_.supply_ended() ? WaitOutcome::kNeedsIndices
                                                                                    : WaitOutcome::kEndOfEpoch;
  return true;
}

std::optional<WaitOutcome> BatchScheduler::TryWait() {
  const std::lock_guard lock(mutex_);
  // Also while there always is a batch: a worker that died is one too few.
  const uint64_t now = CoarseNanoseconds();
  if (now >= next_look_ns_) {
    NoteDeaths();
    next_look_ns_ = now + kLookEveryNs;
  }
  if (std::exchange(unreported_deaths_, false)) {
    return WaitOutcome::kProducerDied;
  }
  WaitOutcome outcome{};
  return Decided(&outcome) ? std::optional(outcome) : std::nullopt;
}

WaitOutcome BatchScheduler::Wait(int64_t timeout_ns) {
  if (const auto decided = TryWait()) {
    return *decided;
  }
  WaitOutcome outcome{};
  ControlBlock& control = arena_->control();
  const uint64_t begin = MonotonicNanoseconds();
  const int64_t awake_ns = spin_.Start(control.spin_ns.load(std::memory_order_relaxed));
  bool announced = false;
  bool slept = false;
  for (;;) {
    bool nothing_open = false;
    {
      const std::lock_guard lock(mutex_);
      if (Decided(&outcome)) {
        break;
      }
      nothing_open = in_flight_.empty();
      if (!deaths_.empty()) {
        unreported_deaths_ = false;
        outcome = WaitOutcome::kProducerDied;
        break;
      }
      if (std::exchange(interrupted_, false)) {
        outcome = WaitOutcome::kInterrupted;
        break;
      }
    }
    const auto waited = static_cast<int64_t>(MonotonicNanoseconds() - begin);
    if (waited < awake_ns && timeout_ns != 0) {
      SpinPause();
      continue;
    }
    const int64_t left = timeout_ns < 0 ? -1 : std::max<int64_t>(timeout_ns - waited, 0);
    // Deaths are seen by Sleep only, so that even a limit of 0 goes there once.
    if (left == 0 && slept) {
      outcome = WaitOutcome::kTimedOut;
      break;
    }
    if (!announced) {
      // Announce first, look once more, then sleep: whoever completes the batch in between, or changes what Sleep
      // watches, sees the announcement.
      control.consumer_sleeps.exchange(1);
      announced = true;
      continue;
    }
    announced = false;
    slept = true;
    // Nobody wakes the consumer when a device has ended its work on the slots that are wanted.
    const bool starved = nothing_open && FreeEnded(/*urgent=*/true);
    if (!Sleep(starved && (left < 0 || left > kLookAtDeviceNs) ? kLookAtDeviceNs : left)) {
      outcome = WaitOutcome::kInterrupted;
      break;
    }
  }
  control.consumer_sleeps.store(0, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  ++stats_.waits;
  const uint64_t waited = MonotonicNanoseconds() - begin;
  stats_.wait_ns += waited;
  spin_.Finish(static_cast<int64_t>(waited));
  trace_.Write({.kind = TraceKind::kWait, .begin_ns = begin, .end_ns = begin + waited, .epoch = consumer_epoch_});
  return outcome;
}

bool BatchScheduler::Sleep(int64_t timeout_ns) {
  pollfd descriptors[] = {{completion_fd_, POLLIN, 0}, {watch_.fd(), POLLIN, 0}};
  timespec limit{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  if (ppoll(descriptors, 2, timeout_ns < 0 ? nullptr : &limit, nullptr) < 0) {
    HR_ENFORCE(errno == EINTR, IoError, "poll failed: ", std::strerror(errno));
    return false;
  }
  if (descriptors[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t bytes = read(completion_fd_, &count, sizeof(count));
  }
  if (descriptors[1].revents != 0) {
    const std::lock_guard lock(mutex_);
    NoteDeaths();
  }
  return true;
}

void BatchScheduler::Interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  WakeConsumer();
}

void BatchScheduler::WakeConsumer() {
  if (arena_->control().consumer_sleeps.exchange(0) != 0) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(completion_fd_, &one, sizeof(one));
  }
}

ReadyBatch BatchScheduler::Take() {
  FreeEnded(/*urgent=*/false);
  std::unique_lock lock(mutex_);
  const auto found = FindReady();
  HR_ENFORCE(found != in_flight_.end(), FailedPrecondition, "no batch is ready");
  const Flight flight = std::move(*found);
  if (found == in_flight_.begin()) {
    in_flight_.pop_front();
  } else {
    in_flight_.erase(found);
  }
  if (flight.abandoned) {
    ReadyBatch failed;
    failed.epoch = flight.epoch;
    failed.batch = options_.streams == 0 ? flight.batch : consumer_batch_++;
    failed.stream = flight.stream;
    failed.stream_batch = flight.batch;
    failed.problem = kKilled;
    failed.problem_row = flight.killed_row;
    ++stats_.batches;
    PublishOldest();
    OpenBatches();
    return failed;
  }
  SlotHeader& header = arena_->slot(flight.slot);
  WithdrawLast(header, flight.sequence);
  ReadyBatch ready;
  ready.epoch = flight.epoch;
  ready.batch = options_.streams == 0 ? flight.batch : consumer_batch_++;
  ready.rows = header.made_rows;
  ready.stream = flight.stream;
  ready.stream_batch = flight.batch;
  ready.slot = arena_->slot_data(flight.slot);
  const uint32_t chunks = header.chunks.load(std::memory_order_relaxed);
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    // The lowest row is the one that a single producer would have met first.
    const ChunkProblem& problem = header.problems[chunk];
    if (problem.kind != kNoProblem) {
      // A mismatch that is left is one that a single claimant met within the batch: a failure like any other.
      ready.problem = problem.kind == kMismatch ? kFailed : problem.kind;
      ready.problem_row = problem.row;
      ready.problem_message.assign(reinterpret_cast<const char*>(ready.slot + problem.offset), problem.bytes);
      break;
    }
  }
  if (header.attachment.bytes != 0) {
    ready.attachment.assign(reinterpret_cast<const char*>(ready.slot + header.attachment.offset),
                            header.attachment.bytes);
  }
  slots_.Hold(flight.slot);
  if (trace_) {
    const uint64_t now = MonotonicNanoseconds();
    const uint64_t done_ns = header.done_ns.load(std::memory_order_relaxed);
    Note(TraceKind::kReady, flight.slot, done_ns == 0 ? now : done_ns);
    Note(TraceKind::kTaken, flight.slot, now);
  }
  // Those that a device still reads come back by themselves.
  const size_t fenced = fence_ == nullptr ? 0 : fence_->held();
  ready.last_slots =
      slots_.held() - std::min<size_t>(fenced, slots_.held()) + options_.prefetch >= arena_->slot_count();
  ready.memory =
      Allocation::Foreign(arena_->slot_data(flight.slot), arena_->slot_bytes(),
                          [self = shared_from_this(), slot = flight.slot](void*) { self->ReleaseSlot(slot); });
  ++stats_.batches;
  if (ready.problem == kNoProblem) {
    stats_.bytes += ready.layout().end() - kDataOffset - header.indices_bytes +
                    header.side_bytes.load(std::memory_order_relaxed) - header.kept_bytes;
  }
  PublishOldest();
  OpenBatches();
  const bool many_held = slots_.held() > kHeldWithSamples;
  lock.unlock();  // the slot is the consumer's
  const size_t kept_begin = arena_->slot_bytes() - header.kept_bytes;
  size_t pinned_end = 0;
  if (pinned_ != nullptr && ready.problem == kNoProblem && !ready.last_slots) {
    std::byte* begin = PinnedBegin(flight.slot);
    pinned_->Pin(begin, ready.layout().end() - kDataOffset, arena_->slot_bytes() - kDataOffset);
    pinned_end = kDataOffset + pinned_->PinnedBytes(begin);
  }
  if (header.kept_bytes != 0 && many_held && pinned_end <= kept_begin) {
    arena_->Release(flight.slot, kept_begin);
  }
  return ready;
}

void BatchScheduler::ReleaseSlot(uint32_t slot) {
  if (!InOwner()) {
    return;
  }
  const bool fenced = fence_ != nullptr && pinned_->PinnedBytes(PinnedBegin(slot)) != 0;
  if (fenced) {
    fence_->Hold(slot);
  }
  {
    const std::lock_guard lock(mutex_);
    if (trace_) {
      Note(TraceKind::kReleased, slot, MonotonicNanoseconds());
    }
    if (!fenced) {
      slots_.Free(slot);
      OpenBatches();
    }
  }
  FreeEnded(/*urgent=*/false);
}

bool BatchScheduler::FreeEnded(bool urgent) {
  if (fence_ == nullptr || fence_->held() == 0) {
    return false;
  }
  const std::vector<uint32_t> ended = fence_->TakeEnded(urgent);  // without mutex_: the driver may take its time
  if (!ended.empty()) {
    const std::lock_guard lock(mutex_);
    for (const uint32_t slot : ended) {
      slots_.Free(slot);
    }
    OpenBatches();
  }
  return fence_->held() != 0;
}

void BatchScheduler::Shutdown() {
  const std::lock_guard lock(mutex_);
  if (stopped_) {
    return;
  }
  stopped_ = true;
  WithdrawAll();
  ControlBlock& control = arena_->control();
  control.stop.store(1);
  control.work_signal.fetch_add(1);
  FutexWake(control.work_signal);
  WakeConsumer();
}

}  // namespace headrace::shared_memory
