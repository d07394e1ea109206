// The memory of the places that a dataset fills (`__getitem__(index, out)`).
//
// A place is a view of a row of a slot, and other batches use the slot later. But a dataset may keep a place, or a view
// of it, beyond the call. So places are not views of the arena's own mapping: each producer maps the slots that it
// fills a second time, and has Python count the references to that mapping. If any are left when the rows of a claim
// are complete, the pages behind the mapping are replaced by private ones with the same content before the slot can be
// reused, and the holders have memory of their own from then on. Otherwise the mapping serves the next batch in the
// slot at no cost.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "reader/shared_memory/arena/arena.h"

namespace headrace::python {

// Thread-safety: needs the GIL; belongs to one producer.
class PlaceWindows {
 public:
  explicit PlaceWindows(const shared_memory::Arena& arena) : arena_(arena) {}

  // Maps the first `bytes` bytes of a slot unless they are mapped already. Throws ResourceExhausted if there is no
  // address space.
  void Open(uint32_t slot, size_t bytes);
  // For an open slot: the start of its window, and the object that arrays over the window must have as their base.
  std::byte* begin(uint32_t slot) const { return windows_.at(slot).begin; }
  pybind11::object owner(uint32_t slot) const { return windows_.at(slot).owner; }
  // The rows filled through the window are complete: gives those who kept views of it memory of their own. Does nothing
  // if the slot is not open. If there is no memory for what was kept, it is zero from now on, so that nobody sees there
  // the batches that follow, and ResourceExhausted is thrown.
  void Close(uint32_t slot);

 private:
  struct Window {
    pybind11::capsule owner;  // unmaps it
    std::byte* begin;
    size_t bytes;
  };

  const shared_memory::Arena& arena_;
  std::unordered_map<uint32_t, Window> windows_;  // by slot
};

}  // namespace headrace::python
