// What is in which batch: independent of the number of producers and of their speed.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "reader/index_permutation.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

// Takes the rest of the epoch, which must have the samples `indices` in this order.
void ExpectRest(Crew& crew, uint64_t epoch, uint64_t first_batch, const std::vector<uint64_t>& indices) {
  const uint64_t batch_size = crew.scheduler().options().batch_size;
  uint64_t number = first_batch;
  for (size_t begin = 0; begin < indices.size(); begin += batch_size, ++number) {
    const ReadyBatch batch = crew.Expect();
    ASSERT_EQ(batch.epoch, epoch);
    ASSERT_EQ(batch.batch, number);
    const size_t end = std::min<size_t>(begin + batch_size, indices.size());
    ASSERT_TRUE(HasSamples(batch, std::vector<uint64_t>(indices.begin() + begin, indices.begin() + end)));
  }
  ASSERT_FALSE(crew.Next().has_value());
}

std::vector<uint64_t> Shuffled(uint64_t length, uint64_t seed, uint64_t epoch) {
  const IndexPermutation permutation(length, seed, epoch);
  std::vector<uint64_t> indices(length);
  for (uint64_t i = 0; i < length; ++i) {
    indices[i] = permutation(i);
  }
  return indices;
}

class BatchOrderTest : public ::testing::TestWithParam<uint32_t> {};

INSTANTIATE_TEST_SUITE_P(Producers, BatchOrderTest, ::testing::Values(1, 2, 4));

TEST_P(BatchOrderTest, SequentialEpochsGiveTheSamplesInOrder) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(103, 8), GetParam());
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    ExpectRest(crew, epoch, 0, Range(0, 103));
  }
}

TEST_P(BatchOrderTest, ShuffledEpochsFollowThePermutation) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(103, 8);
  options.arena.order = IndexOrder::kShuffled;
  options.arena.seed = 17;
  Crew crew(options, GetParam());
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    ExpectRest(crew, epoch, 0, Shuffled(103, 17, epoch));
  }
}

TEST_P(BatchOrderTest, UnevenSamplesDoNotDisturbTheOrder) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(200, 4), GetParam(), [](BatchProducer& producer, const Claim& claim) {
    MakeRows(producer, claim, {.cost_ns = MixBits(producer.IndexAt(claim, claim.begin)) % 16 == 0 ? 500'000 : 0});
  });
  crew.scheduler().StartEpoch(0);
  ExpectRest(crew, 0, 0, Range(0, 200));
}

TEST_P(BatchOrderTest, ResumesAtAnyBatch) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(100, 8), GetParam());
  for (const uint64_t first : {12, 0, 7, 1}) {
    crew.scheduler().StartEpoch(4, first);
    ExpectRest(crew, 4, first, Range(first * 8, 100 - first * 8));
  }
}

TEST_P(BatchOrderTest, EpochsAbandonedWhileProducersAreInsideLeaveNoTrace) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(400, 8), GetParam(), SampleOptions{.cost_ns = 100'000});
  for (uint64_t epoch = 0; epoch < 40; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    for (uint64_t batch = 0; batch < epoch % 3; ++batch) {
      ASSERT_TRUE(HasSamples(crew.Expect(), Range(batch * 8, 8)));
    }
  }
  crew.scheduler().StartEpoch(3, 40);
  ExpectRest(crew, 3, 40, Range(320, 80));
}

TEST_P(BatchOrderTest, WholeBatchesHaveOneMakerEach) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(64, 16);
  options.collation = Collation::kWhole;
  Crew crew(options, GetParam(), [](BatchProducer& producer, const Claim& claim) {
    if (claim.kind != ClaimKind::kWhole || claim.begin != 0 || claim.end != claim.rows) {
      producer.Fail(claim, 0, ProblemKind::kFailed, "not a whole batch");
      return;
    }
    MakeRows(producer, claim, {.cost_ns = 20'000});
  });
  crew.scheduler().StartEpoch(0);
  ExpectRest(crew, 0, 0, Range(0, 64));
}

SchedulerOptions ExplicitOptions() {
  SchedulerOptions options = SmallOptions(0, 1);
  options.arena.order = IndexOrder::kExplicit;
  return options;
}

void Supply(Crew& crew, const std::vector<uint64_t>& indices) {
  crew.scheduler().Supply(indices.size(),
                          {reinterpret_cast<const char*>(indices.data()), indices.size() * sizeof(uint64_t)}, false);
}

TEST_P(BatchOrderTest, ExplicitIndicesMayHaveAnyOrderAndNumber) {
  SKIP_WITHOUT_FORK();
  Crew crew(ExplicitOptions(), GetParam());
  std::vector<std::vector<uint64_t>> batches;
  for (uint64_t i = 0; i < 50; ++i) {
    std::vector<uint64_t>& indices = batches.emplace_back();
    for (uint64_t row = 0; row < 1 + MixBits(i) % 40; ++row) {
      indices.push_back(MixBits(i * 1000 + row));
    }
  }
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    size_t supplied = 0;
    for (size_t taken = 0; taken < batches.size(); ++taken) {
      while (supplied < batches.size() && crew.scheduler().WantedSupply() != 0) {
        Supply(crew, batches[supplied++]);
      }
      ASSERT_TRUE(HasSamples(crew.Expect(), batches[taken]));
    }
    EXPECT_EQ(crew.scheduler().Wait(0), WaitOutcome::kNeedsIndices);
    crew.scheduler().EndSupply();
    EXPECT_EQ(crew.scheduler().WantedSupply(), 0U);
    EXPECT_FALSE(crew.Next().has_value());
  }
}

TEST_P(BatchOrderTest, AbandonedSuppliesAreForgotten) {
  SKIP_WITHOUT_FORK();
  Crew crew(ExplicitOptions(), GetParam());
  crew.scheduler().StartEpoch(0);
  for (uint64_t i = 0; i < 10; ++i) {
    Supply(crew, {i});
  }
  ASSERT_TRUE(HasSamples(crew.Expect(), {0}));
  crew.scheduler().StartEpoch(1);
  Supply(crew, {100, 101});
  crew.scheduler().EndSupply();
  ASSERT_TRUE(HasSamples(crew.Expect(), {100, 101}));
  EXPECT_FALSE(crew.Next().has_value());
}

TEST_P(BatchOrderTest, PickledIndicesReachTheProducerAsTheyAre) {
  SKIP_WITHOUT_FORK();
  Crew crew(ExplicitOptions(), GetParam(), [](BatchProducer& producer, const Claim& claim) {
    // The keys of this test: letters.
    const std::string_view keys = producer.PickledIndices(claim);
    if (keys.size() != claim.rows || !producer.PublishLayout(claim, SampleLayout(producer, claim, 1).bytes())) {
      producer.Fail(claim, claim.begin, ProblemKind::kFailed, "other keys");
      return;
    }
    auto* out = reinterpret_cast<uint64_t*>(producer.Data(claim) + LayoutView(producer.Data(claim)).leaf(0).offset);
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      out[row] = SampleWord(claim.epoch, static_cast<uint64_t>(keys[row]), 0);
    }
    producer.Complete(claim);
  });
  crew.scheduler().StartEpoch(0);
  crew.scheduler().Supply(3, "xyz", true);
  crew.scheduler().Supply(1, "a", true);
  crew.scheduler().EndSupply();
  ASSERT_TRUE(HasSamples(crew.Expect(), {'x', 'y', 'z'}, 1));
  ASSERT_TRUE(HasSamples(crew.Expect(), {'a'}, 1));
  EXPECT_FALSE(crew.Next().has_value());
}

// The tests below are producer and consumer in one thread, so that what happens when is under control.

TEST(BatchScheduleTest, DropLastLeavesOutAShortBatch) {
  SchedulerOptions options = SmallOptions(10, 4);
  options.drop_last = true;
  options.cross_epochs = false;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  EXPECT_EQ(scheduler->batches_per_epoch(), 2U);
  scheduler->StartEpoch(0);
  MakeAll(producer);
  for (uint64_t batch = 0; batch < 2; ++batch) {
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    EXPECT_TRUE(HasSamples(scheduler->Take(), Range(batch * 4, 4)));
  }
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kEndOfEpoch);
}

TEST(BatchScheduleTest, EmptyDatasetEndsAtOnce) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(0, 4));
  scheduler->StartEpoch(0);
  EXPECT_EQ(scheduler->Wait(-1), WaitOutcome::kEndOfEpoch);
}

TEST(BatchScheduleTest, StartBeyondTheLastBatchEndsAtOnce) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 4));
  scheduler->StartEpoch(0, 3);
  EXPECT_EQ(scheduler->Wait(-1), WaitOutcome::kEndOfEpoch);
  scheduler->StartEpoch(1, 1000);
  EXPECT_EQ(scheduler->Wait(-1), WaitOutcome::kEndOfEpoch);
}

TEST(BatchScheduleTest, NextEpochIsMadeWhileThisOneEnds) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(8, 4));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(5);
  MakeAll(producer);
  for (int batch = 0; batch < 2; ++batch) {
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    scheduler->Take();
    MakeAll(producer);
  }
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kEndOfEpoch);
  // No further producer's work: the batch was ready before the epoch was asked for.
  scheduler->StartEpoch(6);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  const ReadyBatch batch = scheduler->Take();
  EXPECT_EQ(batch.epoch, 6U);
  EXPECT_TRUE(HasSamples(batch, Range(0, 4)));
}

TEST(BatchScheduleTest, RoundRobinEachProducerMakesItsBatchesAlone) {
  SchedulerOptions options = SmallOptions(14, 2);
  options.collation = Collation::kWhole;
  options.round_robin = true;
  options.producers = 3;
  options.prefetch = 7;
  const auto scheduler = BatchScheduler::Create(options);
  std::vector<std::unique_ptr<BatchProducer>> producers;
  for (uint32_t id = 0; id < 3; ++id) {
    producers.push_back(std::make_unique<BatchProducer>(scheduler->arena(), id, scheduler->completion_fd()));
  }
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    scheduler->StartEpoch({.epoch = epoch, .first_batch = epoch});
    for (uint32_t id = 3; id-- > 0;) {  // the last ones first, which pass over the others' batches
      std::vector<uint64_t> batches;
      while (const std::optional<Claim> claim = producers[id]->TryClaim()) {
        if (claim->epoch == epoch) {
          batches.push_back(claim->batch);
        }
        MakeRows(*producers[id], *claim);
      }
      std::vector<uint64_t> own;
      for (uint64_t batch = epoch; batch < 7; ++batch) {
        if (batch % 3 == id) {
          own.push_back(batch);
        }
      }
      EXPECT_EQ(batches, own) << "producer " << id;
    }
    for (uint64_t batch = epoch; batch < 7; ++batch) {
      ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
      EXPECT_TRUE(HasSamples(scheduler->Take(), Range(2 * batch, 2)));
    }
  }
}

TEST(BatchScheduleTest, WhatWasPrefetchedOfAnotherRevisionIsMadeAgain) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(8, 4));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(5);
  const std::optional<Claim> first = producer.TryClaim();
  EXPECT_EQ(first->revision, 0U);
  MakeRows(producer, *first);
  MakeAll(producer);
  for (int batch = 0; batch < 2; ++batch) {
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    scheduler->Take();
  }
  const std::optional<Claim> outdated = producer.TryClaim();
  ASSERT_EQ(outdated->epoch, 6U);
  for (const uint64_t revision : {7, 7}) {  // the second time nothing has changed, so what is open is kept
    scheduler->StartEpoch({.epoch = 6, .revision = revision});
  }
  const std::optional<Claim> claim = producer.TryClaim();
  EXPECT_EQ(claim->epoch, 6U);
  EXPECT_EQ(claim->revision, 7U);
  MakeRows(producer, *outdated);
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kTimedOut);
  scheduler->StartEpoch({.epoch = 6, .revision = 7});
  MakeRows(producer, *claim);
  MakeAll(producer);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(0, 4)));
}

TEST(BatchScheduleTest, NextEpochWaitsIfItsOrderMayChange) {
  SchedulerOptions options = SmallOptions(8, 4);
  options.cross_epochs = false;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  MakeAll(producer);
  scheduler->Take();
  scheduler->Take();
  EXPECT_EQ(MakeAll(producer), 0);
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kEndOfEpoch);
}

TEST(BatchScheduleTest, EpochThatWasPrefetchedMayBeSkipped) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(8, 4));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  MakeAll(producer);
  scheduler->Take();
  scheduler->Take();
  scheduler->StartEpoch(9, 1);
  MakeAll(producer);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  const ReadyBatch batch = scheduler->Take();
  EXPECT_EQ(batch.epoch, 9U);
  EXPECT_TRUE(HasSamples(batch, Range(4, 4)));
}

TEST(BatchScheduleTest, SlotOfAnAbandonedBatchIsNotUsedBeforeItsMakerIsDone) {
  SchedulerOptions options = SmallOptions(100, 4);
  options.arena.slot_count = 3;
  options.prefetch = 2;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer slow(scheduler->arena(), 0, scheduler->completion_fd());
  BatchProducer fast(scheduler->arena(), 1, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const std::optional<Claim> claim = slow.TryClaim();
  ASSERT_TRUE(claim.has_value());
  for (uint64_t epoch = 1; epoch < 20; ++epoch) {
    scheduler->StartEpoch(epoch);
    while (const std::optional<Claim> other = fast.TryClaim()) {
      ASSERT_NE(other->slot, claim->slot);
      MakeRows(fast, *other);
    }
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    ASSERT_TRUE(HasSamples(scheduler->Take(), Range(0, 4)));
  }
  // From the epoch before last: it changes nothing but its own slot.
  MakeRows(slow, *claim);
  scheduler->StartEpoch(20);
  MakeAll(fast);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(0, 4)));
}

TEST(BatchScheduleTest, AbandonedBatchesInAllSlotsAreWaitedFor) {
  SchedulerOptions options = SmallOptions(100, 1);
  options.arena.slot_count = 2;
  options.prefetch = 1;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer slow(scheduler->arena(), 0, scheduler->completion_fd());
  BatchProducer slower(scheduler->arena(), 1, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const std::optional<Claim> first = slow.TryClaim();
  scheduler->StartEpoch(1);
  const std::optional<Claim> second = slower.TryClaim();
  ASSERT_TRUE(first.has_value() && second.has_value());
  scheduler->StartEpoch(2);
  EXPECT_EQ(scheduler->Wait(kMillisecond), WaitOutcome::kTimedOut);
  EXPECT_FALSE(slow.TryClaim().has_value());
  MakeRows(slower, *second);
  EXPECT_EQ(scheduler->Wait(kMillisecond), WaitOutcome::kTimedOut);
  MakeAll(slower);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), {0}));
  MakeRows(slow, *first);
}

TEST(BatchScheduleTest, ProducerThatComesLateFindsTheOldestBatch) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(100, 4));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  for (uint64_t batch = 0; batch < 10; ++batch) {
    MakeAll(producer);
    scheduler->Take();
  }
  BatchProducer late(scheduler->arena(), 1, scheduler->completion_fd());
  const std::optional<Claim> claim = late.TryClaim();
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(claim->batch, 12U);
  MakeRows(late, *claim);
}

// How many rows a claim has once it is known that a sample takes so long.
uint32_t RowsPerClaim(uint64_t sample_ns) {
  SchedulerOptions options = SmallOptions(100'000, 64);
  options.prefetch = 2;
  options.producers = 8;
  const auto scheduler = BatchScheduler::Create(options);
  scheduler->StartEpoch(0);
  ControlBlock& control = scheduler->arena()->control();
  control.producers[0].samples += 1000;
  control.producers[0].work_ns += 1000 * sample_ns;
  scheduler->StartEpoch(5);
  return scheduler->arena()->slot(control.ring[control.oldest % kMaxSlots]).facts.chunk_rows;
}

TEST(BatchScheduleTest, BatchIsCutIntoClaimsThatKeepAllProducersBusy) {
  EXPECT_EQ(RowsPerClaim(10'000), 8U) << "two claims for each of 8 producers in two open batches of 64 rows";
  EXPECT_EQ(RowsPerClaim(10), 64U) << "but none for next to nothing";
  EXPECT_EQ(RowsPerClaim(1'000'000), 1U) << "and none that the others would wait for";
}

TEST(BatchScheduleTest, FirstBatchIsCutIntoSingleRows) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(100, 16));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  for (uint32_t row = 0; row < 16; ++row) {
    const std::optional<Claim> claim = producer.TryClaim();
    ASSERT_TRUE(claim.has_value());
    EXPECT_EQ(claim->begin, row);
    EXPECT_EQ(claim->end, row + 1);
    MakeRows(producer, *claim);
  }
}

TEST(BatchScheduleTest, RefusesOptionsOutOfRange) {
  const auto refused = [](auto change) {
    SchedulerOptions options = SmallOptions(10, 2);
    change(options);
    EXPECT_THROW(BatchScheduler::Create(options), InvalidArgument);
  };
  refused([](SchedulerOptions& options) { options.batch_size = 0; });
  refused([](SchedulerOptions& options) { options.batch_size = (uint64_t{1} << 31) + 1; });
  refused([](SchedulerOptions& options) { options.arena.dataset_length = ~uint64_t{0}; });
  refused([](SchedulerOptions& options) { options.prefetch = 0; });
  refused([](SchedulerOptions& options) { options.prefetch = options.arena.slot_count; });
  refused([](SchedulerOptions& options) { options.arena.slot_count = 0; });
  refused([](SchedulerOptions& options) { options.arena.slot_count = kMaxSlots + 1; });
  refused([](SchedulerOptions& options) { options.producers = kMaxProducers + 1; });
  refused([](SchedulerOptions& options) { options.arena.slot_bytes = 4096; });
  refused([](SchedulerOptions& options) { options.round_robin = true; });
  refused([](SchedulerOptions& options) {
    options.round_robin = true;
    options.collation = Collation::kWhole;
    options.producers = 0;
  });
}

TEST(BatchScheduleTest, RefusesSuppliesThatDoNotFitAndGoesOn) {
  const auto scheduler = BatchScheduler::Create(ExplicitOptions());
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  const std::string index(sizeof(uint64_t), '\0');
  EXPECT_THROW(scheduler->Supply(1, index, false), FailedPrecondition);
  scheduler->StartEpoch(0);
  EXPECT_THROW(scheduler->Supply(0, "", false), InvalidArgument);
  EXPECT_THROW(scheduler->Supply(2, index, false), InvalidArgument);
  EXPECT_THROW(scheduler->Supply((uint64_t{1} << 32) + 1, "x", true), InvalidArgument);
  EXPECT_THROW(scheduler->Supply(1, std::string(size_t{5} << 20, 'x'), true), ResourceExhausted);
  scheduler->Supply(1, index, false);
  scheduler->EndSupply();
  EXPECT_THROW(scheduler->Supply(1, index, false), FailedPrecondition);
  MakeAll(producer);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), {0}));
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kEndOfEpoch);
}

TEST(BatchScheduleTest, TakeAndWaitOutOfTurnAreErrors) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 2));
  EXPECT_THROW(scheduler->Wait(0), FailedPrecondition);
  EXPECT_THROW(scheduler->Take(), FailedPrecondition);
  scheduler->StartEpoch(0);
  EXPECT_THROW(scheduler->Take(), FailedPrecondition);
}

TEST(BatchScheduleTest, ProducerNumberOutOfRangeIsAnError) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 2));
  EXPECT_THROW(BatchProducer(scheduler->arena(), kMaxProducers, scheduler->completion_fd()), OutOfRange);
  EXPECT_THROW(scheduler->WatchProducer(kMaxProducers, 0), OutOfRange);
  EXPECT_THROW(scheduler->Reclaim(kMaxProducers), OutOfRange);
}

}  // namespace
}  // namespace headrace::shared_memory
