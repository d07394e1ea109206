// Which slots of an arena are in use, and which of the others to use next: the one that became free last, so that few
// slots have memory and those are warm.
//
// Thread-safety: none; BatchScheduler guards its pool with its mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reader/shared_memory/arena.h"

namespace headrace::shared_memory {

class SlotPool {
 public:
  explicit SlotPool(const Arena& arena);

  // A slot for a batch to be opened, or nothing if all are in use.
  std::optional<uint32_t> Acquire();
  // The batch will not be delivered: FreeDrained frees its slot once the last claimant is done.
  void Drain(uint32_t slot) { states_[slot] = State::kDraining; }
  void FreeDrained();
  // The consumer has the batch, until Free.
  void Hold(uint32_t slot);
  // The slot may be used again.
  void Free(uint32_t slot);

  // Takes out the free slots that were not used since the last call, for their memory to be given back.
  std::vector<uint32_t> TakeIdle();
  // They are back, without memory.
  void AddCold(const std::vector<uint32_t>& slots);

  bool IsOpen(uint32_t slot) const { return states_[slot] == State::kOpen; }
  bool IsDraining(uint32_t slot) const { return states_[slot] == State::kDraining; }
  uint32_t held() const { return held_; }
  // Slots that were ever used are below.
  uint32_t end() const { return end_; }
  uint32_t with_memory() const { return end_ - static_cast<uint32_t>(cold_.size()); }

 private:
  enum class State : uint8_t { kUnused, kFree, kOpen, kDraining, kHeld };

  const Arena& arena_;
  std::vector<State> states_;
  std::vector<uint32_t> free_;  // last in, first out
  size_t idle_ = 0;             // so many of free_, from its begin on, were not used since TakeIdle
  std::vector<uint32_t> cold_;
  uint32_t end_ = 0;
  uint32_t held_ = 0;
};

}  // namespace headrace::shared_memory
