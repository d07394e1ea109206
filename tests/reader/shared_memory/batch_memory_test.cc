// How much shared memory is used, and for how long.
#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

constexpr uint32_t kLargeWords = 32 * 1024;  // 256 KiB a sample
constexpr size_t kBatchBytes = 4 * kLargeWords * sizeof(uint64_t);
// The header, the layout and the pages that the ends of a batch share with nothing.
constexpr size_t kSlotExtra = 64 * 1024;

SchedulerOptions LargeBatches() {
  SchedulerOptions options = SmallOptions(1000, 4);
  options.arena.slot_count = 64;
  options.prefetch = 3;
  return options;
}

class BatchMemoryTest : public ::testing::TestWithParam<uint32_t> {};

INSTANTIATE_TEST_SUITE_P(Producers, BatchMemoryTest, ::testing::Values(1, 2, 8));

TEST_P(BatchMemoryTest, IsBoundedByTheBatchesInFlightAndHeld) {
  SKIP_WITHOUT_FORK();
  Crew crew(LargeBatches(), GetParam(), SampleOptions{.words = kLargeWords});
  const size_t empty = crew.scheduler().stats().resident_bytes;
  crew.scheduler().StartEpoch(0);
  std::deque<ReadyBatch> held;
  for (int i = 0; i < 100; ++i) {
    held.push_back(crew.Expect());
    if (held.size() > 2) {
      held.pop_front();
    }
    const SchedulerStats stats = crew.scheduler().stats();
    // Three in flight, and three held at the moment of taking.
    ASSERT_LE(stats.slots_used, 6U);
    ASSERT_LE(stats.resident_bytes, empty + 6 * (kBatchBytes + kSlotExtra));
  }
}

TEST_P(BatchMemoryTest, KeptBatchesStayAsTheyAreAndStallNobody) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(400, 4);
  options.arena.slot_count = 32;
  options.arena.slot_bytes = size_t{1} << 20;
  Crew crew(options, GetParam());
  crew.scheduler().StartEpoch(0);
  std::vector<ReadyBatch> kept;
  for (uint64_t i = 0; i < 20; ++i) {
    kept.push_back(crew.Expect());
    EXPECT_FALSE(kept.back().last_slots);
  }
  for (uint64_t i = 20; i < 100; ++i) {
    ASSERT_TRUE(HasSamples(crew.Expect(), Range(i * 4, 4)));
  }
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(HasSamples(kept[i], Range(i * 4, 4)));
  }
}

TEST_P(BatchMemoryTest, LastSlotsAreAnnouncedInTime) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(400, 4);
  options.arena.slot_count = 8;
  Crew crew(options, GetParam());
  crew.scheduler().StartEpoch(0);
  std::vector<ReadyBatch> kept;
  for (uint64_t i = 0; i < 100; ++i) {
    ReadyBatch batch = crew.Expect();
    ASSERT_TRUE(HasSamples(batch, Range(i * 4, 4)));
    if (!batch.last_slots) {
      kept.push_back(std::move(batch));
    }
  }
  // Eight slots less three in flight, of which the last is lent for copying only.
  EXPECT_EQ(kept.size(), 4U);
}

// What a dead producer has half made is made anew, and its memory is needed for a successor.
TEST(BatchSlotsTest, TheRowsOfADeadProducerAreGivenBack) {
  for (const bool pinned : {false, true}) {
    SchedulerOptions options = LargeBatches();
    options.prefetch = 1;
    options.pin_memory = pinned;
    const auto scheduler = BatchScheduler::Create(options);
    scheduler->StartEpoch(0);
    BatchProducer dead(scheduler->arena(), 0, scheduler->completion_fd());
    BatchProducer other(scheduler->arena(), 1, scheduler->completion_fd());
    MakeRows(other, *other.TryClaim(), {.words = kLargeWords});
    const Claim half = *dead.TryClaim();
    const Claim under_way = *other.TryClaim();
    ASSERT_TRUE(other.PublishLayout(under_way, SampleLayout(other, under_way, kLargeWords).bytes()));
    WriteRow(other, under_way, under_way.begin, kLargeWords);
    const size_t before = scheduler->stats().resident_bytes;
    ASSERT_TRUE(dead.PublishLayout(half, SampleLayout(dead, half, kLargeWords).bytes()));
    WriteRow(dead, half, half.begin, kLargeWords);
    EXPECT_GE(scheduler->stats().resident_bytes, before + kBatchBytes / 4 - kSlotExtra);
    EXPECT_TRUE(scheduler->Reclaim(0).busy);
    if (pinned) {  // a locked range would keep its old pages
      EXPECT_GE(scheduler->stats().resident_bytes, before + kBatchBytes / 4 - kSlotExtra);
    } else {
      EXPECT_LE(scheduler->stats().resident_bytes, before + kSlotExtra);
    }
    other.Complete(under_way);
    MakeAll(other, {.words = kLargeWords});
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    EXPECT_TRUE(HasSamples(scheduler->Take(), Range(0, 4), kLargeWords));
  }
}

TEST(BatchSlotsTest, ABatchThatADeadProducerMadeAloneIsGivenBack) {
  SchedulerOptions options = LargeBatches();
  options.prefetch = 1;
  options.collation = Collation::kWhole;
  const auto scheduler = BatchScheduler::Create(options);
  scheduler->StartEpoch(0);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  const size_t before = scheduler->stats().resident_bytes;
  for (int i = 0; i < 2; ++i) {
    const Claim claim = *producer.TryClaim();
    ASSERT_TRUE(producer.PublishLayout(claim, SampleLayout(producer, claim, kLargeWords).bytes()));
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      WriteRow(producer, claim, row, kLargeWords);
    }
    EXPECT_GE(scheduler->stats().resident_bytes, before + kBatchBytes);
    EXPECT_TRUE(scheduler->Reclaim(0).busy);
    EXPECT_LE(scheduler->stats().resident_bytes, before + kSlotExtra);
  }
  MakeAll(producer, {.words = kLargeWords});
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(0, 4), kLargeWords));
}

TEST(BatchSlotsTest, SlotsAreReusedWhileTheyAreWarm) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(4000, 4);
  options.arena.slot_count = 64;
  Crew crew(options, 2);
  crew.scheduler().StartEpoch(0);
  for (int i = 0; i < 1000; ++i) {
    crew.Expect();
  }
  EXPECT_LE(crew.scheduler().stats().slots_used, 4U);
}

TEST(BatchSlotsTest, SlotsThatCameBackLastAreUsedFirst) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(100, 1));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  std::vector<ReadyBatch> held;
  for (int i = 0; i < 10; ++i) {
    MakeAll(producer);
    held.push_back(scheduler->Take());
  }
  held.clear();
  std::set<const std::byte*> used;
  for (int i = 0; i < 50; ++i) {
    MakeAll(producer);
    used.insert(scheduler->Take().slot);
  }
  // Three in flight and the one just taken.
  EXPECT_LE(used.size(), 4U);
}

TEST(BatchSlotsTest, MemoryThatAnEpochDidNotNeedIsGivenBack) {
  SchedulerOptions options = SmallOptions(40, 4);
  options.arena.slot_count = 32;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  const auto take = [&](uint64_t batches, bool keep) {
    std::vector<ReadyBatch> kept;
    for (uint64_t i = 0; i < batches; ++i) {
      MakeAll(producer, {.words = kLargeWords / 8});
      ReadyBatch batch = scheduler->Take();
      EXPECT_TRUE(HasSamples(batch, Range(batch.batch * 4, 4), kLargeWords / 8));
      if (keep) {
        kept.push_back(std::move(batch));
      }
    }
  };
  const size_t empty = scheduler->stats().resident_bytes;
  const size_t slot_bytes = kBatchBytes / 8 + kSlotExtra;
  scheduler->StartEpoch(0);
  take(10, true);
  scheduler->StartEpoch(1);
  take(10, false);
  EXPECT_GE(scheduler->stats().resident_bytes, empty + 10 * kBatchBytes / 8);
  // The second epoch used four of the slots.
  scheduler->StartEpoch(2);
  EXPECT_LE(scheduler->stats().slots_used, 5U);
  EXPECT_LE(scheduler->stats().resident_bytes, empty + 5 * slot_bytes);
  // They can be used again.
  take(10, true);
  scheduler->StartEpoch(3);
  take(10, false);
}

TEST(BatchSlotsTest, AbandonedEpochsDoNotEatSlots) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(400, 4);
  options.arena.slot_count = 64;
  Crew crew(options, 2);
  for (uint64_t epoch = 0; epoch < 200; ++epoch) {
    crew.scheduler().StartEpoch(epoch * 2);
    crew.Expect();
  }
  // Twice what is in flight, and the one held.
  EXPECT_LE(crew.scheduler().stats().slots_used, 7U);
}

TEST(BatchSlotsTest, NoSlotIsTouchedForAnEpochThatHasEnded) {
  SchedulerOptions options = SmallOptions(2, 1);
  options.cross_epochs = false;
  const auto scheduler = BatchScheduler::Create(options);
  scheduler->StartEpoch(0);
  EXPECT_EQ(scheduler->stats().slots_used, 2U);
}

TEST(BatchSlotsTest, SlotComesBackWithTheLastCopyOfTheBatch) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(100, 1));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  MakeAll(producer);
  ReadyBatch batch = scheduler->Take();
  std::shared_ptr<Allocation> copy = batch.memory;
  EXPECT_EQ(copy->data(), batch.slot);
  EXPECT_EQ(copy->size(), scheduler->arena()->slot_bytes());
  batch = ReadyBatch();
  EXPECT_EQ(scheduler->stats().held_slots, 1U);
  copy.reset();
  EXPECT_EQ(scheduler->stats().held_slots, 0U);
}

TEST(BatchSlotsTest, BatchesOutliveTheirScheduler) {
  SKIP_WITHOUT_FORK();
  std::vector<ReadyBatch> kept;
  {
    Crew crew(SmallOptions(100, 4), 2);
    crew.scheduler().StartEpoch(0);
    kept.push_back(crew.Expect());
    kept.push_back(crew.Expect());
  }
  EXPECT_TRUE(HasSamples(kept[0], Range(0, 4)));
  EXPECT_TRUE(HasSamples(kept[1], Range(4, 4)));
}

TEST(BatchSlotsTest, StatsCountWhatWasDone) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 5));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  EXPECT_EQ(scheduler->stats().open_batches, 3U);
  MakeAll(producer);
  const ReadyBatch batch = scheduler->Take();
  const SchedulerStats stats = scheduler->stats();
  EXPECT_EQ(stats.batches, 1U);
  EXPECT_EQ(stats.held_slots, 1U);
  EXPECT_EQ(stats.all.samples, 15U);
  EXPECT_GT(stats.all.work_ns, 0U);
  EXPECT_GE(stats.all.claims, 3U);
}

}  // namespace
}  // namespace headrace::shared_memory
