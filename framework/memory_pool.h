// Memory that is used again from run to run.
//
// A prepared program has a pool. Memory allocated on the program's thread during a run comes from it and, whenever and
// wherever it is freed, goes back there, so that a warm run takes nothing from the heap: memory of tensors, scratch
// memory of kernels, and containers with a PoolAllocator. Outside of runs memory comes from the heap.
//
// Thread-safety: all methods may be called from any thread.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "framework/export.h"

namespace headrace {

class HEADRACE_API MemoryPool {
 public:
  // Alignment of all memory, in bytes: a cache line, and the widest vector register.
  static constexpr size_t kAlignment = 64;
  // `bytes`, rounded up to the next multiple of it.
  static constexpr size_t RoundedUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  MemoryPool();
  // Memory in use stays valid, and goes to the heap when it is freed.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // `bytes` of uninitialised memory from the pool that this thread uses, or from the heap; nullptr if there is none.
  static void* Allocate(size_t bytes) noexcept;
  // `memory` came from Allocate, on any thread.
  static void Free(void* memory) noexcept;

  // Returns unused memory to the heap.
  void Trim() noexcept;

  // Bytes taken from the heap and not returned, in use or not.
  size_t held() const;

  // Memory that an operator needs until it returns, freed in the opposite order, on the same thread: from the memory
  // that has been lent to this thread, or else as by Allocate. `bytes` are those that it was allocated with.
  static void* AllocateScratch(size_t bytes) noexcept;
  static void FreeScratch(void* memory, size_t bytes) noexcept;
  // Lends this thread `bytes` at `memory`, aligned to kAlignment, for scratch memory until the next call. None may be
  // in use.
  static void LendScratch(std::byte* memory, size_t bytes) noexcept;
  // The most scratch memory in use at once since LendScratch.
  static size_t MostScratch() noexcept;

  // The pool that this thread uses; nullptr: none.
  static MemoryPool* Current() noexcept;

  // The memory that a thread has been lent.
  struct ScratchState {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
    std::byte* top = nullptr;  // of the part in use
    size_t used = 0;           // wherever it is
    size_t most = 0;
  };

  // Makes this thread use `pool`, with no scratch memory lent, for as long as this lives; nullptr: none.
  class HEADRACE_API Use {
   public:
    explicit Use(MemoryPool* pool) noexcept;
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    MemoryPool* const outer_;
    const ScratchState outer_scratch_;
  };

  class Core;

 private:
  Core* const core_;  // shared with the blocks in use
};

// For containers: memory from MemoryPool::Allocate.
template <typename T>
struct PoolAllocator {
  using value_type = T;
  static_assert(alignof(T) <= MemoryPool::kAlignment);

  PoolAllocator() = default;
  template <typename U>
  PoolAllocator(const PoolAllocator<U>&) noexcept {}  // NOLINT(google-explicit-constructor): as all allocators

  T* allocate(size_t n) {
    if (n > static_cast<size_t>(-1) / sizeof(T)) {
      throw std::bad_array_new_length();
    }
    void* memory = MemoryPool::Allocate(n * sizeof(T));
    if (memory == nullptr) {
      throw std::bad_alloc();
    }
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) noexcept { MemoryPool::Free(static_cast<void*>(memory)); }

  template <typename U>
  bool operator==(const PoolAllocator<U>&) const noexcept {
    return true;
  }
};

// For memory that a kernel or an operator needs during a run.
template <typename T>
using PoolVector = std::vector<T, PoolAllocator<T>>;

}  // namespace headrace
