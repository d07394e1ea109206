#include "framework/allocation.h"

#include <utility>

#include "framework/errors.h"
#include "framework/memory_pool.h"

namespace headrace {

Allocation::Allocation(void* data, size_t size, Deleter deleter)
    : data_(data), size_(size), deleter_(std::move(deleter)) {}

Allocation::~Allocation() {
  if (on_heap_ && whole_ == nullptr) {
    MemoryPool::Free(data_);
  } else if (deleter_) {
    deleter_(data_);
  }
}

std::shared_ptr<Allocation> Allocation::OnHeap(size_t size) {
  void* data = MemoryPool::Allocate(size);
  HR_ENFORCE(data != nullptr, ResourceExhausted, "cannot allocate ", size, " bytes of memory");
  // Returns the memory if the Allocation itself cannot be made.
  std::unique_ptr<void, void (*)(void*)> guard(data, &MemoryPool::Free);
  auto allocation = std::allocate_shared<Allocation>(PoolAllocator<Allocation>(), data, size, nullptr);
  allocation->on_heap_ = true;
  (void)guard.release();  // NOLINT(bugprone-unused-return-value): the allocation has it now
  return allocation;
}

std::shared_ptr<Allocation> Allocation::Scratch(size_t size) {
  void* data = MemoryPool::AllocateScratch(size);
  HR_ENFORCE(data != nullptr, ResourceExhausted, "cannot allocate ", size, " bytes of memory");
  return std::allocate_shared<Allocation>(PoolAllocator<Allocation>(), data, size,
                                          [size](void* memory) { MemoryPool::FreeScratch(memory, size); });
}

std::shared_ptr<Allocation> Allocation::Part(std::shared_ptr<Allocation> whole, size_t offset, size_t size) {
  HR_ENFORCE(whole != nullptr, InvalidArgument, "expected memory to take a part of, got none");
  HR_ENFORCE(whole->on_heap_ && offset <= whole->size_ && size <= whole->size_ - offset, InvalidArgument, "bytes [",
             offset, ", ", offset + size, ") are not within heap memory of ", whole->size_, " bytes");
  auto part = std::allocate_shared<Allocation>(PoolAllocator<Allocation>(),
                                               static_cast<std::byte*>(whole->data_) + offset, size, nullptr);
  part->on_heap_ = true;
  part->whole_ = std::move(whole);
  return part;
}

std::shared_ptr<Allocation> Allocation::Foreign(void* data, size_t size, Deleter deleter) {
  HR_ENFORCE(data != nullptr || size == 0, InvalidArgument, "foreign memory of ", size, " bytes has no address");
  return std::make_shared<Allocation>(data, size, std::move(deleter));
}

}  // namespace headrace
