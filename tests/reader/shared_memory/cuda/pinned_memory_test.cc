// Memory that is locked for CUDA, with a stand-in for its driver.
#include "reader/shared_memory/cuda/pinned_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda_test_util.h"
#include "gtest/gtest.h"
#include "tests/reader/shared_memory/transport_test_util.h"

namespace headrace::shared_memory {
namespace {

constexpr size_t kUnit = size_t{64} << 10;

class PinnedMemoryTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    pages_ = static_cast<std::byte*>(
        mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    ASSERT_NE(pages_, MAP_FAILED);
  }
  void TearDown() override {
    munmap(pages_, kPages);
    CudaTest::TearDown();
  }

  static constexpr size_t kPages = size_t{64} << 20;
  std::byte* pages_ = nullptr;
};

TEST_F(PinnedMemoryTest, NothingIsAskedOfTheDriverBeforeTheFirstPin) {
  PinnedMemory pinned;
  EXPECT_EQ(pinned.problem(), "");
  EXPECT_EQ(stub_->inits, 0);
  pinned.Pin(pages_, 100, kPages);
  EXPECT_EQ(stub_->inits, 1);
  EXPECT_EQ(pinned.pinned_bytes(), kUnit);
  EXPECT_EQ(stub_->registered_bytes, kUnit);
}

TEST_F(PinnedMemoryTest, GrowsWithTheDemandAndNotForLess) {
  PinnedMemory pinned;
  pinned.Pin(pages_, 10 * kUnit, kPages);
  pinned.Pin(pages_, 10 * kUnit, kPages);
  pinned.Pin(pages_, kUnit, kPages);
  EXPECT_EQ(stub_->registrations, 1);
  pinned.Pin(pages_, 10 * kUnit + 1, kPages);
  EXPECT_EQ(stub_->registrations, 2);
  EXPECT_EQ(pinned.PinnedBytes(pages_), 13 * kUnit) << "with a quarter to grow, rounded up";
  EXPECT_EQ(stub_->registered_bytes, 13 * kUnit);
}

TEST_F(PinnedMemoryTest, DoesNotReachBeyondTheLimit) {
  PinnedMemory pinned;
  pinned.Pin(pages_, 3 * kUnit, 3 * kUnit + 4096);
  pinned.Pin(pages_, 3 * kUnit + 5, 3 * kUnit + 4096);
  EXPECT_EQ(pinned.PinnedBytes(pages_), 3 * kUnit + 4096);
}

TEST_F(PinnedMemoryTest, UnpinUnlocksThatPlaceOnly) {
  PinnedMemory pinned;
  pinned.Pin(pages_, kUnit, kPages);
  pinned.Pin(pages_ + (kPages / 2), kUnit, kPages / 2);
  pinned.Unpin(pages_);
  pinned.Unpin(pages_);
  EXPECT_EQ(stub_->registered_bytes, kUnit);
  EXPECT_EQ(pinned.PinnedBytes(pages_), 0U);
}

TEST_F(PinnedMemoryTest, UsesTheThreadsContextIfThereIsOne) {
  int context = 0;
  stub_->current = &context;
  PinnedMemory pinned;
  pinned.Pin(pages_, kUnit, kPages);
  EXPECT_EQ(stub_->pushed, &context);
  EXPECT_EQ(stub_->retained, 0) << "no device is woken up besides";
}

TEST_F(PinnedMemoryTest, WithoutADriverSaysSo) {
  PinnedMemory pinned("libthere-is-no-such-driver.so.1");
  EXPECT_NE(pinned.problem().find("libthere-is-no-such-driver.so.1"), std::string::npos) << pinned.problem();
  pinned.Pin(pages_, kUnit, kPages);
  pinned.Unpin(pages_);
  EXPECT_EQ(pinned.pinned_bytes(), 0U);
}

TEST_F(PinnedMemoryTest, AnotherLibraryIsNotTheDriver) {
  PinnedMemory pinned("libc.so.6");
  EXPECT_NE(pinned.problem().find("too old"), std::string::npos) << pinned.problem();
  pinned.Pin(pages_, kUnit, kPages);
}

TEST_F(PinnedMemoryTest, WithoutAGpuSaysSoAndTriesNoFurther) {
  stub_->init_result = 100;
  PinnedMemory pinned;
  pinned.Pin(pages_, kUnit, kPages);
  pinned.Pin(pages_, kUnit, kPages);
  EXPECT_EQ(pinned.problem(), "CUDA's cuInit failed: as the test wants it (100)");
  EXPECT_EQ(stub_->inits, 1);
}

TEST_F(PinnedMemoryTest, ARefusalIsToldAndWhatIsLockedStays) {
  PinnedMemory pinned;
  pinned.Pin(pages_, kUnit, kPages);
  stub_->register_result = 2;
  pinned.Pin(pages_ + (kPages / 2), kUnit, kPages / 2);
  EXPECT_EQ(pinned.problem(), "CUDA's cuMemHostRegister failed: as the test wants it (2)");
  EXPECT_EQ(stub_->registered_bytes, kUnit);
}

TEST_F(PinnedMemoryTest, AForkedChildUnlocksNothing) {
  SKIP_WITHOUT_FORK();
  auto pinned = std::make_unique<PinnedMemory>();
  pinned->Pin(pages_, kUnit, kPages);
  ChildProcess child([&] {
    pinned->Unpin(pages_);
    pinned.reset();
    _exit(stub_->registered_bytes == kUnit ? 0 : 3);
  });
  EXPECT_EQ(child.Join(), 0);
}

SchedulerOptions Pinning(uint64_t length, uint64_t batch_size) {
  SchedulerOptions options = SmallOptions(length, batch_size);
  options.pin_memory = true;
  return options;
}

TEST_F(PinnedMemoryTest, BatchesAreLockedWhenTheyAreTaken) {
  const auto scheduler = BatchScheduler::Create(Pinning(40, 4));
  EXPECT_EQ(scheduler->pinning_problem(), "");
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  EXPECT_EQ(stub_->inits, 0) << "the workers are forked before";
  for (uint64_t number = 0; number < 10; ++number) {
    MakeAll(producer, {.words = 4000});  // 128 KB a batch
    ASSERT_TRUE(HasSamples(scheduler->Take(), Range(number * 4, 4), 4000));
  }
  // One slot after the other became free and was used again.
  const size_t slots = scheduler->stats().slots_used;
  EXPECT_LE(slots, 4U);
  EXPECT_EQ(scheduler->stats().pinned_bytes, slots * 2 * kUnit);
  EXPECT_EQ(stub_->registered_bytes, slots * 2 * kUnit);
  EXPECT_EQ(stub_->registrations, static_cast<int>(slots)) << "once each";
}

TEST_F(PinnedMemoryTest, MemoryIsUnlockedBeforeItIsGivenBack) {
  const auto scheduler = BatchScheduler::Create(Pinning(80, 4));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  std::deque<ReadyBatch> kept;
  for (uint64_t epoch = 0; epoch < 4; ++epoch) {
    scheduler->StartEpoch(epoch);
    for (uint64_t number = 0; number < 20; ++number) {
      MakeAll(producer);
      kept.push_back(scheduler->Take());
      if (epoch != 0 || kept.size() > 8) {  // only the first epoch keeps some
        kept.pop_front();
      }
    }
    if (epoch == 0) {
      EXPECT_GE(stub_->registered_bytes, 8 * kUnit);
      kept.clear();
    }
  }
  EXPECT_LE(scheduler->stats().pinned_bytes, 5 * kUnit);
  EXPECT_EQ(scheduler->stats().pinned_bytes, stub_->registered_bytes);
}

TEST_F(PinnedMemoryTest, BatchesWithAProblemAreNotLocked) {
  const auto scheduler = BatchScheduler::Create(Pinning(1, 1));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  producer.Fail(*producer.TryClaim(), 0, ProblemKind::kFailed, "torn");
  EXPECT_EQ(scheduler->Take().problem, ProblemKind::kFailed);
  EXPECT_EQ(stub_->inits, 0);
}

TEST_F(PinnedMemoryTest, ARefusalDoesNotKeepBatchesAway) {
  stub_->register_result = 2;
  const auto scheduler = BatchScheduler::Create(Pinning(8, 4));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  MakeAll(producer);
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(0, 4)));
  EXPECT_NE(scheduler->pinning_problem(), "");
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(4, 4)));
}

}  // namespace
}  // namespace headrace::shared_memory
