#include "framework/memory_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "framework/thread_annotations.h"

namespace headrace {

// What lies before each piece of memory.
struct alignas(MemoryPool::kAlignment) PoolBlock {
  MemoryPool::Core* owner;  // nullptr: the heap
  size_t size;              // of the block, without this
  PoolBlock* next;          // in the list of free ones
};

namespace {

// Small blocks have a power of two bytes and lie in a list for each size; larger ones have the size that was asked for
// and are found by best fit.
constexpr size_t kMaxSmall = 64 * 1024;
constexpr size_t kSmallSizes = std::bit_width(kMaxSmall / MemoryPool::kAlignment);
// A block that is larger by more than this factor is not taken.
constexpr size_t kMaxWaste = 2;

PoolBlock* NewBlock(MemoryPool::Core* owner, size_t size) noexcept {
  if (size > PTRDIFF_MAX - sizeof(PoolBlock)) {
    return nullptr;
  }
  void* memory = ::operator new(size + sizeof(PoolBlock), std::align_val_t{MemoryPool::kAlignment}, std::nothrow);
  return memory == nullptr ? nullptr : new (memory) PoolBlock{owner, size, nullptr};
}

void DeleteBlock(PoolBlock* block) noexcept { ::operator delete(block, std::align_val_t{MemoryPool::kAlignment}); }

size_t SmallIndex(size_t bytes) { return std::bit_width((bytes - 1) / MemoryPool::kAlignment); }

thread_local MemoryPool* current_pool = nullptr;
thread_local MemoryPool::ScratchState current_scratch;

}  // namespace

// What outlives the pool as long as a block is in use.
class MemoryPool::Core {
 public:
  PoolBlock* Take(size_t bytes) noexcept {
    const MutexLock lock(mutex_);
    PoolBlock* block = bytes <= kMaxSmall ? TakeSmall(bytes) : TakeLarge(bytes);
    if (block == nullptr) {
      const size_t size = bytes <= kMaxSmall ? kAlignment << SmallIndex(bytes) : bytes;
      block = NewBlock(this, size);
      if (block == nullptr) {
        return nullptr;
      }
      held_ += size;
    }
    ++blocks_;
    return block;
  }

  void GiveBack(PoolBlock* block) noexcept {
    bool last = false;
    {
      const MutexLock lock(mutex_);
      --blocks_;
      if (closed_) {
        Drop(block);
        last = blocks_ == 0;
      } else if (block->size <= kMaxSmall) {
        PoolBlock*& first = small_[SmallIndex(block->size)];
        block->next = first;
        first = block;
      } else {
        PoolBlock** place = &large_;
        while (*place != nullptr && (*place)->size < block->size) {
          place = &(*place)->next;
        }
        block->next = *place;
        *place = block;
      }
    }
    if (last) {
      delete this;
    }
  }

  void Trim() noexcept {
    const MutexLock lock(mutex_);
    DropFree();
  }

  size_t held() const {
    const MutexLock lock(mutex_);
    return held_;
  }

  void Close() noexcept {
    bool last = false;
    {
      const MutexLock lock(mutex_);
      closed_ = true;
      DropFree();
      last = blocks_ == 0;
    }
    if (last) {
      delete this;
    }
  }

 private:
  PoolBlock* TakeSmall(size_t bytes) noexcept HR_REQUIRES(mutex_) {
    PoolBlock*& first = small_[SmallIndex(bytes)];
    PoolBlock* block = first;
    if (block != nullptr) {
      first = block->next;
    }
    return block;
  }

  PoolBlock* TakeLarge(size_t bytes) noexcept HR_REQUIRES(mutex_) {
    PoolBlock** place = &large_;
    while (*place != nullptr && (*place)->size < bytes) {
      place = &(*place)->next;
    }
    PoolBlock* block = *place;
    if (block == nullptr || block->size / kMaxWaste > bytes) {
      return nullptr;
    }
    *place = block->next;
    return block;
  }

  void DropFree() noexcept HR_REQUIRES(mutex_) {
    for (PoolBlock*& first : small_) {
      DropList(&first);
    }
    DropList(&large_);
  }

  void DropList(PoolBlock** first) noexcept HR_REQUIRES(mutex_) {
    while (*first != nullptr) {
      PoolBlock* block = *first;
      *first = block->next;
      Drop(block);
    }
  }

  void Drop(PoolBlock* block) noexcept HR_REQUIRES(mutex_) {
    held_ -= block->size;
    DeleteBlock(block);
  }

  mutable Mutex mutex_;
  std::array<PoolBlock*, kSmallSizes> small_ HR_GUARDED_BY(mutex_){};
  PoolBlock* large_ HR_GUARDED_BY(mutex_) = nullptr;  // the smallest first
  size_t held_ HR_GUARDED_BY(mutex_) = 0;
  size_t blocks_ HR_GUARDED_BY(mutex_) = 0;  // in use
  bool closed_ HR_GUARDED_BY(mutex_) = false;
};

MemoryPool::MemoryPool() : core_(new Core) {}
MemoryPool::~MemoryPool() { core_->Close(); }

void* MemoryPool::Allocate(size_t bytes) noexcept {
  const size_t size = std::max<size_t>(bytes, 1);
  PoolBlock* block = current_pool == nullptr ? NewBlock(nullptr, size) : current_pool->core_->Take(size);
  return block == nullptr ? nullptr : block + 1;
}

void MemoryPool::Free(void* memory) noexcept {
  if (memory == nullptr) {
    return;
  }
  PoolBlock* block = static_cast<PoolBlock*>(memory) - 1;
  if (block->owner == nullptr) {
    DeleteBlock(block);
  } else {
    block->owner->GiveBack(block);
  }
}

void MemoryPool::Trim() noexcept { core_->Trim(); }
size_t MemoryPool::held() const { return core_->held(); }
MemoryPool* MemoryPool::Current() noexcept { return current_pool; }

void* MemoryPool::AllocateScratch(size_t bytes) noexcept {
  if (bytes > PTRDIFF_MAX) {
    return nullptr;
  }
  const size_t size = RoundedUp(std::max<size_t>(bytes, 1));
  ScratchState& scratch = current_scratch;
  void* memory = nullptr;
  if (size <= static_cast<size_t>(scratch.end - scratch.top)) {
    memory = scratch.top;
    scratch.top += size;
  } else {
    memory = Allocate(bytes);
  }
  scratch.used += memory == nullptr ? 0 : size;
  scratch.most = std::max(scratch.most, scratch.used);
  return memory;
}

void MemoryPool::FreeScratch(void* memory, size_t bytes) noexcept {
  const size_t size = RoundedUp(std::max<size_t>(bytes, 1));
  ScratchState& scratch = current_scratch;
  auto* begin = static_cast<std::byte*>(memory);
  scratch.used -= size;
  if (begin < scratch.begin || begin >= scratch.end) {
    Free(memory);
  } else if (begin + size == scratch.top) {
    scratch.top = begin;
  }
}

void MemoryPool::LendScratch(std::byte* memory, size_t bytes) noexcept {
  current_scratch = {memory, memory + bytes, memory, 0, 0};
}

size_t MemoryPool::MostScratch() noexcept { return current_scratch.most; }

MemoryPool::Use::Use(MemoryPool* pool) noexcept : outer_(current_pool), outer_scratch_(current_scratch) {
  current_pool = pool;
  current_scratch = {};
}
MemoryPool::Use::~Use() {
  current_pool = outer_;
  current_scratch = outer_scratch_;
}

}  // namespace headrace
