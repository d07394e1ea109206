#include "framework/allocation.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "framework/errors.h"

namespace headrace {
namespace {

TEST(Allocation, HeapMemoryIsAligned) {
  for (const size_t size : {0, 1, 63, 4097}) {
    const auto allocation = Allocation::OnHeap(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(allocation->data()) % Allocation::kAlignment, 0U);
    EXPECT_EQ(allocation->size(), size);
    EXPECT_TRUE(allocation->on_heap());
  }
}

TEST(Allocation, ImpossibleSizeIsResourceExhausted) {
  EXPECT_THROW(Allocation::OnHeap(size_t{1} << 62), ResourceExhausted);
}

TEST(Allocation, ForeignMemoryIsReleasedOnceByItsLastHolder) {
  int memory = 0;
  int released = 0;
  auto first = Allocation::Foreign(&memory, sizeof(memory), [&](void* data) {
    EXPECT_EQ(data, &memory);
    ++released;
  });
  EXPECT_FALSE(first->on_heap());
  auto second = first;
  first.reset();
  EXPECT_EQ(released, 0);
  second.reset();
  EXPECT_EQ(released, 1);
}

TEST(Allocation, ForeignMemoryNeedsNoDeleter) {
  int memory = 0;
  EXPECT_NO_THROW(Allocation::Foreign(&memory, sizeof(memory), nullptr).reset());
}

TEST(Allocation, ForeignMemoryNeedsAnAddress) {
  EXPECT_THROW(Allocation::Foreign(nullptr, 1, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace headrace
