// Statistics of the scheduler and its producers.
#include <algorithm>

#include "reader/shared_memory/batch_scheduler.h"
#include "reader/shared_memory/futex.h"

namespace headrace::shared_memory {

SchedulerStats BatchScheduler::stats() const {
  const OwnerLock lock(*this);
  SchedulerStats stats = stats_;
  for (uint32_t id = 0; id < producers_end_; ++id) {
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
  stats.prefetch = depth_.value();
  stats.open_batches = static_cast<uint32_t>(open_.size());
  stats.ready_batches = CountReady();
  stats.held_slots = slots_.held();
  stats.slots_used = slots_.with_memory();
  stats.resident_bytes = arena_->ResidentBytes();
  stats.pinned_bytes = pinned_ == nullptr ? 0 : pinned_->pinned_bytes();
  return stats;
}

uint32_t BatchScheduler::CountReady() const {
  return static_cast<uint32_t>(std::count_if(open_.begin(), open_.end(), [this](const OpenBatch& batch) {
    return !batch.has_slot || batch.concluded || (!batch.remake && batch.IsDoneNow(arena_->slot(batch.slot)));
  }));
}

void BatchScheduler::Note(TraceKind kind, uint32_t slot, const BatchFacts& facts, uint64_t ns) {
  trace_.Write({kind, TraceEvent::kScheduler, ns, ns, facts.epoch, facts.batch, facts.stream, slot, 0, facts.rows});
}

std::vector<TraceEvent> BatchScheduler::Trace() const {
  std::vector<TraceEvent> events;
  arena_->trace(kMaxProducers).Read(TraceEvent::kScheduler, &events);
  uint32_t end = 0;
  {
    const OwnerLock lock(*this);
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
