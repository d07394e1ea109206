// Pools that shrink and grow while batches are made.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "reader/shared_memory/waiting/futex.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

void ExpectNext(Crew& crew, uint64_t number) {
  const ReadyBatch batch = crew.Expect();
  ASSERT_EQ(batch.batch, number);
  ASSERT_TRUE(HasSamples(batch, Range(number * 4, 4)));
}

TEST(BatchRetireTest, ARetiredProducerEndsAndIsNotMissed) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(4000, 4), 3);
  crew.scheduler().StartEpoch(0);
  for (uint64_t number = 0; number < 100; ++number) {
    if (number == 30 || number == 60) {
      const uint32_t id = number == 30 ? 2 : 0;
      crew.scheduler().RetireProducer(id);
      EXPECT_EQ(crew.producer(id).Join(), 0) << "it ends of its own accord";
    }
    ExpectNext(crew, number);
  }
  EXPECT_TRUE(crew.deaths().empty());
}

TEST(BatchRetireTest, ASleepingProducerEndsToo) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(40, 4), 2);
  crew.producer(0).AwaitSleep();
  crew.producer(1).AwaitSleep();
  crew.scheduler().RetireProducer(1);
  EXPECT_EQ(crew.producer(1).Join(), 0);
  crew.scheduler().StartEpoch(0);
  ExpectNext(crew, 0);
}

TEST(BatchRetireTest, TheClaimAtHandIsCompleted) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(1, 1));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const std::optional<Claim> claim = producer.WaitForClaim();
  scheduler->RetireProducer(0);
  MakeRows(producer, *claim);
  EXPECT_FALSE(producer.WaitForClaim().has_value());
  EXPECT_FALSE(producer.stopped());
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
}

TEST(BatchRetireTest, ADeathWhileRetiringIsRepairedAndNotReported) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(400, 4), 2, [](BatchProducer& producer, const Claim& claim) {
    if (producer.id() == 1) {
      raise(SIGSTOP);
    }
    MakeRows(producer, claim);
  });
  int status = 0;
  crew.producer(0).Kill(SIGSTOP);
  ASSERT_EQ(waitpid(crew.producer(0).pid(), &status, WUNTRACED), crew.producer(0).pid());
  crew.scheduler().StartEpoch(0);
  ASSERT_EQ(waitpid(crew.producer(1).pid(), &status, WUNTRACED), crew.producer(1).pid());
  ASSERT_TRUE(WIFSTOPPED(status)) << "it holds a claim";
  crew.scheduler().RetireProducer(1);
  crew.producer(1).Kill();
  crew.producer(0).Kill(SIGCONT);
  for (uint64_t number = 0; number < 100; ++number) {
    ExpectNext(crew, number);
  }
  EXPECT_TRUE(crew.deaths().empty());
}

TEST(BatchRetireTest, AnIdIsFreeAgainWhenItsProducerHasEnded) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(4000, 4), 2);
  crew.scheduler().StartEpoch(0);
  uint64_t number = 0;
  for (int round = 0; round < 20; ++round) {
    crew.scheduler().RetireProducer(1);
    crew.producer(1).Join();
    ExpectNext(crew, number++);
    crew.Restart(1);
    ExpectNext(crew, number++);
    // It serves: the other one is away.
    crew.producer(0).Kill(SIGSTOP);
    for (int i = 0; i < 8; ++i) {
      const WaitOutcome outcome = crew.scheduler().Wait(50 * kMillisecond);
      if (outcome != WaitOutcome::kBatch) {
        break;  // the one that is stopped holds a claim of it
      }
      ExpectNext(crew, number++);
    }
    crew.producer(0).Kill(SIGCONT);
    ExpectNext(crew, number++);
  }
  EXPECT_TRUE(crew.deaths().empty());
}

TEST(BatchRetireTest, AnIdIsNotGivenTwiceWhileItsProducerLives) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(SmallOptions(4, 4));
  ChildProcess old([] { pause(); });
  const ChildProcess young([] { pause(); });
  scheduler->WatchProducer(0, old.pidfd());
  EXPECT_THROW(scheduler->WatchProducer(0, young.pidfd()), AlreadyExists);
  scheduler->RetireProducer(0);
  EXPECT_THROW(scheduler->WatchProducer(0, young.pidfd()), FailedPrecondition);
  old.Kill();
  old.Join();
  EXPECT_THROW(scheduler->WatchProducer(0, young.pidfd()), FailedPrecondition) << "it may have left a claim";
  scheduler->Reclaim(0);
  scheduler->WatchProducer(0, young.pidfd());
  EXPECT_THROW(scheduler->RetireProducer(kMaxProducers), OutOfRange);
}

TEST(BatchRetireTest, ADeathThatWasNotAskedForYetIsNotReportedAnyMore) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(4, 4), 2, [](BatchProducer&, const Claim&) { pause(); });
  crew.scheduler().StartEpoch(0);
  crew.producer(1).Kill();
  crew.producer(1).Join();
  ASSERT_EQ(crew.scheduler().Wait(kPatience), WaitOutcome::kProducerDied);
  crew.scheduler().RetireProducer(1);
  EXPECT_TRUE(crew.scheduler().TakeDeaths().empty());
}

// Producers are killed and retired at random, and killed while they retire; each row of each batch is right
// nevertheless, and nothing hangs.
TEST(BatchRetireTest, PoolsMayChangeInAStorm) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(uint64_t{1} << 40, 4);
  options.collation = Collation::kSplit;
  options.prefetch = 6;
  Crew crew(options, 3,
            [](BatchProducer& producer, const Claim& claim) { MakeSplit(producer, claim, {.cost_ns = 5'000}); });
  crew.scheduler().StartEpoch(0);
  std::mt19937_64 random(5);
  uint64_t number = 0;
  uint64_t next_change = MonotonicNanoseconds();
  for (int changes = 0; changes < 60 || number < 20;) {
    const WaitOutcome outcome = crew.scheduler().Wait(kMillisecond);
    if (outcome == WaitOutcome::kBatch) {
      ASSERT_TRUE(HasSamples(crew.scheduler().Take(), Range(number * 4, 4)));
      ++number;
    } else if (outcome == WaitOutcome::kProducerDied) {
      crew.ReplaceDead();
    } else {
      ASSERT_EQ(outcome, WaitOutcome::kTimedOut);
      ASSERT_LT(MonotonicNanoseconds(), next_change + kPatience);
    }
    if (changes < 60 && MonotonicNanoseconds() >= next_change) {
      const auto id = static_cast<uint32_t>(random() % crew.size());
      const uint64_t kind = random() % 3;
      if (kind != 0) {
        crew.scheduler().RetireProducer(id);
      }
      if (kind != 1) {
        crew.producer(id).Kill();
      }
      if (kind != 0) {
        crew.producer(id).Join();
        crew.scheduler().Reclaim(id);
        crew.Restart(id);
      }
      ++changes;
      next_change = MonotonicNanoseconds() + random() % (5 * kMillisecond);
    }
  }
}

TEST(BatchRetireTest, MoreProducersCutBatchesFiner) {
  SchedulerOptions options = SmallOptions(1 << 20, 64);
  options.prefetch = 1;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const auto claims_of_ten = [&] {
    const uint64_t before = scheduler->stats().all.claims;
    for (int i = 0; i < 10; ++i) {
      MakeAll(producer, {.cost_ns = 20'000});
      EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
      scheduler->Take();
    }
    return scheduler->stats().all.claims - before;
  };
  claims_of_ten();  // learns what a sample costs
  const uint64_t one = claims_of_ten();
  scheduler->SetProducers(kMaxProducers);
  claims_of_ten();  // a batch cut before is open
  EXPECT_GT(claims_of_ten(), one * 3 / 2);
  EXPECT_THROW(scheduler->SetProducers(kMaxProducers + 1), InvalidArgument);
}

}  // namespace
}  // namespace headrace::shared_memory
