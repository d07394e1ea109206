#include "reader/shared_memory/batch_scheduler.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "framework/errors.h"
#include "framework/spin_pause.h"
#include "reader/shared_memory/futex.h"
#include "reader/shared_memory/process_id.h"

namespace headrace::shared_memory {
namespace {

// How often Wait checks whether a device has finished its work, if there is no slot to continue with.
constexpr int64_t kLookAtDeviceNs = 200'000;
// How often Wait looks whether producers have nothing to do, if it may open more batches.
constexpr int64_t kLookAtProducersNs = 10'000'000;
// How often Wait looks for deaths while batches are ready.
constexpr uint64_t kLookEveryNs = 20'000'000;
// The samples that a batch was collated from stay in its slot so that their pages can be reused, unless the consumer
// keeps more batches than this.
constexpr uint32_t kHeldWithSamples = 2;
// How long to spin, at most, if there are more processors than producers (spin.h).
constexpr int64_t kSpinNs = 50'000;

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

std::shared_ptr<BatchScheduler> BatchScheduler::Create(const SchedulerOptions& options) {
  return std::shared_ptr<BatchScheduler>(new BatchScheduler(options, BatchPlan(options)));
}

BatchScheduler::BatchScheduler(const SchedulerOptions& options, BatchPlan plan)
    : options_(options),
      arena_(Arena::Create(options.arena)),
      control_(arena_->control()),
      constants_(control_.constants),
      owner_(ProcessId()),
      batches_per_epoch_(plan.batches_per_epoch()),
      recheck_ns_(uint64_t{options.arena.recheck_ms} * 1'000'000),
      begin_ns_(MonotonicNanoseconds()),
      pinned_(options.pin_memory ? std::make_unique<PinnedMemory>() : nullptr),
      fence_(options.pin_memory && options.fence_device ? std::make_unique<DeviceFence>() : nullptr),
      sleep_(control_.consumer_sleeps),
      plan_(std::move(plan)),
      slots_(*arena_),
      reader_(*arena_),
      cost_(options),
      depth_(options),
      retired_(kMaxProducers),
      corrupt_(kMaxProducers),
      trace_(arena_->trace(kMaxProducers)),
      held_facts_(options.arena.trace_events == 0 ? 0 : options.arena.slot_count) {
  constants_.stride = options.world;
  constants_.in_order = options.in_order ? 1 : 0;
  constants_.collators = options.collators;
  constants_.seal = SealOf(constants_, 0);
  control_.constants = constants_;
  control_.oldest.store(next_sequence_, std::memory_order_relaxed);
  control_.next.store(next_sequence_, std::memory_order_relaxed);
  SetProducers(options.producers);
}

BatchScheduler::~BatchScheduler() {
  if (InOwner()) {
    Shutdown();
  }
}

bool BatchScheduler::InOwner() const { return ProcessId() == owner_; }

void BatchScheduler::RequireOwner() const { HR_ENFORCE(InOwner(), FailedPrecondition, kNotTheOwner); }

void BatchScheduler::StartEpoch(const EpochStart& start) {
  std::vector<uint32_t> idle;
  {
    const OwnerLock lock(*this);
    const uint64_t epoch = start.epoch;
    const bool planned_ahead =
        options_.arena.order == IndexOrder::kSequential || options_.arena.order == IndexOrder::kShuffled;
    bool continues =
        started_ && planned_ahead && start.skip.empty() && !plan_.Skips(epoch) && start.revision == revision_;
    if (continues && !options_.in_order && epoch == consumer_epoch_) {
      continues = false;  // batches after the first may have been taken as well
    } else if (continues) {
      continues = open_.empty() ? plan_.IsAt(epoch, start.first_batch)
                                : open_.front().facts.epoch == epoch && open_.front().facts.batch == start.first_batch;
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
    consumer_epoch_ = epoch;
    consumer_batch_ = start.first_batch;
    OpenBatches();
    sleep_.Wake();
    idle = slots_.TakeIdle();
  }
  GiveBack(idle);
}

void BatchScheduler::GiveBack(const std::vector<uint32_t>& slots) {
  if (slots.empty()) {
    return;
  }
  for (const uint32_t slot : slots) {
    if (pinned_ != nullptr) {
      pinned_->Unpin(PinnedBegin(slot));  // a locked range keeps its old pages
    }
    arena_->Release(slot, 0);
  }
  const OwnerLock lock(*this);
  slots_.AddCold(slots);
}

void BatchScheduler::Supply(uint64_t rows, std::string_view indices, bool pickled) {
  HR_ENFORCE(indices.size() < arena_->slot_bytes() - kDataOffset, ResourceExhausted, "the indices of a batch need ",
             indices.size(), " bytes, a slot has ", arena_->slot_bytes() - kDataOffset);
  const OwnerLock lock(*this);
  HR_ENFORCE(started_ && !plan_.supply_ended(), FailedPrecondition,
             "batches can be supplied between StartEpoch and EndSupply only");
  plan_.Supply(rows, indices, pickled);
  OpenBatches();
}

void BatchScheduler::EndSupply() {
  const OwnerLock lock(*this);
  plan_.EndSupply();
}

uint32_t BatchScheduler::WantedSupply() const {
  const OwnerLock lock(*this);
  const auto have = static_cast<uint32_t>(open_.size() + plan_.supplied());
  return plan_.supply_ended() || have >= options_.prefetch ? 0 : options_.prefetch - have;
}

void BatchScheduler::SetProducers(uint32_t producers) {
  HR_ENFORCE(producers <= kMaxProducers, InvalidArgument, "at most ", kMaxProducers, " producers, got ", producers);
  cpu_set_t cpus;
  const bool spare_cpu =
      sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && static_cast<uint32_t>(CPU_COUNT(&cpus)) > producers;
  const OwnerLock lock(*this);
  cost_.SetProducers(producers);
  producers_end_ = std::max({producers_end_, producers, 1U});
  spin_ns_.store(spare_cpu ? kSpinNs : 0, std::memory_order_relaxed);
  control_.spin_ns.store(spin_ns_, std::memory_order_relaxed);
}

void BatchScheduler::OpenBatches() {
  if (!started_ || stopped_) {
    return;
  }
  uint32_t opened_chunks = 0;
  uint32_t producers = 0;
  // The ring has no room for batches further apart. Only a batch that many others have overtaken falls so far behind.
  while (open_.size() < depth_.value() && plan_.HasNext(consumer_epoch_) &&
         (open_.empty() || next_sequence_ - open_.front().facts.sequence < kMaxSlots)) {
    const std::optional<uint32_t> slot = slots_.Acquire();
    if (!slot) {
      break;
    }
    Open(*slot, plan_.Next());
    const BatchFacts& facts = open_.back().facts;
    opened_chunks += facts.chunks;
    producers |= facts.producer == kAnybody ? kAllSleepers : SleeperBit(facts.producer);
  }
  if (opened_chunks != 0) {
    // If one producer is meant, wake all that share its bit: it may be the last of them.
    SignalWork(options_.streams == 0 && !options_.round_robin ? opened_chunks : kMaxProducers, producers);
  }
}

void BatchScheduler::OpenMore() {
  if (!depth_.adapts() || open_.empty()) {
    return;
  }
  // Sleeping producers may have been woken for work, and not have come round to it.
  const bool work_left = std::any_of(open_.begin(), open_.end(), [this](const OpenBatch& batch) HR_REQUIRES(mutex_) {
    const uint32_t producer = batch.facts.producer;
    return batch.has_slot && arena_->slot(batch.slot).cursor.load(std::memory_order_relaxed) < batch.facts.chunks &&
           (producer == kAnybody || IsAsleep(control_, producer));
  });
  if (work_left) {
    return;
  }
  const uint32_t idle = CountSleepers(control_, producers_end_);
  if (idle != 0 && depth_.Grow(idle, open_.back().facts.chunks)) {
    OpenBatches();
  }
}

void BatchScheduler::Open(uint32_t slot, PlannedBatch plan) {
  cost_.Measure(control_.producers, producers_end_, CoarseNanoseconds());
  OpenBatch& batch = open_.emplace_back();
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
  std::memcpy(arena_->slot_data(slot) + kDataOffset, batch.indices.data(), batch.indices.size());
  Publish(batch);
  control_.ring[facts.sequence % kMaxSlots].store(slot, std::memory_order_relaxed);
  if (open_.size() == 1) {
    control_.oldest.store(facts.sequence);
  }
  if (trace_) {
    Note(TraceKind::kOpened, slot, facts, MonotonicNanoseconds());
  }
  control_.next.store(next_sequence_, std::memory_order_release);
}

void BatchScheduler::Publish(const OpenBatch& batch) {
  const BatchFacts& facts = batch.facts;
  SlotHeader& header = arena_->slot(batch.slot);
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
    header.claims[chunk].store(ClaimWord(facts.sequence, kChunkUnclaimed), std::memory_order_release);
  }
  header.sequence.store(facts.sequence, std::memory_order_release);
}

void BatchScheduler::SignalWork(uint32_t producers, uint32_t sleepers) {
  control_.work_signal.fetch_add(1);
  if (AnySleeper(control_, producers_end_)) {
    FutexWake(control_.work_signal, static_cast<int>(producers), sleepers);
  }
}

void BatchScheduler::SignalRescan() {
  control_.rescan.fetch_add(1, std::memory_order_release);
  SignalWork(kMaxProducers, kAllSleepers);
}

void BatchScheduler::Reopen(OpenBatch& batch) {
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
  SignalRescan();
}

void BatchScheduler::CloseClaims(const OpenBatch& batch) {
  SlotHeader& header = arena_->slot(batch.slot);
  // Backwards, because a collation becomes claimable when all chunks before it are done.
  for (uint32_t chunk = batch.facts.chunks; chunk-- > 0;) {
    uint64_t expected = ClaimWord(batch.facts.sequence, kChunkUnclaimed);
    header.claims[chunk].compare_exchange_strong(expected, ClaimWord(batch.facts.sequence, kChunkWithdrawn));
  }
}

void BatchScheduler::Withdraw(OpenBatch& batch, bool written_over) {
  if (batch.has_slot) {
    CloseClaims(batch);
    slots_.Drain({batch.slot, batch.facts, written_over});
    batch.has_slot = false;
  }
}

void BatchScheduler::WithdrawAll() {
  for (OpenBatch& batch : open_) {
    Withdraw(batch);
  }
  open_.clear();
  PublishOldest();
  slots_.FreeDrained();
}

void BatchScheduler::PublishOldest() {
  // Sequentially consistent with MarkDone, like everything that Wait does afterwards.
  control_.oldest.store(open_.empty() ? next_sequence_ : open_.front().facts.sequence);
}

bool BatchScheduler::IsReady(OpenBatch& batch) {
  if (!batch.has_slot || batch.concluded) {
    return true;
  }
  const SlotHeader& header = arena_->slot(batch.slot);
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
      MarkCorrupt(batch, "the word of a chunk is none that a producer writes", std::nullopt);
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
    const uint64_t word = header.claims[batch.facts.LastChunk()].load(std::memory_order_relaxed);
    if (batch.made_alone() && Claimant(word) != 0) {
      author = static_cast<uint32_t>(Claimant(word) - 1);
    }
    MarkCorrupt(batch, error.message(), author);
  }
  return true;
}

void BatchScheduler::SettleStreams() {
  for (bool ended = true; ended;) {
    ended = false;
    for (OpenBatch& batch : open_) {
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
      for (auto batch = open_.begin(); batch != open_.end();) {
        if (plan_.IsWithin(batch->facts.stream, batch->facts.batch)) {
          ++batch;
        } else {
          plan_.Closed(batch->facts.stream);
          Withdraw(*batch);
          batch = open_.erase(batch);
        }
      }
      slots_.FreeDrained();
      // Another batch may be the oldest now. The producer that completed it just before has not woken the consumer, so
      // look again.
      PublishOldest();
      OpenBatches();
    }
  }
}

BatchScheduler::Batches::iterator BatchScheduler::FindReady() {
  const bool streams = options_.arena.order == IndexOrder::kStream;
  if (streams) {
    SettleStreams();
  }
  for (auto batch = open_.begin(); batch != open_.end(); ++batch) {
    if (batch->facts.epoch != consumer_epoch_) {
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
  return open_.end();
}

std::optional<WaitOutcome> BatchScheduler::Decided() {
  if (stopped_) {
    return WaitOutcome::kStopped;
  }
  HR_ENFORCE(started_, FailedPrecondition, "no epoch was started");
  if (const auto ready = FindReady(); ready != open_.end()) {  // it may open batches, which moves the end
    return WaitOutcome::kBatch;
  }
  if (open_.empty()) {
    OpenBatches();  // a draining slot may have become free
  }
  // Batches of the next epoch open after all of this one.
  if (open_.empty() ? !plan_.Exhausted(consumer_epoch_) : open_.front().facts.epoch == consumer_epoch_) {
    return std::nullopt;
  }
  return options_.arena.order == IndexOrder::kExplicit && !plan_.supply_ended() ? WaitOutcome::kNeedsIndices
                                                                                : WaitOutcome::kEndOfEpoch;
}

std::optional<WaitOutcome> BatchScheduler::TryWait() {
  const OwnerLock lock(*this);
  const uint64_t now = CoarseNanoseconds();
  // Even while batches are always ready: a dead worker should be replaced.
  if (now >= next_look_ns_) {
    NoteDeaths();
    next_look_ns_ = now + kLookEveryNs;
  }
  if (std::exchange(unreported_deaths_, false)) {
    return WaitOutcome::kProducerDied;
  }
  const std::optional<WaitOutcome> outcome = Decided();
  if (outcome) {
    next_check_ns_ = now + recheck_ns_;
  }
  return outcome;
}

WaitOutcome BatchScheduler::Wait(int64_t timeout_ns) {
  if (const auto decided = TryWait()) {
    return *decided;
  }
  const uint64_t begin = MonotonicNanoseconds();
  const WaitOutcome outcome = WaitUntilDecided(timeout_ns, spin_.Start(spin_ns_), begin);
  sleep_.Awake();
  const OwnerLock lock(*this);
  OpenMore();  // one slow batch may have been all that there was to do
  ++stats_.waits;
  const uint64_t waited = MonotonicNanoseconds() - begin;
  stats_.wait_ns += waited;
  spin_.Finish(static_cast<int64_t>(waited));
  trace_.Write({.kind = TraceKind::kWait, .begin_ns = begin, .end_ns = begin + waited, .epoch = consumer_epoch_});
  return outcome;
}

WaitOutcome BatchScheduler::WaitUntilDecided(int64_t timeout_ns, int64_t awake_ns, uint64_t begin_ns) {
  bool announced = false;
  bool slept = false;
  for (;;) {
    bool nothing_open = false;
    bool may_open_more = false;
    {
      const OwnerLock lock(*this);
      if (const std::optional<WaitOutcome> outcome = Decided()) {
        return *outcome;
      }
      OpenMore();
      may_open_more = depth_.adapts();
      nothing_open = open_.empty();
      if (!deaths_.empty()) {
        unreported_deaths_ = false;
        return WaitOutcome::kProducerDied;
      }
      if (std::exchange(interrupted_, false)) {
        return WaitOutcome::kInterrupted;
      }
    }
    const auto waited = static_cast<int64_t>(MonotonicNanoseconds() - begin_ns);
    if (waited < awake_ns && timeout_ns != 0) {
      SpinPause();
      continue;
    }
    // Deaths are noticed only after a sleep, so even a limit of 0 sleeps once.
    if (timeout_ns >= 0 && waited >= timeout_ns && slept) {
      return WaitOutcome::kTimedOut;
    }
    if (!announced) {
      sleep_.Announce();
      announced = true;
      continue;
    }
    announced = false;
    slept = true;
    auto left = static_cast<int64_t>(recheck_ns_);
    if (timeout_ns >= 0) {
      left = std::clamp<int64_t>(timeout_ns - waited, 0, left);
    }
    // Nobody wakes the consumer when a device has finished with the slots that it needs.
    if (nothing_open && FreeEnded(/*urgent=*/true)) {
      left = std::min(left, kLookAtDeviceNs);
    }
    if (may_open_more) {
      left = std::min(left, kLookAtProducersNs);
    }
    const ConsumerSleep::Result result = sleep_.Sleep(watch_.fd(), left);
    if (result == ConsumerSleep::Result::kSignal) {
      return WaitOutcome::kInterrupted;
    }
    const OwnerLock lock(*this);
    if (result == ConsumerSleep::Result::kReadable) {
      NoteDeaths();
    }
    const uint64_t now = CoarseNanoseconds();
    if (now >= next_check_ns_) {
      CheckSharedState();
      next_check_ns_ = now + recheck_ns_;
    }
  }
}

void BatchScheduler::Interrupt() {
  const OwnerLock lock(*this);
  interrupted_ = true;
  sleep_.Wake();
}

ReadyBatch BatchScheduler::Take() {
  ReadyBatch ready;
  uint32_t slot = 0;
  size_t kept_bytes = 0;
  bool many_held = false;
  std::vector<uint32_t> idle;
  RequireOwner();
  FreeEnded(/*urgent=*/false);
  {
    const OwnerLock lock(*this);
    const auto found = FindReady();
    HR_ENFORCE(found != open_.end(), FailedPrecondition, "no batch is ready");
    OpenBatch batch = std::move(*found);
    if (found == open_.begin()) {
      open_.pop_front();
    } else {
      open_.erase(found);
    }
    slot = batch.slot;
    kept_bytes = batch.end.kept_bytes;
    const BatchFacts& facts = batch.facts;
    if (options_.arena.order == IndexOrder::kStream) {
      plan_.Closed(facts.stream);
    }
    ready.epoch = facts.epoch;
    ready.batch = options_.streams == 0 ? facts.batch : consumer_batch_++;
    ready.stream = facts.stream;
    ready.stream_batch = facts.batch;
    const SlotHeader& header = arena_->slot(slot);
    if (batch.has_slot) {
      ready.attachment = reader_.Text(slot, batch.end.attachment);
      if (batch.problem.kind == ProblemKind::kNone) {
        try {
          reader_.ReadLayout(batch, &ready);
          ready.rows = batch.made_alone() ? batch.end.rows : facts.rows;
          ready.author = LayoutProducer(header.layout_state.load(std::memory_order_relaxed));
        } catch (const DataLoss& error) {
          const uint32_t state = header.layout_state.load(std::memory_order_relaxed);
          MarkCorrupt(batch, error.message(),
                      IsLayoutReady(state) ? std::optional(LayoutProducer(state)) : std::nullopt);
          ready.objects.clear();
          ready.attachment.clear();
        }
      }
    }
    ready.problem = batch.problem.kind;
    ready.problem_row = batch.problem.row;
    ready.problem_message = std::move(batch.problem.message);
    if (batch.problem.kind != ProblemKind::kNone) {
      ready.author = batch.problem.author;
    }
    ++stats_.batches;
    if (batch.has_slot) {
      CloseClaims(batch);  // a collation that was not needed
      slots_.Hold();
      ready.slot = arena_->slot_data(slot);
      // Slots that a device still reads come back by themselves.
      const size_t fenced = fence_ == nullptr ? 0 : fence_->held();
      ready.last_slots =
          slots_.held() - std::min<size_t>(fenced, slots_.held()) + options_.prefetch >= arena_->slot_count();
      if (trace_) {
        const uint64_t now = MonotonicNanoseconds();
        const uint64_t done_ns = header.done_ns.load(std::memory_order_relaxed);
        Note(TraceKind::kReady, slot, facts, done_ns == 0 ? now : done_ns);
        Note(TraceKind::kTaken, slot, facts, now);
        held_facts_[slot] = facts;
      }
      if (batch.problem.kind == ProblemKind::kNone) {
        const uint64_t side_bytes =
            std::min<uint64_t>(header.side_bytes.load(std::memory_order_relaxed), arena_->slot_bytes());
        stats_.bytes += ready.layout().end() - kDataOffset - facts.indices_bytes + side_bytes -
                        std::min(side_bytes, batch.end.kept_bytes);
        const uint64_t used_bytes = ready.layout().end() + side_bytes;
        if (depth_.Taken(used_bytes, depth_.adapts() ? CountReady() : 0)) {
          idle = slots_.TakeIdle();
        }
      }
    }
    PublishOldest();
    OpenBatches();
    many_held = slots_.held() > kHeldWithSamples;
  }
  GiveBack(idle);
  if (ready.slot == nullptr) {
    return ready;
  }
  // The slot now belongs to the consumer.
  ready.memory = Allocation::Foreign(arena_->slot_data(slot), arena_->slot_bytes(),
                                     [self = shared_from_this(), slot](void*) { self->ReleaseSlot(slot); });
  const size_t kept_begin = arena_->slot_bytes() - kept_bytes;
  size_t pinned_end = 0;
  if (pinned_ != nullptr && ready.problem == ProblemKind::kNone && !ready.last_slots) {
    std::byte* begin = PinnedBegin(slot);
    pinned_->Pin(begin, ready.layout().end() - kDataOffset, arena_->slot_bytes() - kDataOffset);
    pinned_end = kDataOffset + pinned_->PinnedBytes(begin);
  }
  if (kept_bytes != 0 && many_held && pinned_end <= kept_begin) {
    arena_->Release(slot, kept_begin);
  }
  return ready;
}

std::string BatchScheduler::StreamEndAttachment(uint32_t stream) const {
  const OwnerLock lock(*this);
  HR_ENFORCE(stream < stream_ends_.size(), OutOfRange, "stream ", stream, " is not one of ", stream_ends_.size());
  return stream_ends_[stream];
}

void BatchScheduler::ReleaseSlot(uint32_t slot) {
  if (!InOwner()) {
    return;
  }
  const bool fenced = fence_ != nullptr && pinned_->PinnedBytes(PinnedBegin(slot)) != 0;
  if (fenced) {
    fence_->Hold(slot);
  }
  if (!held_facts_.empty()) {
    const OwnerLock lock(*this);
    Note(TraceKind::kReleased, slot, held_facts_[slot], MonotonicNanoseconds());
  }
  if (!fenced) {
    FreeHeld({&slot, 1});
  }
  FreeEnded(/*urgent=*/false);
}

void BatchScheduler::FreeHeld(std::span<const uint32_t> slots) {
  std::vector<uint32_t> unused;
  {
    const OwnerLock lock(*this);
    for (const uint32_t slot : slots) {
      slots_.Free(slot, true);
    }
    if (!stopped_) {
      OpenBatches();
      return;
    }
    unused = slots_.TakeFree();
  }
  GiveBack(unused);
}

bool BatchScheduler::FreeEnded(bool urgent) {
  if (fence_ == nullptr || fence_->held() == 0) {
    return false;
  }
  const std::vector<uint32_t> ended = fence_->TakeEnded(urgent);  // without mutex_: the driver may take its time
  if (!ended.empty()) {
    FreeHeld(ended);
  }
  return fence_->held() != 0;
}

void BatchScheduler::Shutdown() {
  std::vector<uint32_t> unused;
  {
    const OwnerLock lock(*this);
    if (!stopped_) {
      stopped_ = true;
      WithdrawAll();
      control_.stop.store(1);
      control_.work_signal.fetch_add(1);
      FutexWake(control_.work_signal);
      sleep_.Wake();
    }
    NoteDeaths();
    slots_.FreeDrained();
    unused = slots_.TakeFree();
  }
  GiveBack(unused);
}

}  // namespace headrace::shared_memory
