// One shared mapping for the life of a loader: a control block (control_block.h), the trace rings (trace.h), and an
// array of slots (slot.h) that hold one batch each.
//
// The memory is a memfd: it has no name, is not limited by the size of /dev/shm, and vanishes with the last process
// that maps it. It is sparse: a slot reserves `slot_bytes` of address space and uses only the pages that a batch has
// touched, so a larger batch fits without a new mapping. It is sealed against resizing, so no process can make
// another's mapping fault.
//
// Everything in shared memory is trivially copyable or a lock-free atomic, and refers to the rest by offsets and
// numbers, never by pointers.
//
// Thread-safety: an Arena is immutable after construction and may be used by any thread; its content is guarded as the
// comments of the structs say. Any thread may call Create and Attach, even while another one forks.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/export.h"
#include "reader/shared_memory/arena/control_block.h"
#include "reader/shared_memory/arena/slot.h"
#include "reader/shared_memory/arena/trace.h"

namespace headrace::shared_memory {

struct ArenaOptions {
  // Address space per slot, 1 MiB to 1 TiB, and the number of slots, at most kMaxSlots. Where address space is limited,
  // slots become smaller, but rather fewer than smaller than 256 MiB, as long as `fewest_slots` remain (0: all).
  size_t slot_bytes = size_t{4} << 30;
  uint32_t slot_count = 64;
  uint32_t fewest_slots = 0;
  IndexOrder order = IndexOrder::kSequential;
  uint64_t dataset_length = 0;
  uint64_t seed = 0;
  // How long producers and the consumer sleep, at most, before they look again: nothing hangs longer than this even if
  // a stray write undoes a wake-up or changes the words that they wait on.
  uint32_t recheck_ms = 1000;
  uint32_t trace_events = 0;  // kept per producer, at most kMaxTraceEvents; 0: no trace
};

// What to add to an error about a slot of that size that is too small: words on a limit of address space or of files,
// if there is one; else nothing.
HEADRACE_API std::string LimitHint(size_t slot_bytes);

class HEADRACE_API Arena {
 public:
  // Creates and maps an arena. Throws InvalidArgument for a count or size out of range, ResourceExhausted with the
  // number of bytes if the system gives no memory, IoError if a system call fails. Where address space is limited, half
  // of it is left to others.
  static std::shared_ptr<Arena> Create(const ArenaOptions& options);

  // The arena behind `fd`, which another process may have created; `fd` may be closed afterwards. All that attach in a
  // process share one mapping. Throws DataLoss if `fd` is not an arena, IoError if it is not a file, ResourceExhausted
  // if it cannot be mapped.
  static std::shared_ptr<Arena> Attach(int fd);

  // In the process that created it, releases the memory of all slots but those to keep, because processes that
  // inherited the mapping through a fork may live on.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int fd() const { return fd_; }
  ControlBlock& control() const { return *reinterpret_cast<ControlBlock*>(base_); }
  uint32_t slot_count() const { return slot_count_; }
  size_t slot_bytes() const { return slot_bytes_; }
  SlotHeader& slot(uint32_t index) const { return *reinterpret_cast<SlotHeader*>(slot_data(index)); }
  // Start of the slot.
  std::byte* slot_data(uint32_t index) const {
    return base_ + slots_offset_ + static_cast<size_t>(index) * slot_bytes_;
  }

  // The ring of a producer, or of the scheduler (kMaxProducers). Without a trace it records nothing.
  TraceRing trace(uint32_t producer) const;

  // Bytes of memory that all processes together use.
  size_t ResidentBytes() const;

  // Returns the memory of a slot from `begin` on, to `end` or to its end, to the system: whole pages only. Nobody may
  // be using it.
  void Release(uint32_t index, size_t begin, size_t end = SIZE_MAX);
  // A process that inherited the mapping reads the slot: its memory outlives the arena, until nobody maps it.
  void KeepAtEnd(uint32_t index) { kept_.push_back(index); }

 private:
  Arena() = default;
  static std::shared_ptr<Arena> MapExisting(int fd);
  // False, with errno, if the system refuses.
  bool Map(size_t bytes);

  int fd_ = -1;
  pid_t creator_ = -1;  // -1: another process
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  size_t slots_offset_ = 0;
  size_t slot_bytes_ = 0;
  uint32_t slot_count_ = 0;
  uint32_t trace_events_ = 0;
  std::vector<uint32_t> kept_;
};

}  // namespace headrace::shared_memory
