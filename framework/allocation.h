// A piece of memory with an owner: heap memory, a slot of the shared-memory arena, or foreign memory (a NumPy
// array, say).
//
// Thread-safety: immutable after construction; the memory itself is guarded by its owners.
// Lifetime: held by std::shared_ptr; the last holder's release runs the deleter, on the thread that drops it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "framework/export.h"
#include "framework/memory_pool.h"

namespace headrace {

class HEADRACE_API Allocation {
 public:
  // Alignment in bytes of heap memory: a cache line, and the widest vector register.
  static constexpr size_t kAlignment = MemoryPool::kAlignment;

  // Called once with the memory when the last holder releases it. Must not throw.
  using Deleter = std::function<void(void*)>;

  // `size` bytes of uninitialised heap memory, during a run from its MemoryPool. Throws ResourceExhausted with the
  // number of bytes if there is none.
  static std::shared_ptr<Allocation> OnHeap(size_t size);

  // As MemoryPool::AllocateScratch, and to be dropped like that. Throws as OnHeap.
  static std::shared_ptr<Allocation> Scratch(size_t size);

  // Memory owned elsewhere, kept alive until `deleter` runs (an empty one: nothing to run).
  static std::shared_ptr<Allocation> Foreign(void* data, size_t size, Deleter deleter);

  // `size` bytes of `whole`, heap memory, from byte `offset` on. Keeps `whole` alive; counts as heap memory itself:
  // whose parts overlap must see to it that one at a time is in use.
  static std::shared_ptr<Allocation> Part(std::shared_ptr<Allocation> whole, size_t offset, size_t size);

  Allocation(void* data, size_t size, Deleter deleter);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }
  // Whether OnHeap or Part made it: memory that a tensor may reuse for something else once it is the only holder.
  bool on_heap() const { return on_heap_; }

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  void* data_;
  size_t size_;
  Deleter deleter_;
  std::shared_ptr<Allocation> whole_;  // of a part
  bool on_heap_ = false;
};

}  // namespace headrace
