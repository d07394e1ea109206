#include "framework/allocation.h"

#include <new>
#include <utility>

#include "framework/errors.h"

namespace headrace {

Allocation::Allocation(void* data, size_t size, Deleter deleter)
    : data_(data), size_(size), deleter_(std::move(deleter)) {}

Allocation::~Allocation() {
  if (on_heap_) {
    ::operator delete(data_, std::align_val_t{kAlignment});
  } else if (deleter_) {
    deleter_(data_);
  }
}

std::shared_ptr<Allocation> Allocation::OnHeap(size_t size) {
  void* data = ::operator new(size == 0 ? 1 : size, std::align_val_t{kAlignment}, std::nothrow);
  HR_ENFORCE(data != nullptr, ResourceExhausted, "cannot allocate ", size, " bytes of memory");
  // Returns the memory if the Allocation itself cannot be made.
  std::unique_ptr<void, void (*)(void*)> guard(data,
                                               [](void* p) { ::operator delete(p, std::align_val_t{kAlignment}); });
  auto allocation = std::make_shared<Allocation>(data, size, nullptr);
  allocation->on_heap_ = true;
  (void)guard.release();  // NOLINT(bugprone-unused-return-value): the allocation has it now
  return allocation;
}

std::shared_ptr<Allocation> Allocation::Foreign(void* data, size_t size, Deleter deleter) {
  HR_ENFORCE(data != nullptr || size == 0, InvalidArgument, "foreign memory of ", size, " bytes has no address");
  return std::make_shared<Allocation>(data, size, std::move(deleter));
}

}  // namespace headrace
