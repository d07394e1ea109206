// The memory of slots that no producer has (arena.h has all of it, batch_layout.h says where arrays are in a slot):
// locked for CUDA while the consumer has them, kept until devices have read them, and returned to the system when they
// are not needed.
//
// Thread-safety: any thread; all calls may take the driver's or the kernel's time, so make none of them under a mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reader/shared_memory/arena/arena.h"
#include "reader/shared_memory/cuda/device_fence.h"
#include "reader/shared_memory/cuda/pinned_memory.h"

namespace headrace::shared_memory {

class SlotMemory {
 public:
  // `pin`: page-lock what the consumer takes; `fence`: and wait for devices before a slot is used again. `arena` must
  // outlive it; its destructor waits for the devices.
  SlotMemory(Arena& arena, bool pin, bool fence);

  bool pins() const { return pinned_ != nullptr; }
  // Why nothing is page-locked although it was asked for; empty if nothing prevents it, as far as is known.
  std::string pinning_problem() const { return pins() ? pinned_->problem() : std::string(); }
  size_t pinned_bytes() const { return pins() ? pinned_->pinned_bytes() : 0; }

  // Locks the slot's leaves, which end at `end`. Returns where the locked part ends; 0 without pin.
  size_t Pin(uint32_t slot, size_t end);
  // Returns the memory of slots to the system. Nobody may use them.
  void Release(const std::vector<uint32_t>& slots);

  // The consumer has released the slot. Returns whether devices may still read it: then TakeEnded hands it over.
  bool Fence(uint32_t slot);
  // The slots that devices have finished with. `urgent`: nothing can go on without one.
  std::vector<uint32_t> TakeEnded(bool urgent);
  // How many slots devices may still read.
  size_t fenced() const { return fence_ == nullptr ? 0 : fence_->held(); }

 private:
  // Start of the page-locked part of a slot: the leaves, and the indices before them.
  std::byte* PinnedBegin(uint32_t slot) const { return arena_.slot_data(slot) + kDataOffset; }

  Arena& arena_;
  const std::unique_ptr<PinnedMemory> pinned_;  // null without pin
  const std::unique_ptr<DeviceFence> fence_;    // null without pin or fence. Destroyed before pinned_
};

}  // namespace headrace::shared_memory
