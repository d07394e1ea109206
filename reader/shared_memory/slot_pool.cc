#include "reader/shared_memory/slot_pool.h"

#include <algorithm>
#include <cstddef>

#include "reader/shared_memory/batch_producer.h"

namespace headrace::shared_memory {

SlotPool::SlotPool(const Arena& arena) : arena_(arena), states_(arena.slot_count(), State::kUnused) {}

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
  } else if (end_ < states_.size()) {
    slot = end_++;
  } else {
    return std::nullopt;
  }
  states_[slot] = State::kOpen;
  return slot;
}

void SlotPool::Hold(uint32_t slot) {
  states_[slot] = State::kHeld;
  ++held_;
}

void SlotPool::Free(uint32_t slot) {
  held_ -= states_[slot] == State::kHeld ? 1 : 0;
  states_[slot] = State::kFree;
  free_.push_back(slot);
}

void SlotPool::FreeDrained() {
  for (uint32_t slot = 0; slot < end_; ++slot) {
    if (states_[slot] == State::kDraining && AllDone(arena_.slot(slot))) {
      Free(slot);
    }
  }
}

std::vector<uint32_t> SlotPool::TakeIdle() {
  const auto end = free_.begin() + static_cast<std::ptrdiff_t>(idle_);
  std::vector<uint32_t> idle(free_.begin(), end);
  free_.erase(free_.begin(), end);
  idle_ = free_.size();
  return idle;
}

void SlotPool::AddCold(const std::vector<uint32_t>& slots) { cold_.insert(cold_.end(), slots.begin(), slots.end()); }

}  // namespace headrace::shared_memory
