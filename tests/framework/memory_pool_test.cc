#include "framework/memory_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <thread>

#include "framework/lod_tensor.h"

namespace headrace {
namespace {

constexpr size_t kSmall = 100;
constexpr size_t kLarge = 1 << 20;

TEST(MemoryPool, GivesAlignedMemoryOfAnySize) {
  MemoryPool pool;
  const MemoryPool::Use use(&pool);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{64}, size_t{65}, size_t{65536}, size_t{65537}, kLarge}) {
    void* memory = MemoryPool::Allocate(size);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % MemoryPool::kAlignment, 0U);
    std::memset(memory, 1, size);
    MemoryPool::Free(memory);
  }
  EXPECT_EQ(MemoryPool::Allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(MemoryPool::Allocate(SIZE_MAX - 100), nullptr);
  MemoryPool::Free(nullptr);
}

TEST(MemoryPool, UsesAgainWhatWasFreed) {
  MemoryPool pool;
  const MemoryPool::Use use(&pool);
  for (const size_t size : {kSmall, kLarge}) {
    void* first = MemoryPool::Allocate(size);
    void* second = MemoryPool::Allocate(size);
    EXPECT_NE(first, second);
    const size_t held = pool.held();
    MemoryPool::Free(first);
    EXPECT_EQ(MemoryPool::Allocate(size), first);
    MemoryPool::Free(first);
    MemoryPool::Free(second);
    EXPECT_EQ(pool.held(), held);
  }
}

TEST(MemoryPool, DoesNotSpendALargeBlockOnMuchLess) {
  MemoryPool pool;
  const MemoryPool::Use use(&pool);
  void* large = MemoryPool::Allocate(kLarge);
  MemoryPool::Free(large);
  void* less = MemoryPool::Allocate(kLarge / 4);
  EXPECT_NE(less, large);
  void* about = MemoryPool::Allocate(kLarge - kSmall);
  EXPECT_EQ(about, large);
  MemoryPool::Free(less);
  MemoryPool::Free(about);
}

TEST(MemoryPool, TrimReturnsWhatIsNotInUse) {
  MemoryPool pool;
  const MemoryPool::Use use(&pool);
  EXPECT_EQ(pool.held(), 0U);
  void* kept = MemoryPool::Allocate(kLarge);
  MemoryPool::Free(MemoryPool::Allocate(2 * kLarge));
  MemoryPool::Free(MemoryPool::Allocate(kSmall));
  EXPECT_GT(pool.held(), 3 * kLarge);
  pool.Trim();
  EXPECT_EQ(pool.held(), kLarge);
  MemoryPool::Free(kept);
  EXPECT_EQ(pool.held(), kLarge);
  pool.Trim();
  EXPECT_EQ(pool.held(), 0U);
}

TEST(MemoryPool, WhatIsInUseOutlivesThePool) {
  auto pool = std::make_unique<MemoryPool>();
  void* memory = nullptr;
  {
    const MemoryPool::Use use(pool.get());
    memory = MemoryPool::Allocate(kLarge);
  }
  pool.reset();
  std::memset(memory, 1, kLarge);
  MemoryPool::Free(memory);
}

TEST(MemoryPool, IsThatOfTheThreadAndOfTheInnermostUse) {
  MemoryPool outer;
  MemoryPool inner;
  EXPECT_EQ(MemoryPool::Current(), nullptr);
  const MemoryPool::Use use(&outer);
  {
    const MemoryPool::Use again(&inner);
    EXPECT_EQ(MemoryPool::Current(), &inner);
  }
  EXPECT_EQ(MemoryPool::Current(), &outer);
  std::thread([] { EXPECT_EQ(MemoryPool::Current(), nullptr); }).join();
}

TEST(MemoryPool, TakesBackWhatAnotherThreadFrees) {
  MemoryPool pool;
  void* memory = nullptr;
  {
    const MemoryPool::Use use(&pool);
    memory = MemoryPool::Allocate(kLarge);
  }
  std::thread([memory] { MemoryPool::Free(memory); }).join();
  const MemoryPool::Use use(&pool);
  EXPECT_EQ(MemoryPool::Allocate(kLarge), memory);
  MemoryPool::Free(memory);
}

TEST(MemoryPool, ManyThreadsMayUseIt) {
  MemoryPool pool;
  const auto work = [&pool] {
    const MemoryPool::Use use(&pool);
    for (size_t i = 0; i < 1000; ++i) {
      const size_t size = 1 + i * 1009 % 200000;
      auto* memory = static_cast<unsigned char*>(MemoryPool::Allocate(size));
      memory[0] = 1;
      memory[size - 1] = 2;
      EXPECT_EQ(memory[0] + memory[size - 1], size == 1 ? 4 : 3);
      MemoryPool::Free(memory);
    }
  };
  std::thread other(work);
  work();
  other.join();
}

TEST(PoolAllocator, HoldsTensorsAndTheirLoD) {
  MemoryPool pool;
  LoDTensorArray array;
  {
    const MemoryPool::Use use(&pool);
    LoDTensor tensor;
    tensor.Resize({3}).mutable_data<float>();
    tensor.set_lod({{0, 1, 3}});
    array.push_back(tensor);
  }
  EXPECT_GT(pool.held(), 0U);
  EXPECT_EQ(array[0].lod(), (LoD{{0, 1, 3}}));
  EXPECT_THROW(PoolAllocator<int64_t>().allocate(SIZE_MAX), std::bad_array_new_length);
}

}  // namespace
}  // namespace headrace
