// Tracks which slots of an arena are in use, and picks the one to use next: the one freed last, so that only a few
// slots occupy memory and those stay warm.
//
// Thread-safety: none; BatchScheduler guards its pool with its mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "framework/export.h"
#include "reader/shared_memory/arena/arena.h"

namespace headrace::shared_memory {

class HEADRACE_API SlotPool {
 public:
  // A slot whose batch will not be delivered, and in which a producer may still be at work.
  struct Draining {
    uint32_t slot;
    BatchFacts facts;
    bool written_over;  // its words cannot be trusted to name that producer
  };

  explicit SlotPool(const Arena& arena);

  // A slot for a batch to be opened, or nothing if all are in use.
  std::optional<uint32_t> Acquire();
  // FreeDrained frees the slot once its last claimant is done. The batch's claims must be closed.
  void Drain(const Draining& draining);
  void FreeDrained();
  // The consumer holds one more slot, until Free.
  void Hold() { ++held_; }
  // The slot may be used again. `held`: the consumer had it.
  void Free(uint32_t slot, bool held);

  // Takes out the free slots not used since the last call, so that their memory can be released.
  std::vector<uint32_t> TakeIdle();
  // Takes out all free slots.
  std::vector<uint32_t> TakeFree();
  // Puts them back, without memory.
  void AddCold(const std::vector<uint32_t>& slots);

  const std::vector<Draining>& draining() const { return draining_; }
  uint32_t held() const { return held_; }
  uint32_t with_memory() const { return end_ - static_cast<uint32_t>(cold_.size()); }

 private:
  bool IsLetGo(const Draining& draining) const;

  const Arena& arena_;
  std::vector<Draining> draining_;
  std::vector<uint32_t> free_;  // last in, first out
  size_t idle_ = 0;             // the first `idle_` elements of free_ have not been used since TakeIdle
  std::vector<uint32_t> cold_;
  uint32_t end_ = 0;  // above all slots used so far
  uint32_t held_ = 0;
};

}  // namespace headrace::shared_memory
