// Replaces operator new and delete of the program.
#include "tests/fuzz/memory_limit.h"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> in_use{0};
std::atomic<size_t> limit_of_one{SIZE_MAX};
std::atomic<size_t> limit_of_all{SIZE_MAX};

void* Allocate(size_t size, size_t alignment) noexcept {
  if (size > limit_of_one.load(std::memory_order_relaxed) ||
      in_use.load(std::memory_order_relaxed) + size > limit_of_all.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment < sizeof(void*) ? sizeof(void*) : alignment, size == 0 ? 1 : size) != 0) {
    return nullptr;
  }
  in_use.fetch_add(malloc_usable_size(memory), std::memory_order_relaxed);
  return memory;
}

void* AllocateOrThrow(size_t size, size_t alignment) {
  void* memory = Allocate(size, alignment);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

void Free(void* memory) noexcept {
  if (memory != nullptr) {
    in_use.fetch_sub(malloc_usable_size(memory), std::memory_order_relaxed);
    std::free(memory);
  }
}

constexpr size_t kDefault = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

namespace headrace {

MemoryLimit::MemoryLimit(size_t of_one, size_t of_all) {
  limit_of_all = in_use + of_all;
  limit_of_one = of_one;
}

MemoryLimit::~MemoryLimit() {
  limit_of_one = SIZE_MAX;
  limit_of_all = SIZE_MAX;
}

}  // namespace headrace

void* operator new(size_t size) { return AllocateOrThrow(size, kDefault); }
void* operator new[](size_t size) { return AllocateOrThrow(size, kDefault); }
void* operator new(size_t size, std::align_val_t alignment) {
  return AllocateOrThrow(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return AllocateOrThrow(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return Allocate(size, kDefault); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return Allocate(size, kDefault); }
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return Allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return Allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { Free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept { Free(memory); }
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept { Free(memory); }
