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
  // A slot whose batch will not be delivered, and in which somebody may still be at work.
  struct Draining {
    uint32_t slot;
    BatchFacts facts;
    bool written_over;  // its words cannot be trusted to say who is
  };

  explicit SlotPool(const Arena& arena);

  // A slot for a batch to be opened, or nothing if all are in use.
  std::optional<uint32_t> Acquire();
  // FreeDrained frees the slot once the last claimant is done. Nothing of the batch can be claimed any more.
  void Drain(const Draining& draining);
  void FreeDrained();
  // The consumer has the batch, until Free.
  void Hold() { ++held_; }
  // The slot, which the consumer had if `held`, may be used again.
  void Free(uint32_t slot, bool held);

  // Takes out the free slots that were not used since the last call, for their memory to be given back.
  std::vector<uint32_t> TakeIdle();
  // Takes out all free slots.
  std::vector<uint32_t> TakeFree();
  // They are back, without memory.
  void AddCold(const std::vector<uint32_t>& slots);

  const std::vector<Draining>& draining() const { return draining_; }
  uint32_t held() const { return held_; }
  uint32_t with_memory() const { return end_ - static_cast<uint32_t>(cold_.size()); }

 private:
  bool IsLetGo(const Draining& draining) const;

  const Arena& arena_;
  std::vector<Draining> draining_;
  std::vector<uint32_t> free_;  // last in, first out
  size_t idle_ = 0;             // so many of free_, from its begin on, were not used since TakeIdle
  std::vector<uint32_t> cold_;
  uint32_t end_ = 0;  // slots that were ever used are below
  uint32_t held_ = 0;
};

}  // namespace headrace::shared_memory
