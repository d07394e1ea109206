#include "reader/shared_memory/batches/slot_pool.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace headrace::shared_memory {

SlotPool::SlotPool(const Arena& arena) : arena_(arena) {}

std::optional<uint32_t> SlotPool::Acquire() {
  if (free_.empty()) {
    FreeDrained();
  }
  uint32_t slot = 0;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
    idle_ = std::min(idle_, free_.size());
  } else if (!cold_.empty()) {
    slot = cold_.back();
    cold_.pop_back();
  } else if (end_ < arena_.slot_count()) {
    slot = end_++;
  } else {
    return std::nullopt;
  }
  return slot;
}

void SlotPool::Drain(const Draining& draining) { draining_.push_back(draining); }

void SlotPool::Free(uint32_t slot, bool held) {
  held_ -= held ? 1 : 0;
  free_.push_back(slot);
}

bool SlotPool::IsLetGo(const Draining& draining) const {
  const SlotHeader& header = arena_.slot(draining.slot);
  for (uint32_t chunk = 0; chunk < draining.facts.chunks; ++chunk) {
    const uint64_t word = header.chunk_words[chunk].load();
    if (IsClaimed(word, draining.facts.sequence) && IsValid(word, draining.facts.sequence)) {
      return false;
    }
  }
  if (draining.written_over) {
    const ProducerRecord* records = arena_.control().producers;
    return std::none_of(records, records + kMaxProducers, [&](const ProducerRecord& record) {
      return record.busy.load(std::memory_order_acquire) != 0 &&
             record.sequence.load(std::memory_order_relaxed) == draining.facts.sequence;
    });
  }
  return true;
}

void SlotPool::FreeDrained() {
  std::erase_if(draining_, [this](const Draining& draining) {
    const bool free = IsLetGo(draining);
    if (free) {
      Free(draining.slot, false);
    }
    return free;
  });
}

std::vector<uint32_t> SlotPool::TakeIdle() {
  const auto end = free_.begin() + static_cast<std::ptrdiff_t>(idle_);
  std::vector<uint32_t> idle(free_.begin(), end);
  free_.erase(free_.begin(), end);
  idle_ = free_.size();
  return idle;
}

std::vector<uint32_t> SlotPool::TakeFree() {
  idle_ = 0;
  return std::exchange(free_, {});
}

void SlotPool::AddCold(const std::vector<uint32_t>& slots) { cold_.insert(cold_.end(), slots.begin(), slots.end()); }

}  // namespace headrace::shared_memory
