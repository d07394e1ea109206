#include "reader/shared_memory/batch_scheduler.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <span>
#include <utility>

#include "framework/errors.h"
#include "framework/spin_pause.h"
#include "reader/shared_memory/arena/process_id.h"
#include "reader/shared_memory/batches/forked_children.h"
#include "reader/shared_memory/waiting/futex.h"

namespace headrace::shared_memory {
namespace {

// How often Wait checks whether a device has finished its work, if there is no slot to continue with.
constexpr int64_t kLookAtDeviceNs = 200'000;
// How often Wait looks whether producers have nothing to do, if it may open more batches.
constexpr int64_t kLookAtProducersNs = 10'000'000;
// How often Wait looks whether processes have ended, if nobody tells it.
constexpr int64_t kLookEveryNs = 20'000'000;
// The samples that a batch was collated from stay in its slot so that their pages can be reused, unless the consumer
// keeps more batches than this.
constexpr uint32_t kHeldWithSamples = 2;
// How long to spin, at most, if there are more processors than producers (spin.h).
constexpr int64_t kSpinNs = 50'000;

}  // namespace

std::shared_ptr<BatchScheduler> BatchScheduler::Create(const SchedulerOptions& options) {
  return std::shared_ptr<BatchScheduler>(new BatchScheduler(options, BatchPlan(options)));
}

BatchScheduler::BatchScheduler(const SchedulerOptions& options, BatchPlan plan)
    : options_(options),
      arena_(Arena::Create(options.arena)),
      control_(arena_->control()),
      owner_(ProcessId()),
      batches_per_epoch_(plan.batches_per_epoch()),
      recheck_ns_(uint64_t{options.arena.recheck_ms} * 1'000'000),
      begin_ns_(MonotonicNanoseconds()),
      memory_(*arena_, options.pin_memory, options.fence_device),
      sleep_(control_.consumer_sleeps),
      trace_(arena_->trace(kMaxProducers)),
      producers_(control_),
      batches_(options_, std::move(plan), *arena_, producers_, trace_),
      repair_(batches_, producers_, *arena_, options.pin_memory),
      held_facts_(options.arena.trace_events == 0 ? 0 : options.arena.slot_count),
      taken_(arena_->slot_count()) {
  SetProducers(options.producers);
}

BatchScheduler::~BatchScheduler() {
  if (!InOwner()) {
    return;
  }
  Shutdown();
  const OwnerLock lock(*this);
  for (const uint32_t slot : read_by_children_) {
    ForkedChildren::Instance().GiveUp(taken_[slot].forks);
    arena_->KeepAtEnd(slot);
  }
}

bool BatchScheduler::InOwner() const { return ProcessId() == owner_; }

void BatchScheduler::RequireOwner() const { HR_ENFORCE(InOwner(), FailedPrecondition, kNotTheOwner); }

void BatchScheduler::StartEpoch(const EpochStart& start) {
  std::vector<uint32_t> idle;
  {
    const OwnerLock lock(*this);
    FreeUnread();  // before other slots are taken into use
    batches_.StartEpoch(start);
    consumer_batch_ = start.first_batch;
    sleep_.Wake();
    idle = batches_.slots().TakeIdle();
  }
  GiveBack(idle);
}

void BatchScheduler::GiveBack(const std::vector<uint32_t>& slots) {
  if (slots.empty()) {
    return;
  }
  memory_.Release(slots);
  const OwnerLock lock(*this);
  batches_.slots().AddCold(slots);
}

void BatchScheduler::Supply(uint64_t rows, std::string_view indices, bool pickled) {
  HR_ENFORCE(indices.size() < arena_->slot_bytes() - kDataOffset, ResourceExhausted, "the indices of a batch need ",
             indices.size(), " bytes, a slot has ", arena_->slot_bytes() - kDataOffset);
  const OwnerLock lock(*this);
  batches_.Supply(rows, indices, pickled);
}

void BatchScheduler::EndSupply() {
  const OwnerLock lock(*this);
  batches_.EndSupply();
}

uint32_t BatchScheduler::WantedSupply() const {
  const OwnerLock lock(*this);
  return batches_.WantedSupply();
}

void BatchScheduler::SetProducers(uint32_t producers) {
  HR_ENFORCE(producers <= kMaxProducers, InvalidArgument, "at most ", kMaxProducers, " producers, got ", producers);
  cpu_set_t cpus;
  const bool spare_cpu =
      sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && static_cast<uint32_t>(CPU_COUNT(&cpus)) > producers;
  const OwnerLock lock(*this);
  spin_ns_.store(spare_cpu ? kSpinNs : 0, std::memory_order_relaxed);
  batches_.SetProducers(producers, spin_ns_);
}

void BatchScheduler::WatchProducer(uint32_t id, int pidfd, uint32_t threads) {
  HR_ENFORCE(threads >= 1 && threads <= kMaxProducers, InvalidArgument, "a process has 1 to ", kMaxProducers,
             " producers, got ", threads);
  ProducerTable::CheckId(id);
  ProducerTable::CheckId(id + threads - 1);
  const OwnerLock lock(*this);
  producers_.Watch(id, pidfd, threads);
}

void BatchScheduler::RetireProducer(uint32_t id) {
  ProducerTable::CheckId(id);
  const OwnerLock lock(*this);
  producers_.Retire(id);
  batches_.WakeProducers(kMaxProducers, SleeperBit(id));
}

std::vector<ProducerDeath> BatchScheduler::TakeDeaths() {
  const OwnerLock lock(*this);
  return producers_.TakeDeaths();
}

std::vector<HeldClaim> BatchScheduler::Claims() const {
  const OwnerLock lock(*this);
  return repair_.Claims();
}

ProducerDeath BatchScheduler::Reclaim(uint32_t id) {
  ProducerTable::CheckId(id);
  const OwnerLock lock(*this);
  const ProducerDeath death = repair_.Reclaim(id);
  sleep_.Wake();  // it may have been the last at work on a batch that is to be made again
  return death;
}

void BatchScheduler::Accuse(uint32_t author) {
  const OwnerLock lock(*this);
  producers_.KillCorrupt(author);
}

bool BatchScheduler::Abandon(uint64_t sequence, uint32_t row) {
  const OwnerLock lock(*this);
  const bool done = batches_.Abandon(sequence, row);
  sleep_.Wake();
  return done;
}

bool BatchScheduler::Skip(uint64_t sequence, uint32_t row) {
  const OwnerLock lock(*this);
  const bool done = batches_.Skip(sequence, row);
  sleep_.Wake();  // another batch may be the next
  return done;
}

std::optional<WaitOutcome> BatchScheduler::Decided() {
  if (batches_.stopped()) {
    return WaitOutcome::kStopped;
  }
  HR_ENFORCE(batches_.started(), FailedPrecondition, "no epoch was started");
  switch (batches_.LookAtNext()) {
    case OpenBatches::Next::kReady:
      return WaitOutcome::kBatch;
    case OpenBatches::Next::kBeingMade:
      return std::nullopt;
    case OpenBatches::Next::kEndOfEpoch:
      return WaitOutcome::kEndOfEpoch;
    case OpenBatches::Next::kNeedsIndices:
      return WaitOutcome::kNeedsIndices;
  }
  return std::nullopt;
}

void BatchScheduler::LookForEnds(uint64_t now_ns) {
  if (now_ns < next_look_ns_) {
    return;
  }
  next_look_ns_ = now_ns + kLookEveryNs;
  repair_.NoteDeaths();
  if (FreeUnread()) {
    batches_.Open();
  }
}

std::optional<WaitOutcome> BatchScheduler::TryWait() {
  const OwnerLock lock(*this);
  const uint64_t now = CoarseNanoseconds();
  LookForEnds(now);  // even while batches are always ready: a dead worker should be replaced
  if (producers_.TellOfDeaths()) {
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
  const WaitOutcome outcome =
      Nap(timeout_ns) ? WaitUntilDecided(timeout_ns, spin_.Start(spin_ns_), begin) : WaitOutcome::kInterrupted;
  sleep_.Awake();
  const OwnerLock lock(*this);
  batches_.OpenMore();  // one slow batch may have been all that there was to do
  ++stats_.waits;
  const uint64_t waited = MonotonicNanoseconds() - begin;
  stats_.wait_ns += waited;
  spin_.Finish(static_cast<int64_t>(waited));
  trace_.Write({.kind = TraceKind::kWait, .begin_ns = begin, .end_ns = begin + waited, .epoch = batches_.epoch()});
  return outcome;
}

bool BatchScheduler::Nap(int64_t timeout_ns) {
  if (spin_ns_ != 0 || (timeout_ns >= 0 && timeout_ns < NapLength::kLongestNs)) {
    return true;
  }
  const int64_t length_ns = nap_.Start();
  if (length_ns == 0) {
    return true;
  }
  const timespec length{0, length_ns};
  const bool undisturbed = nanosleep(&length, nullptr) == 0;
  const OwnerLock lock(*this);
  nap_.Finish(Decided().has_value(), batches_.AnyHeldUp());
  return undisturbed;
}

WaitOutcome BatchScheduler::WaitUntilDecided(int64_t timeout_ns, int64_t awake_ns, uint64_t begin_ns) {
  bool announced = false;
  bool slept = false;
  for (;;) {
    bool nothing_open = false;
    bool may_open_more = false;
    bool children_have_slots = false;
    {
      const OwnerLock lock(*this);
      if (const std::optional<WaitOutcome> outcome = Decided()) {
        return *outcome;
      }
      batches_.OpenMore();
      may_open_more = batches_.may_open_more();
      nothing_open = batches_.batches().empty();
      children_have_slots = !read_by_children_.empty();
      if (producers_.has_deaths()) {
        producers_.TellOfDeaths();
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
    if (children_have_slots) {
      left = std::min(left, kLookEveryNs);
    }
    const ConsumerSleep::Result result = sleep_.Sleep(producers_.fd(), left);
    if (result == ConsumerSleep::Result::kSignal) {
      return WaitOutcome::kInterrupted;
    }
    const OwnerLock lock(*this);
    if (result == ConsumerSleep::Result::kReadable) {
      repair_.NoteDeaths();
    }
    const uint64_t now = CoarseNanoseconds();
    LookForEnds(now);
    if (now >= next_check_ns_) {
      repair_.CheckSharedState();
      next_check_ns_ = now + recheck_ns_;
    }
  }
}

void BatchScheduler::Interrupt() {
  const OwnerLock lock(*this);
  interrupted_ = true;
  sleep_.Wake();
}

ReadyBatch BatchScheduler::HandOut(OpenBatch& batch) {
  const BatchFacts& facts = batch.facts;
  ReadyBatch ready;
  ready.epoch = facts.epoch;
  ready.batch = options_.streams == 0 ? facts.batch : consumer_batch_++;
  ready.stream = facts.stream;
  ready.stream_batch = facts.batch;
  if (batch.has_slot) {
    SlotReader& reader = batches_.reader();
    ready.attachment = reader.Text(batch.slot, batch.end.attachment);
    if (batch.problem.kind == ProblemKind::kNone) {
      const SlotHeader& header = arena_->slot(batch.slot);
      try {
        reader.ReadLayout(batch, &ready);
        ready.rows = batch.made_alone() ? batch.end.rows : facts.rows;
        ready.author = LayoutProducer(header.layout_state.load(std::memory_order_relaxed));
      } catch (const DataLoss& error) {
        const uint32_t state = header.layout_state.load(std::memory_order_relaxed);
        batches_.FailCorrupt(batch, error.message(),
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
  if (batch.has_slot) {
    batches_.CloseClaims(batch);  // a collation that was not needed
    batches_.slots().Hold();
    taken_[batch.slot] = {ForkedChildren::Instance().NoteTaken(), true, false};
    ++with_consumer_;
    ready.slot = arena_->slot_data(batch.slot);
    // Slots that a device still reads come back by themselves.
    ready.last_slots = with_consumer_ + read_by_children_.size() + options_.prefetch >= arena_->slot_count();
  }
  return ready;
}

uint64_t BatchScheduler::NoteHandOut(const OpenBatch& batch, const ReadyBatch& ready) {
  ++stats_.batches;
  if (!batch.has_slot) {
    return 0;
  }
  const BatchFacts& facts = batch.facts;
  const SlotHeader& header = arena_->slot(batch.slot);
  if (trace_) {
    const uint64_t now = MonotonicNanoseconds();
    const uint64_t done_ns = header.done_ns.load(std::memory_order_relaxed);
    trace_.Write(BatchEvent(TraceKind::kReady, batch.slot, facts, done_ns == 0 ? now : done_ns));
    trace_.Write(BatchEvent(TraceKind::kTaken, batch.slot, facts, now));
    held_facts_[batch.slot] = facts;
  }
  if (ready.problem != ProblemKind::kNone) {
    return 0;
  }
  const uint64_t side_bytes =
      std::min<uint64_t>(header.side_bytes.load(std::memory_order_relaxed), arena_->slot_bytes());
  const uint64_t content_bytes = side_bytes - std::min(side_bytes, batch.end.kept_bytes);
  stats_.bytes += ready.layout().end() - kDataOffset - facts.indices_bytes + content_bytes;
  return ready.layout().end() + side_bytes;
}

ReadyBatch BatchScheduler::Take() {
  RequireOwner();
  FreeEnded(/*urgent=*/false);
  ReadyBatch ready;
  OpenBatch batch;
  bool many_held = false;
  std::vector<uint32_t> idle;
  {
    const OwnerLock lock(*this);
    std::optional<OpenBatch> taken = batches_.TakeReady();
    HR_ENFORCE(taken.has_value(), FailedPrecondition, "no batch is ready");
    batch = std::move(*taken);
    ready = HandOut(batch);
    const uint64_t used_bytes = NoteHandOut(batch, ready);
    if (used_bytes != 0 && batches_.NoteTaken(used_bytes)) {
      idle = batches_.slots().TakeIdle();
    }
    batches_.Advance();
    many_held = with_consumer_ > kHeldWithSamples;
  }
  GiveBack(idle);
  if (ready.slot == nullptr) {
    return ready;
  }
  // The slot now belongs to the consumer.
  ready.memory =
      Allocation::Foreign(arena_->slot_data(batch.slot), arena_->slot_bytes(),
                          [self = shared_from_this(), slot = batch.slot](void*) { self->ReleaseSlot(slot); });
  size_t pinned_end = 0;
  if (ready.problem == ProblemKind::kNone && !ready.last_slots) {
    pinned_end = memory_.Pin(batch.slot, ready.layout().end());
  }
  const size_t kept_begin = arena_->slot_bytes() - batch.end.kept_bytes;
  if (batch.end.kept_bytes != 0 && many_held && pinned_end <= kept_begin) {
    arena_->Release(batch.slot, kept_begin);
  }
  return ready;
}

std::string BatchScheduler::StreamEndAttachment(uint32_t stream) const {
  const OwnerLock lock(*this);
  return batches_.StreamEndAttachment(stream);
}

void BatchScheduler::ReleaseSlot(uint32_t slot) {
  if (!InOwner()) {
    return;
  }
  {
    const OwnerLock lock(*this);
    if (!held_facts_.empty()) {
      trace_.Write(BatchEvent(TraceKind::kReleased, slot, held_facts_[slot], MonotonicNanoseconds()));
    }
    --with_consumer_;
    TakenSlot& taken = taken_[slot];
    ForkedChildren& children = ForkedChildren::Instance();
    if (!children.Free(taken.forks)) {
      children.ForgetEnded();
      taken.read_by_children = !children.Free(taken.forks);
    }
    if (taken.read_by_children) {
      read_by_children_.push_back(slot);
    }
  }
  if (!memory_.Fence(slot)) {
    FreeHeld({&slot, 1});
  }
  FreeEnded(/*urgent=*/false);
}

void BatchScheduler::FreeHeld(std::span<const uint32_t> slots) {
  std::vector<uint32_t> unused;
  {
    const OwnerLock lock(*this);
    for (const uint32_t slot : slots) {
      taken_[slot].in_use = false;
      FreeIfUnused(slot);
    }
    if (!batches_.stopped()) {
      batches_.Open();
      return;
    }
    unused = batches_.slots().TakeFree();
  }
  GiveBack(unused);
}

void BatchScheduler::FreeIfUnused(uint32_t slot) {
  if (!taken_[slot].in_use && !taken_[slot].read_by_children) {
    batches_.slots().Free(slot, true);
  }
}

bool BatchScheduler::FreeUnread() {
  if (read_by_children_.empty()) {
    return false;
  }
  ForkedChildren& children = ForkedChildren::Instance();
  children.ForgetEnded();
  const std::vector<uint32_t> before = std::exchange(read_by_children_, {});
  for (const uint32_t slot : before) {
    taken_[slot].read_by_children = !children.Free(taken_[slot].forks);
    if (taken_[slot].read_by_children) {
      read_by_children_.push_back(slot);
    } else {
      FreeIfUnused(slot);
    }
  }
  return read_by_children_.size() < before.size();
}

bool BatchScheduler::FreeEnded(bool urgent) {
  if (memory_.fenced() == 0) {
    return false;
  }
  const std::vector<uint32_t> ended = memory_.TakeEnded(urgent);
  if (!ended.empty()) {
    FreeHeld(ended);
  }
  return memory_.fenced() != 0;
}

void BatchScheduler::Shutdown() {
  std::vector<uint32_t> unused;
  {
    const OwnerLock lock(*this);
    if (!batches_.stopped()) {
      batches_.Stop();
      sleep_.Wake();
    }
    repair_.NoteDeaths();
    batches_.slots().FreeDrained();
    FreeUnread();
    unused = batches_.slots().TakeFree();
  }
  GiveBack(unused);
}

SchedulerStats BatchScheduler::stats() const {
  const OwnerLock lock(*this);
  SchedulerStats stats = stats_;
  for (uint32_t id = 0; id < producers_.end(); ++id) {
    const ProducerRecord& record = control_.producers[id];
    ProducerStats& producer = stats.producers.emplace_back();
    const auto add = [&](uint64_t ProducerStats::* figure, const std::atomic<uint64_t>& value) {
      producer.*figure = value.load(std::memory_order_relaxed);
      stats.all.*figure += producer.*figure;
    };
    add(&ProducerStats::samples, record.samples);
    add(&ProducerStats::claims, record.claims);
    add(&ProducerStats::work_ns, record.work_ns);
    add(&ProducerStats::dataset_ns, record.dataset_ns);
    add(&ProducerStats::collate_ns, record.collate_ns);
    add(&ProducerStats::copy_ns, record.copy_ns);
    add(&ProducerStats::wait_ns, record.wait_ns);
  }
  stats.elapsed_ns = MonotonicNanoseconds() - begin_ns_;
  stats.prefetch = batches_.depth();
  stats.open_batches = static_cast<uint32_t>(batches_.batches().size());
  stats.ready_batches = batches_.CountReady();
  stats.held_slots = batches_.slots().held() - static_cast<uint32_t>(read_by_children_.size());
  stats.slots_used = batches_.slots().with_memory();
  stats.resident_bytes = arena_->ResidentBytes();
  stats.pinned_bytes = memory_.pinned_bytes();
  return stats;
}

std::vector<TraceEvent> BatchScheduler::Trace() const {
  std::vector<TraceEvent> events;
  arena_->trace(kMaxProducers).Read(TraceEvent::kScheduler, &events);
  uint32_t end = 0;
  {
    const OwnerLock lock(*this);
    end = producers_.end();
  }
  for (uint32_t id = 0; id < end; ++id) {
    arena_->trace(id).Read(id, &events);
  }
  std::sort(events.begin(), events.end(),
            [](const TraceEvent& a, const TraceEvent& b) { return a.begin_ns < b.begin_ns; });
  return events;
}

}  // namespace headrace::shared_memory
