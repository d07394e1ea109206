// How many batches are open: as many as keep the consumer from waiting.
#include "reader/shared_memory/batches/prefetch_depth.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/reader/shared_memory/transport_test_util.h"

namespace headrace::shared_memory {
namespace {

constexpr uint32_t kLimit = 9;
constexpr uint64_t kLarge = 1000;

SchedulerOptions Adaptive(uint32_t producers = 1) {
  SchedulerOptions options = SmallOptions(100'000, 4);
  options.arena.slot_count = 64;
  options.prefetch = kLimit;
  options.prefetch_bytes = kLarge;
  options.producers = producers;
  return options;
}

// After how many batches, always with `spare` ready, it is smaller.
int TakenUntilItShrinks(PrefetchDepth& depth, uint32_t spare) {
  const uint32_t before = depth.value();
  for (int taken = 1; taken < 5000; ++taken) {
    depth.Taken(kLarge, spare);
    if (depth.value() < before) {
      return taken;
    }
  }
  return 0;
}

TEST(PrefetchDepthTest, IsTheLimitWhereSizeDoesNotMatter) {
  SchedulerOptions options = Adaptive();
  options.prefetch_bytes = kAnyBytes;
  PrefetchDepth depth(options);
  EXPECT_EQ(depth.value(), kLimit);
  EXPECT_FALSE(depth.Taken(kLarge, kLimit - 1));
  EXPECT_EQ(depth.value(), kLimit);
}

TEST(PrefetchDepthTest, IsTheLimitOnceBatchesAreKnownToBeSmall) {
  PrefetchDepth depth(Adaptive());
  EXPECT_EQ(depth.value(), 2U);
  depth.Taken(kLarge / kLimit, 1);
  EXPECT_EQ(depth.value(), kLimit);
  depth.Taken(kLarge / kLimit + 1, 1);
  EXPECT_EQ(depth.value(), 2U);
}

TEST(PrefetchDepthTest, BeginsWithWorkForEachProducerAndTheNextBatch) {
  SchedulerOptions options = Adaptive(4);
  EXPECT_EQ(PrefetchDepth(options).value(), 2U);
  options.batch_size = 2;
  EXPECT_EQ(PrefetchDepth(options).value(), 3U);
  options.batch_size = 1;
  EXPECT_EQ(PrefetchDepth(options).value(), 5U);
  options.batch_size = 4;
  options.collation = Collation::kWhole;
  EXPECT_EQ(PrefetchDepth(options).value(), 5U);
  options.producers = 40;
  EXPECT_EQ(PrefetchDepth(options).value(), kLimit);
}

TEST(PrefetchDepthTest, GrowsByAsManyBatchesAsGiveTheIdleWork) {
  PrefetchDepth depth(Adaptive());
  EXPECT_TRUE(depth.Grow(3, 4));
  EXPECT_EQ(depth.value(), 3U);
  EXPECT_TRUE(depth.Grow(5, 4));
  EXPECT_EQ(depth.value(), 5U);
  EXPECT_TRUE(depth.Grow(100, 1));
  EXPECT_EQ(depth.value(), kLimit);
  EXPECT_FALSE(depth.Grow(1, 1));
}

TEST(PrefetchDepthTest, KeepsOneReadyBatchMoreThanTheConsumerNeeds) {
  PrefetchDepth depth(Adaptive());
  depth.Grow(100, 1);
  // Now and then one is ready, else more: fewer would have made the consumer wait.
  for (int i = 0; i < 1000; ++i) {
    depth.Taken(kLarge, i % 5 == 0 ? 1 : 6);
  }
  EXPECT_EQ(depth.value(), kLimit);
  EXPECT_NE(TakenUntilItShrinks(depth, 4), 0);
  EXPECT_EQ(depth.value(), kLimit - 3);
  EXPECT_NE(TakenUntilItShrinks(depth, 100), 0);
  EXPECT_EQ(depth.value(), 2U);
}

TEST(PrefetchDepthTest, WaitsLongerBeforeItShrinksIfThatWasAMistake) {
  PrefetchDepth depth(Adaptive());
  depth.Grow(100, 1);
  const int before = TakenUntilItShrinks(depth, 8);
  for (int factor = 2; factor <= 64; factor *= 2) {
    depth.Grow(100, 1);
    EXPECT_EQ(TakenUntilItShrinks(depth, 8), factor * before);
  }
}

TEST(PrefetchDepthTest, AWaitBeginsTheCountAnew) {
  PrefetchDepth depth(Adaptive());
  depth.Grow(100, 1);
  const int patience = TakenUntilItShrinks(depth, 2);
  for (int i = 1; i < patience; ++i) {
    EXPECT_FALSE(depth.Taken(kLarge, 2));
  }
  depth.Grow(100, 1);
  EXPECT_GE(TakenUntilItShrinks(depth, 2), patience);
}

// A scheduler whose producers are this thread; others are said to sleep.
class SchedulerDepthTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kBytes = 64 * 1024;  // of a batch, roughly
  static constexpr SampleOptions kSamples{.words = kBytes / 8 / 4};

  explicit SchedulerDepthTest()
      : scheduler_(BatchScheduler::Create(Options())),
        producer_(scheduler_->arena(), 0, scheduler_->completion_fd()),
        open_at_start_((scheduler_->StartEpoch(0), Open())) {}

  static SchedulerOptions Options() {
    SchedulerOptions options = Adaptive(4);
    options.arena.slot_bytes = size_t{1} << 20;
    options.prefetch_bytes = kBytes;
    return options;
  }

  uint32_t Open() const { return scheduler_->stats().open_batches; }
  void Sleep(uint64_t producers) { scheduler_->arena()->control().sleepers[0].store(producers); }
  // The consumer finds no batch ready.
  void WaitInVain() { ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kTimedOut); }
  // Claims all that there is to claim, and leaves it unmade.
  std::vector<Claim> ClaimAll() {
    std::vector<Claim> claims;
    while (const std::optional<Claim> claim = producer_.TryClaim()) {
      claims.push_back(*claim);
    }
    return claims;
  }
  void TakeReady(int batches) {
    for (int i = 0; i < batches; ++i) {
      MakeAll(producer_, kSamples);
      ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
      scheduler_->Take();
    }
  }

  const std::shared_ptr<BatchScheduler> scheduler_;
  BatchProducer producer_;
  const uint32_t open_at_start_;
};

TEST_F(SchedulerDepthTest, AConsumerThatNeverWaitsNeedsTwo) {
  EXPECT_EQ(open_at_start_, 2U);
  TakeReady(100);
  EXPECT_EQ(Open(), 2U);
  EXPECT_EQ(scheduler_->stats().prefetch, 2U);
  EXPECT_LE(scheduler_->stats().slots_used, 3U);
}

TEST_F(SchedulerDepthTest, ProducersWithoutWorkGetSomeWhileTheConsumerWaits) {
  const std::vector<Claim> claims = ClaimAll();
  ASSERT_EQ(claims.size(), 2U * 4U);
  Sleep(0b11111);
  WaitInVain();
  // Five producers sleep, and a batch has four chunks.
  EXPECT_EQ(Open(), 4U);
  for (const Claim& claim : claims) {
    MakeRows(producer_, claim, kSamples);
  }
}

TEST_F(SchedulerDepthTest, WorkThatNobodyHasTakenYetIsEnough) {
  Sleep(0b11111);  // some have been woken, and have not come round to it
  WaitInVain();
  EXPECT_EQ(Open(), 2U);
}

TEST_F(SchedulerDepthTest, ProducersThatAreAllAtWorkNeedNoMore) {
  const std::vector<Claim> claims = ClaimAll();
  WaitInVain();
  EXPECT_EQ(Open(), 2U);
  for (const Claim& claim : claims) {
    MakeRows(producer_, claim, kSamples);
  }
}

TEST(RoundRobinDepthTest, WorkForAProducerThatIsBusyIsNoneForTheOthers) {
  SchedulerOptions options = Adaptive(4);
  options.collation = Collation::kWhole;
  options.round_robin = true;
  options.prefetch_bytes = 1;
  const auto scheduler = BatchScheduler::Create(options);
  std::vector<std::unique_ptr<BatchProducer>> producers;
  for (uint32_t id = 0; id < 4; ++id) {
    producers.push_back(std::make_unique<BatchProducer>(scheduler->arena(), id, scheduler->completion_fd()));
  }
  scheduler->StartEpoch(0);
  EXPECT_EQ(scheduler->stats().open_batches, 5U);
  const auto sleep = [&](uint64_t asleep) { scheduler->arena()->control().sleepers[0].store(asleep); };
  // Producer 0 is at work on batch 0, and 4 is its next. The others have been woken for theirs.
  ASSERT_TRUE(producers[0]->TryClaim().has_value());
  sleep(0b1110);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kTimedOut);
  EXPECT_EQ(scheduler->stats().open_batches, 5U);
  for (uint32_t id = 1; id < 4; ++id) {
    MakeRows(*producers[id], producers[id]->TryClaim().value());
  }
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kTimedOut);
  EXPECT_EQ(scheduler->stats().open_batches, 8U);
}

TEST_F(SchedulerDepthTest, MemoryThatIsNoLongerNeededIsGivenBack) {
  std::vector<Claim> claims;
  while (Open() < kLimit) {
    for (const Claim& claim : ClaimAll()) {
      claims.push_back(claim);
    }
    Sleep(0b1111'1111);
    WaitInVain();
    Sleep(0);
  }
  for (const Claim& claim : claims) {
    MakeRows(producer_, claim, kSamples);
  }
  TakeReady(static_cast<int>(kLimit));
  const SchedulerStats before = scheduler_->stats();
  EXPECT_GE(before.resident_bytes, kLimit * kBytes);
  TakeReady(100);
  const SchedulerStats after = scheduler_->stats();
  EXPECT_EQ(after.open_batches, 2U);
  EXPECT_LE(after.slots_used, 3U);
  EXPECT_LE(after.resident_bytes + (kLimit - 3) * kBytes, before.resident_bytes);
}

}  // namespace
}  // namespace headrace::shared_memory
