// What the scheduler knows of its producers: who lives, what the dead leave behind, what all have done.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "framework/errors.h"
#include "reader/shared_memory/batch_producer.h"
#include "reader/shared_memory/batch_scheduler.h"
#include "reader/shared_memory/futex.h"

namespace headrace::shared_memory {
namespace {

// How often a producer may die at one row before the row is given up.
constexpr uint32_t kMaxDeathsPerRow = 4;
// How long to wait awake, at most, where there are more processors than producers (spin.h).
constexpr int64_t kSpinNs = 50'000;

void CheckProducer(uint32_t id) {
  HR_ENFORCE(id < kMaxProducers, OutOfRange, "producer ", id, " is beyond the limit of ", kMaxProducers);
}

bool HasEnded(int pidfd) {
  pollfd descriptor{pidfd, POLLIN, 0};
  return poll(&descriptor, 1, 0) > 0;
}

}  // namespace

void BatchScheduler::SetProducers(uint32_t producers) {
  HR_ENFORCE(producers <= kMaxProducers, InvalidArgument, "at most ", kMaxProducers, " producers, got ", producers);
  cpu_set_t cpus;
  const bool spare_cpu =
      sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && static_cast<uint32_t>(CPU_COUNT(&cpus)) > producers;
  const std::lock_guard lock(mutex_);
  producers_ = producers;
  producers_end_ = std::max({producers_end_, producers, 1U});
  arena_->control().spin_ns.store(spare_cpu ? kSpinNs : 0, std::memory_order_relaxed);
}

void BatchScheduler::WatchProducer(uint32_t id, int pidfd) {
  CheckProducer(id);
  const std::lock_guard lock(mutex_);
  std::atomic<uint32_t>& retirement = arena_->control().producers[id].retirement;
  const auto watch = FindWatch(id);
  if (watch != watches_.end()) {
    HR_ENFORCE(watch->retired, AlreadyExists, "producer ", id, " is watched already");
    // Its successor may have claims by now, so that this is too late to look for claims of the old one.
    HR_ENFORCE(HasEnded(watch->pidfd) && retirement.load(std::memory_order_acquire) == kRetired, FailedPrecondition,
               "producer ", id, " was retired and has not ended, or was killed then: its id is free after Reclaim");
    close(watch->pidfd);
    watches_.erase(watch);
  }
  const int copy = fcntl(pidfd, F_DUPFD_CLOEXEC, 0);
  HR_ENFORCE(copy >= 0, IoError, "cannot duplicate file descriptor ", pidfd, ": ", std::strerror(errno));
  watches_.push_back({id, copy, next_watch_++, false});
  retirement.store(kServes, std::memory_order_relaxed);
  producers_end_ = std::max(producers_end_, id + 1);
  WakeConsumer();  // to watch it too
}

void BatchScheduler::RetireProducer(uint32_t id) {
  CheckProducer(id);
  const std::lock_guard lock(mutex_);
  const auto watch = FindWatch(id);
  if (watch != watches_.end()) {
    watch->retired = true;
  }
  std::erase_if(deaths_, [id](const ProducerDeath& death) { return death.producer == id; });
  arena_->control().producers[id].retirement.store(kToRetire);
  SignalWork(kMaxProducers, SleeperBit(id));
}

std::vector<BatchScheduler::Watch>::iterator BatchScheduler::FindWatch(uint32_t id) {
  return std::find_if(watches_.begin(), watches_.end(), [id](const Watch& watch) { return watch.id == id; });
}

void BatchScheduler::NoteDeath(uint32_t id) {
  const auto watch = FindWatch(id);
  const bool retired = watch->retired;
  if (retired && arena_->control().producers[id].retirement.load(std::memory_order_acquire) == kRetired) {
    // It has left no claim, and a successor may have some already.
    close(watch->pidfd);
    watches_.erase(watch);
    return;
  }
  const ProducerDeath death = ReclaimLocked(id);
  if (!retired) {
    deaths_.push_back(death);
  }
}

std::vector<ProducerDeath> BatchScheduler::TakeDeaths() {
  const std::lock_guard lock(mutex_);
  return std::exchange(deaths_, {});
}

ProducerDeath BatchScheduler::Reclaim(uint32_t id) {
  CheckProducer(id);
  const std::lock_guard lock(mutex_);
  const ProducerDeath death = ReclaimLocked(id);
  WakeConsumer();  // a row given up may complete a batch
  return death;
}

ProducerDeath BatchScheduler::ReclaimLocked(uint32_t id) {
  const auto watch = FindWatch(id);
  if (watch != watches_.end()) {
    close(watch->pidfd);
    watches_.erase(watch);
  }
  ProducerRecord& record = arena_->control().producers[id];
  ProducerDeath death;
  death.producer = id;
  for (uint32_t slot = 0; slot < slots_.end(); ++slot) {
    if (!slots_.IsOpen(slot) && !slots_.IsDraining(slot)) {
      continue;
    }
    SlotHeader& header = arena_->slot(slot);
    uint32_t writing = kLayoutWriting + id;
    header.layout_state.compare_exchange_strong(writing, kLayoutEmpty);
    const uint64_t sequence = header.sequence.load(std::memory_order_relaxed);
    const uint32_t chunks = header.chunks.load(std::memory_order_relaxed);
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const uint64_t bit = uint64_t{1} << (chunk % 64);
      if (header.claims[chunk].load(std::memory_order_acquire) != ClaimWord(sequence, id + 1) ||
          (header.done[chunk / 64].load(std::memory_order_acquire) & bit) != 0) {
        continue;
      }
      auto kind = static_cast<ClaimKind>(header.kind.load(std::memory_order_relaxed));
      uint32_t row = chunk * header.chunk_rows;
      uint32_t end = std::min(row + header.chunk_rows, header.rows);
      if (kind == ClaimKind::kItems && chunk + 1 == chunks) {
        kind = ClaimKind::kCollate;
        row = 0;
        end = header.rows;
      }
      // A producer that dies between its claim and its first note died at the chunk's first row.
      if (record.sequence.load(std::memory_order_relaxed) == sequence) {
        row = std::clamp(record.row.load(std::memory_order_relaxed), row, end - 1);
      }
      death.busy = true;
      death.epoch = header.epoch;
      death.batch = header.batch;
      death.row = row;
      if (slots_.IsDraining(slot)) {
        header.done[chunk / 64].fetch_or(bit);
        continue;
      }
      auto loss = std::find_if(losses_.begin(), losses_.end(),
                               [&](const Loss& l) { return l.sequence == sequence && l.row == row && l.kind == kind; });
      if (loss == losses_.end()) {
        losses_.push_back({sequence, row, kind, 0});
        loss = losses_.end() - 1;
      }
      death.attempts = ++loss->count;
      if (loss->count >= kMaxDeathsPerRow) {
        header.problems[chunk] = {0, 0, row, kKilled};
        // What follows in a stream is beyond what no producer gets past.
        header.stream_end = static_cast<uint32_t>(StreamEnd::kAfter);
        header.attachment = {0, 0};
        header.items_failed.store(kind == ClaimKind::kItems ? 1 : 0, std::memory_order_relaxed);
        header.done[chunk / 64].fetch_or(bit);
        continue;
      }
      if (MakesBatch(kind)) {
        // The only author of this layout is dead; the next one writes its own.
        header.layout_state.store(kLayoutEmpty, std::memory_order_relaxed);
      }
      header.cursor.store(0, std::memory_order_relaxed);
      header.claims[chunk].store(ClaimWord(sequence, kUnclaimed), std::memory_order_release);
    }
  }
  record.busy.store(0, std::memory_order_relaxed);
  record.retirement.store(kServes, std::memory_order_relaxed);
  // Even if it held nothing: the dead one may have been woken for work that others sleep through.
  SignalRescan();
  return death;
}

SchedulerStats BatchScheduler::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = stats_;
  for (uint32_t id = 0; id < producers_end_; ++id) {
    const ProducerRecord& record = arena_->control().producers[id];
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
  stats.prefetch = options_.prefetch;
  stats.open_batches = static_cast<uint32_t>(in_flight_.size());
  stats.ready_batches = static_cast<uint32_t>(std::count_if(
      in_flight_.begin(), in_flight_.end(), [&](const Flight& flight) { return AllDone(arena_->slot(flight.slot)); }));
  stats.held_slots = slots_.held();
  stats.slots_used = slots_.with_memory();
  stats.resident_bytes = arena_->ResidentBytes();
  stats.pinned_bytes = pinned_ == nullptr ? 0 : pinned_->pinned_bytes();
  return stats;
}

std::vector<TraceEvent> BatchScheduler::Trace() const {
  std::vector<TraceEvent> events;
  arena_->trace(kMaxProducers).Read(TraceEvent::kScheduler, &events);
  uint32_t end = 0;
  {
    const std::lock_guard lock(mutex_);
    end = producers_end_;
  }
  for (uint32_t id = 0; id < end; ++id) {
    arena_->trace(id).Read(id, &events);
  }
  std::sort(events.begin(), events.end(),
            [](const TraceEvent& a, const TraceEvent& b) { return a.begin_ns < b.begin_ns; });
  return events;
}

}  // namespace headrace::shared_memory
