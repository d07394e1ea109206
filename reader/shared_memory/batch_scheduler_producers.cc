// What the scheduler knows of its producers: who lives, what the dead leave behind, what all have done.
#include <sched.h>

#include <algorithm>
#include <utility>

#include "framework/errors.h"
#include "reader/shared_memory/batch_producer.h"
#include "reader/shared_memory/batch_scheduler.h"
#include "reader/shared_memory/futex.h"

namespace headrace::shared_memory {
namespace {

// How long to wait awake, at most, where there are more processors than producers (spin.h).
constexpr int64_t kSpinNs = 50'000;

void CheckProducer(uint32_t id) {
  HR_ENFORCE(id < kMaxProducers, OutOfRange, "producer ", id, " is beyond the limit of ", kMaxProducers);
}

// What producer `id` does with its chunk. The header's fields are the scheduler's own.
HeldClaim Describe(const SlotHeader& header, uint32_t chunk, const ProducerRecord& record, uint32_t id) {
  HeldClaim claim;
  claim.producer = id;
  claim.sequence = header.sequence.load(std::memory_order_relaxed);
  claim.epoch = header.epoch;
  claim.batch = header.batch;
  claim.kind = static_cast<ClaimKind>(header.kind.load(std::memory_order_relaxed));
  uint32_t row = chunk * header.chunk_rows;
  uint32_t end = std::min(row + header.chunk_rows, header.rows);
  if (claim.kind == ClaimKind::kItems && chunk + 1 == header.chunks.load(std::memory_order_relaxed)) {
    claim.kind = ClaimKind::kCollate;
    row = 0;
    end = header.rows;
  }
  claim.row = row;
  const uint32_t noted = record.row.load(std::memory_order_relaxed);
  if (record.sequence.load(std::memory_order_acquire) == claim.sequence && noted != kNoRow) {
    claim.at_row = true;
    claim.row = std::clamp(noted, row, end - 1);
  }
  return claim;
}

// Whether a producer holds that chunk and is not done with it.
bool Holds(const SlotHeader& header, uint64_t sequence, uint32_t chunk, uint32_t id) {
  return header.claims[chunk].load(std::memory_order_acquire) == ClaimWord(sequence, id + 1) &&
         (header.done[chunk / 64].load(std::memory_order_acquire) & (uint64_t{1} << (chunk % 64))) == 0;
}

}  // namespace

std::vector<HeldClaim> BatchScheduler::Claims() const {
  std::vector<HeldClaim> claims;
  const std::lock_guard lock(mutex_);
  for (uint32_t slot = 0; slot < slots_.end(); ++slot) {
    if (!slots_.IsOpen(slot) && !slots_.IsDraining(slot)) {
      continue;
    }
    const SlotHeader& header = arena_->slot(slot);
    const uint64_t sequence = header.sequence.load(std::memory_order_relaxed);
    const uint32_t chunks = std::min(header.chunks.load(std::memory_order_relaxed), kMaxChunks);
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const uint64_t claimant = Claimant(header.claims[chunk].load(std::memory_order_relaxed));
      if (claimant == kUnclaimed || claimant > producers_end_) {
        continue;
      }
      const auto id = static_cast<uint32_t>(claimant - 1);
      if (Holds(header, sequence, chunk, id)) {
        claims.push_back(Describe(header, chunk, arena_->control().producers[id], id));
      }
    }
  }
  std::sort(claims.begin(), claims.end(),
            [](const HeldClaim& a, const HeldClaim& b) { return a.sequence < b.sequence; });
  return claims;
}

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

void BatchScheduler::WatchProducer(uint32_t id, int pidfd, uint32_t threads) {
  HR_ENFORCE(threads >= 1 && threads <= kMaxProducers, InvalidArgument, "a process has 1 to ", kMaxProducers,
             " producers, got ", threads);
  CheckProducer(id);
  CheckProducer(id + threads - 1);
  const std::lock_guard lock(mutex_);
  ProducerRecord* records = arena_->control().producers;
  for (uint32_t each = id; each < id + threads; ++each) {
    if (!watch_.Watches(each)) {
      continue;
    }
    HR_ENFORCE(retired_[each], AlreadyExists, "producer ", each, " is watched already");
    // Its successor may have claims by now, so that this is too late to look for claims of the old one.
    HR_ENFORCE(watch_.HasEnded(each) && records[each].retirement.load(std::memory_order_acquire) == kRetired,
               FailedPrecondition, "producer ", each,
               " was retired and has not ended, or was killed then: its id is free after Reclaim");
    watch_.Remove(each);
  }
  watch_.Add(id, threads, pidfd);
  for (uint32_t each = id; each < id + threads; ++each) {
    retired_[each] = false;
    records[each].retirement.store(kServes, std::memory_order_relaxed);
  }
  producers_end_ = std::max(producers_end_, id + threads);
}

void BatchScheduler::RetireProducer(uint32_t id) {
  CheckProducer(id);
  const std::lock_guard lock(mutex_);
  retired_[id] = true;
  std::erase_if(deaths_, [id](const ProducerDeath& death) { return death.producer == id; });
  unreported_deaths_ = unreported_deaths_ && !deaths_.empty();
  arena_->control().producers[id].retirement.store(kToRetire);
  SignalWork(kMaxProducers, SleeperBit(id));
}

void BatchScheduler::NoteDeaths() {
  for (const uint32_t id : watch_.TakeEnded()) {
    if (retired_[id] && arena_->control().producers[id].retirement.load(std::memory_order_acquire) == kRetired) {
      continue;  // it has left no claim, and a successor may have some already
    }
    const bool retired = retired_[id];
    const ProducerDeath death = ReclaimLocked(id);
    if (!retired) {
      deaths_.push_back(death);
      unreported_deaths_ = true;
    }
  }
}

std::vector<ProducerDeath> BatchScheduler::TakeDeaths() {
  const std::lock_guard lock(mutex_);
  unreported_deaths_ = false;
  return std::exchange(deaths_, {});
}

ProducerDeath BatchScheduler::Reclaim(uint32_t id) {
  CheckProducer(id);
  const std::lock_guard lock(mutex_);
  const ProducerDeath death = ReclaimLocked(id);
  WakeConsumer();  // it may have been the last at work on a batch that is to be made anew
  return death;
}

ProducerDeath BatchScheduler::ReclaimLocked(uint32_t id) {
  watch_.Remove(id);
  retired_[id] = false;
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
    const bool closed =
        slots_.IsDraining(slot) || std::any_of(in_flight_.begin(), in_flight_.end(), [&](const Flight& flight) {
          return flight.slot == slot && flight.sequence == sequence && flight.remake;
        });
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const uint64_t bit = uint64_t{1} << (chunk % 64);
      if (!Holds(header, sequence, chunk, id)) {
        continue;
      }
      static_cast<HeldClaim&>(death) = Describe(header, chunk, record, id);
      death.busy = true;
      if (closed) {
        header.done[chunk / 64].fetch_or(bit);
        continue;
      }
      if (death.at_row && header.deaths[chunk].load(std::memory_order_relaxed) < 255) {
        header.deaths[chunk].fetch_add(1, std::memory_order_relaxed);
      }
      if (MakesBatch(death.kind)) {
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
  stats.ready_batches = static_cast<uint32_t>(
      std::count_if(in_flight_.begin(), in_flight_.end(), [&](const Flight& flight) { return IsComplete(flight); }));
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
