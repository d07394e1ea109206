// Batches that are handed out as they are complete.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

SchedulerOptions AnyOrder(uint64_t dataset_length, uint64_t batch_size) {
  SchedulerOptions options = SmallOptions(dataset_length, batch_size);
  options.in_order = false;
  return options;
}

TEST(BatchAnyOrderTest, ACompleteBatchPassesThoseBeforeIt) {
  SchedulerOptions options = AnyOrder(5, 1);
  options.cross_epochs = false;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const std::optional<Claim> first = producer.TryClaim();
  const std::optional<Claim> second = producer.TryClaim();
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kTimedOut);
  EXPECT_THROW(scheduler->Take(), FailedPrecondition);
  MakeRows(producer, *producer.TryClaim());
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  MakeRows(producer, *second);
  for (const uint64_t number : {1, 2}) {  // the oldest of what is complete
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    EXPECT_TRUE(HasSamples(scheduler->Take(), {number}));
  }
  MakeAll(producer);
  for (const uint64_t number : {3, 4}) {
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    EXPECT_TRUE(HasSamples(scheduler->Take(), {number}));
  }
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kTimedOut) << "the epoch has not ended";
  MakeRows(producer, *first);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), {0}));
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kEndOfEpoch);
}

TEST(BatchAnyOrderTest, AnyCompletionWakesTheConsumer) {
  SKIP_WITHOUT_FORK();
  Crew crew(AnyOrder(1000, 1), 2, [](BatchProducer& producer, const Claim& claim) {
    if (claim.batch == 0) {
      pause();
    }
    MakeRows(producer, claim, {.cost_ns = 300'000});  // the consumer sleeps meanwhile
  });
  crew.scheduler().StartEpoch(0);
  for (uint64_t number = 1; number < 20; ++number) {
    EXPECT_EQ(crew.Expect().batch, number);
  }
}

TEST(BatchAnyOrderTest, EpochsDoNotMix) {
  SKIP_WITHOUT_FORK();
  Crew crew(AnyOrder(50, 4), 3, [](BatchProducer& producer, const Claim& claim) {
    MakeRows(producer, claim, {.cost_ns = claim.batch % 5 == 0 ? 400'000 : 0});
  });
  for (uint64_t epoch = 0; epoch < 10; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    std::set<uint64_t> numbers;
    while (const std::optional<ReadyBatch> batch = crew.Next()) {
      ASSERT_EQ(batch->epoch, epoch);
      const uint64_t first = batch->batch * 4;
      ASSERT_TRUE(HasSamples(*batch, Range(first, std::min<uint64_t>(4, 50 - first))));
      ASSERT_TRUE(numbers.insert(batch->batch).second);
    }
    ASSERT_EQ(numbers.size(), 13U);
  }
}

TEST(BatchAnyOrderTest, AnEpochResumesWithoutTheBatchesTaken) {
  SchedulerOptions options = AnyOrder(10, 1);
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch({0, 3, {4, 6}});
  std::set<uint64_t> numbers;
  while (MakeAll(producer), scheduler->Wait(0) == WaitOutcome::kBatch) {
    numbers.insert(scheduler->Take().batch);
  }
  EXPECT_EQ(numbers, (std::set<uint64_t>{3, 5, 7, 8, 9}));
  // Batches 3 and later were taken already: they must be opened anew.
  scheduler->StartEpoch(0, 8);
  MakeAll(producer);
  EXPECT_EQ(scheduler->Take().batch, 8U);
}

// A batch is overtaken by more others than the table of open batches has room for, and its maker dies at last.
TEST(BatchAnyOrderTest, ABatchLeftFarBehindIsMadeInTheEnd) {
  SKIP_WITHOUT_FORK();
  bool stops = true;  // as known when a producer is started
  Crew crew(AnyOrder(3000, 1), 2, [&stops](BatchProducer& producer, const Claim& claim) {
    if (claim.batch == 0 && producer.id() == 0 && stops) {
      raise(SIGSTOP);
    }
    MakeRows(producer, claim);
  });
  int status = 0;
  crew.producer(1).Kill(SIGSTOP);
  ASSERT_EQ(waitpid(crew.producer(1).pid(), &status, WUNTRACED), crew.producer(1).pid());
  crew.scheduler().StartEpoch(0);
  ASSERT_EQ(waitpid(crew.producer(0).pid(), &status, WUNTRACED), crew.producer(0).pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  crew.producer(1).Kill(SIGCONT);
  uint64_t taken = 0;
  while (crew.scheduler().Wait(100 * kMillisecond) == WaitOutcome::kBatch) {
    ASSERT_EQ(crew.scheduler().Take().batch, ++taken);
  }
  EXPECT_GE(taken, 1000U);
  EXPECT_LT(taken, 2999U) << "the table was never full: the test has lost its point";
  stops = false;
  crew.producer(0).Kill();
  EXPECT_TRUE(HasSamples(crew.Expect(), {0}));
  while (crew.Next()) {
    ++taken;
  }
  EXPECT_EQ(taken, 2999U);
}

TEST(BatchAnyOrderTest, SamplesOfTwoShapesFailInAnyOrderToo) {
  const auto scheduler = BatchScheduler::Create(AnyOrder(6, 2));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const auto make = [&producer] {
    while (const std::optional<Claim> claim = producer.TryClaim()) {
      MakeRows(producer, *claim,
               {.words = claim->kind == ClaimKind::kWhole || claim->begin != 1 || claim->batch != 1 ? 4U : 5U});
    }
  };
  std::vector<uint64_t> numbers;
  for (int round = 0; round < 10 && numbers.size() < 3; ++round) {
    make();
    while (scheduler->Wait(0) == WaitOutcome::kBatch) {
      const ReadyBatch batch = scheduler->Take();
      EXPECT_TRUE(HasSamples(batch, Range(batch.batch * 2, 2)));
      numbers.push_back(batch.batch);
    }
  }
  EXPECT_EQ(numbers, (std::vector<uint64_t>{0, 2, 1})) << "batch 1 is made once more, as a whole";
}

}  // namespace
}  // namespace headrace::shared_memory
