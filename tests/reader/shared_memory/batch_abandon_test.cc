// What becomes of rows that keep ending their producers: the batch fails, or is made without them. And how soon deaths
// are noticed.
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "reader/shared_memory/waiting/futex.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

// A scheduler with one epoch, its producers in the test's own thread.
class AbandonTest : public ::testing::Test {
 protected:
  void Begin(const SchedulerOptions& options) {
    scheduler_ = BatchScheduler::Create(options);
    scheduler_->StartEpoch(0);
  }
  BatchProducer Producer(uint32_t id) { return {scheduler_->arena(), id, scheduler_->completion_fd()}; }
  // A producer claims, notes the row, and is gone.
  ProducerDeath DieAt(uint32_t row) {
    BatchProducer producer = Producer(7);
    while (const std::optional<Claim> claim = producer.TryClaim()) {
      if (claim->begin <= row && row < claim->end) {
        producer.BeginRow(*claim, row);
        return scheduler_->Reclaim(7);
      }
      MakeSplit(producer, *claim);
    }
    ADD_FAILURE() << "row " << row << " cannot be claimed";
    return {};
  }
  void MakeRest() {
    BatchProducer producer = Producer(3);
    while (const std::optional<Claim> claim = producer.TryClaim()) {
      MakeSplit(producer, *claim);
    }
  }

  std::shared_ptr<BatchScheduler> scheduler_;
};

SchedulerOptions OneEpoch(uint64_t length, uint64_t batch_size) {
  SchedulerOptions options = SmallOptions(length, batch_size);
  options.cross_epochs = false;
  return options;
}

std::vector<uint64_t> Without(std::vector<uint64_t> from, const std::vector<uint64_t>& excluded) {
  for (const uint64_t each : excluded) {
    std::erase(from, each);
  }
  return from;
}

class SkipTest : public AbandonTest, public ::testing::WithParamInterface<Collation> {};

INSTANTIATE_TEST_SUITE_P(Collations, SkipTest,
                         ::testing::Values(Collation::kNone, Collation::kWhole, Collation::kSplit));

TEST_P(SkipTest, TheBatchComesWithoutTheRowsThatWereSkipped) {
  SchedulerOptions options = OneEpoch(16, 8);
  options.collation = GetParam();
  Begin(options);
  const ProducerDeath first = DieAt(5);
  EXPECT_TRUE(first.busy);
  EXPECT_EQ(first.row, 5U);
  EXPECT_TRUE(scheduler_->Skip(first.sequence, first.row));
  EXPECT_TRUE(scheduler_->Skip(first.sequence, first.row)) << "it is left out already";
  // The rows that are left are numbered anew, but a death names the row that it was.
  const ProducerDeath second = DieAt(5);
  EXPECT_EQ(second.sequence, first.sequence);
  EXPECT_EQ(second.row, 6U);
  EXPECT_EQ(second.kind, ClaimKind::kWhole);
  EXPECT_TRUE(scheduler_->Skip(second.sequence, second.row));
  const ProducerDeath third = DieAt(0);
  EXPECT_EQ(third.row, 0U);
  EXPECT_TRUE(scheduler_->Skip(third.sequence, third.row));
  MakeRest();
  ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler_->Take(), Without(Range(0, 8), {0, 5, 6})));
  ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler_->Take(), Range(8, 8)));
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kEndOfEpoch);
}

TEST_P(SkipTest, AFailureNamesTheRowThatWasPlanned) {
  SchedulerOptions options = OneEpoch(8, 8);
  options.collation = GetParam();
  Begin(options);
  const ProducerDeath death = DieAt(2);
  ASSERT_TRUE(scheduler_->Skip(death.sequence, death.row));
  BatchProducer producer = Producer(0);
  const std::optional<Claim> claim = producer.TryClaim();
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(claim->rows, 7U);
  producer.Fail(*claim, 4, ProblemKind::kFailed, "bad");
  ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
  EXPECT_EQ(scheduler_->Take().problem_row, 5U);
}

TEST_F(AbandonTest, IndicesThatWereGivenAreSkippedToo) {
  for (const bool pickled : {false, true}) {
    SchedulerOptions options = OneEpoch(100, 4);
    options.arena.order = IndexOrder::kExplicit;
    Begin(options);
    const std::vector<int64_t> indices{40, 10, 30, 20};
    const std::string_view bytes(reinterpret_cast<const char*>(indices.data()), indices.size() * sizeof(int64_t));
    scheduler_->Supply(4, bytes, pickled);
    const ProducerDeath death = DieAt(1);
    ASSERT_TRUE(scheduler_->Skip(death.sequence, death.row));
    BatchProducer producer = Producer(0);
    const std::optional<Claim> claim = producer.TryClaim();
    ASSERT_TRUE(claim.has_value());
    ASSERT_EQ(claim->rows, 3U);
    const std::vector<uint32_t> planned{0, 2, 3};
    for (uint32_t row = 0; row < 3; ++row) {
      EXPECT_EQ(producer.PlannedRow(*claim, row), planned[row]);
      if (!pickled) {
        EXPECT_EQ(producer.IndexAt(*claim, row), static_cast<uint64_t>(indices[planned[row]]));
      }
    }
    EXPECT_EQ(producer.PickledIndices(*claim), pickled ? bytes : std::string_view());
  }
}

TEST_F(AbandonTest, ABatchWithoutAnyRowLeftIsNotDelivered) {
  Begin(OneEpoch(4, 2));
  for (int i = 0; i < 2; ++i) {
    const ProducerDeath death = DieAt(0);
    ASSERT_TRUE(scheduler_->Skip(death.sequence, death.row));
    EXPECT_EQ(scheduler_->Skip(death.sequence, death.row), i == 0) << "it is not open any more";
  }
  MakeRest();
  ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
  const ReadyBatch batch = scheduler_->Take();
  EXPECT_EQ(batch.batch, 1U);
  EXPECT_TRUE(HasSamples(batch, {2, 3}));
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kEndOfEpoch);
}

TEST_F(AbandonTest, ABatchIsMadeAnewWhenTheOthersHaveLetGoOfIt) {
  Begin(OneEpoch(4, 4));
  BatchProducer other = Producer(0);
  BatchProducer third = Producer(1);
  const std::optional<Claim> others = other.TryClaim();  // row 0
  const std::optional<Claim> thirds = third.TryClaim();  // row 1
  ASSERT_TRUE(others.has_value() && thirds.has_value());
  const ProducerDeath death = DieAt(3);
  ASSERT_TRUE(scheduler_->Skip(death.sequence, death.row));
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kTimedOut);
  EXPECT_FALSE(other.TryClaim().has_value()) << "the slot is still written to";
  MakeRows(other, *others);
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kTimedOut);
  scheduler_->Reclaim(1);  // it dies, too
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kTimedOut);
  const std::optional<Claim> anew = other.TryClaim();
  ASSERT_TRUE(anew.has_value());
  EXPECT_EQ(anew->kind, ClaimKind::kWhole);
  MakeRows(other, *anew);
  ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler_->Take(), {0, 1, 2}));
}

TEST_F(AbandonTest, AnAbandonedBatchFailsAtOnceAndItsSlotIsFreeLater) {
  SchedulerOptions options = OneEpoch(40, 2);
  options.arena.slot_count = 4;
  Begin(options);
  BatchProducer slow = Producer(0);
  const std::optional<Claim> claim = slow.TryClaim();
  const ProducerDeath death = DieAt(1);
  ASSERT_TRUE(scheduler_->Abandon(death.sequence, death.row));
  EXPECT_FALSE(scheduler_->Abandon(death.sequence, death.row)) << "it has failed already";
  EXPECT_FALSE(scheduler_->Skip(death.sequence, death.row));
  ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
  const ReadyBatch failed = scheduler_->Take();
  EXPECT_EQ(failed.problem, ProblemKind::kKilled);
  EXPECT_EQ(failed.problem_row, 1U);
  EXPECT_EQ(failed.batch, 0U);
  EXPECT_EQ(failed.memory, nullptr);
  for (uint64_t batch = 1; batch < 20; ++batch) {
    MakeRest();
    ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
    ASSERT_TRUE(HasSamples(scheduler_->Take(), Range(batch * 2, 2)));
    if (batch == 10) {
      MakeRows(slow, *claim);  // in vain, into a slot that is not another batch's yet
    }
  }
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kEndOfEpoch);
}

TEST_F(AbandonTest, NothingHappensToABatchWhoseRowIsMade) {
  Begin(OneEpoch(4, 2));
  const ProducerDeath death = DieAt(0);
  BatchProducer producer = Producer(0);
  MakeRows(producer, *producer.TryClaim());
  EXPECT_FALSE(scheduler_->Abandon(death.sequence, 0));
  EXPECT_FALSE(scheduler_->Skip(death.sequence, 0));
  EXPECT_FALSE(scheduler_->Skip(death.sequence, 2)) << "there is no such row";
  EXPECT_FALSE(scheduler_->Abandon(death.sequence + 100, 0)) << "there is no such batch";
  MakeRest();
  ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler_->Take(), {0, 1}));
  EXPECT_FALSE(scheduler_->Abandon(death.sequence, 1)) << "it is the consumer's";
}

TEST_F(AbandonTest, NoMoreRowsAreSkippedThanThereIsRoomFor) {
  Begin(OneEpoch(kMaxExcluded + 2, kMaxExcluded + 2));
  for (uint32_t i = 0; i <= kMaxExcluded; ++i) {
    const ProducerDeath death = DieAt(0);
    EXPECT_EQ(death.row, i);
    ASSERT_EQ(scheduler_->Skip(death.sequence, death.row), i < kMaxExcluded);
  }
  MakeRest();
  EXPECT_TRUE(HasSamples(scheduler_->Take(), {kMaxExcluded, kMaxExcluded + 1}));
}

TEST_F(AbandonTest, AStreamIsAbandonedOnly) {
  SchedulerOptions options = OneEpoch(0, 4);
  options.arena.order = IndexOrder::kStream;
  Begin(options);
  const ProducerDeath death = DieAt(2);
  EXPECT_FALSE(scheduler_->Skip(death.sequence, death.row));
  EXPECT_TRUE(scheduler_->Abandon(death.sequence, death.row));
  ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
  EXPECT_EQ(scheduler_->Take().problem, ProblemKind::kKilled);
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kEndOfEpoch);
}

// Two of 16 samples kill every process that makes them.
TEST_P(SkipTest, AnEpochGoesOnWithoutDeadlySamples) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = OneEpoch(48, 8);
  options.collation = GetParam();
  Crew crew(options, 3, [](BatchProducer& producer, const Claim& claim) {
    for (uint32_t row = claim.begin; row < claim.end && claim.kind != ClaimKind::kCollate; ++row) {
      producer.BeginRow(claim, row);
      if (producer.IndexAt(claim, row) == 13 || producer.IndexAt(claim, row) == 10) {
        raise(SIGKILL);
      }
    }
    MakeSplit(producer, claim);
  });
  crew.GiveUpAfter(2, [](BatchScheduler& scheduler, const ProducerDeath& death) {
    EXPECT_TRUE(scheduler.Skip(death.sequence, death.row));
  });
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    for (uint64_t batch = 0; batch < 6; ++batch) {
      ASSERT_TRUE(HasSamples(crew.Expect(), Without(Range(batch * 8, 8), {10, 13})));
    }
    EXPECT_FALSE(crew.Next().has_value());
  }
}

// A worker that dies is one too few, also where the others keep up with the consumer.
TEST(DeathNoticeTest, ADeathIsReportedWhileBatchesAreReady) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(SmallOptions(uint64_t{1} << 40, 1));
  ChildProcess child([] { pause(); });
  scheduler->WatchProducer(0, child.pidfd());
  scheduler->StartEpoch(0);
  BatchProducer other(scheduler->arena(), 1, scheduler->completion_fd());
  child.Kill();
  child.Join();
  const uint64_t begin = MonotonicNanoseconds();
  WaitOutcome outcome = WaitOutcome::kBatch;
  while (outcome == WaitOutcome::kBatch && MonotonicNanoseconds() - begin < kPatience) {
    MakeAll(other);
    outcome = scheduler->Wait(0);
    if (outcome == WaitOutcome::kBatch) {
      scheduler->Take();
    }
  }
  EXPECT_EQ(outcome, WaitOutcome::kProducerDied);
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kBatch) << "it is reported once";
  EXPECT_EQ(scheduler->TakeDeaths().at(0).producer, 0U);
}

TEST(DeathNoticeTest, AllThreadsOfAProcessDieWithIt) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(SmallOptions(4, 4));
  ChildProcess child([] { pause(); });
  scheduler->WatchProducer(4, child.pidfd(), 3);
  scheduler->Reclaim(5);
  scheduler->StartEpoch(0);
  child.Kill();
  ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kProducerDied);
  const std::vector<ProducerDeath> deaths = scheduler->TakeDeaths();
  ASSERT_EQ(deaths.size(), 2U) << "one of them was known to be gone";
  EXPECT_EQ(deaths[0].producer, 4U);
  EXPECT_EQ(deaths[1].producer, 6U);
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kTimedOut);
}

}  // namespace
}  // namespace headrace::shared_memory
