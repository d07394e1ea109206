// Batches whose samples are made by several producers and collated by one.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "reader/shared_memory/waiting/futex.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

SchedulerOptions Split(uint64_t dataset_length, uint64_t batch_size) {
  SchedulerOptions options = SmallOptions(dataset_length, batch_size);
  options.collation = Collation::kSplit;
  return options;
}

Crew::Work SplitMakers(const SampleOptions& options = {}) {
  return [options](BatchProducer& producer, const Claim& claim) { MakeSplit(producer, claim, options); };
}

class BatchSplitTest : public ::testing::TestWithParam<uint32_t> {};

INSTANTIATE_TEST_SUITE_P(Producers, BatchSplitTest, ::testing::Values(1, 2, 4));

TEST_P(BatchSplitTest, BatchesAreCollatedFromAllTheirSamples) {
  SKIP_WITHOUT_FORK();
  for (const uint64_t batch_size : {1, 7, 300}) {
    SchedulerOptions options = Split(1000, batch_size);
    Crew crew(options, GetParam(), SplitMakers());
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      crew.scheduler().StartEpoch(epoch);
      for (uint64_t first = 0; first < 1000; first += batch_size) {
        ASSERT_TRUE(HasSamples(crew.Expect(), Range(first, std::min(batch_size, 1000 - first))));
      }
      ASSERT_FALSE(crew.Next().has_value());
    }
  }
}

TEST_P(BatchSplitTest, OnlyCollatorsCollate) {
  SKIP_WITHOUT_FORK();
  for (uint32_t collators = 1; collators <= GetParam(); ++collators) {
    SchedulerOptions options = Split(400, 8);
    options.collators = collators;
    // So slow that the others sleep when the last item is done.
    Crew crew(options, GetParam(), [collators](BatchProducer& producer, const Claim& claim) {
      if (claim.kind == ClaimKind::kCollate && producer.id() >= collators) {
        producer.Fail(claim, 0, ProblemKind::kFailed, "not a collator");
        return;
      }
      MakeSplit(producer, claim, {.cost_ns = producer.id() == 0 ? 0 : 100'000});
    });
    crew.scheduler().StartEpoch(0);
    for (uint64_t batch = 0; batch < 50; ++batch) {
      ASSERT_TRUE(HasSamples(crew.Expect(), Range(batch * 8, 8)));
    }
  }
}

TEST_P(BatchSplitTest, TheFirstFailingRowIsReportedAndNothingIsCollated) {
  SKIP_WITHOUT_FORK();
  Crew crew(Split(64, 8), GetParam(), [](BatchProducer& producer, const Claim& claim) {
    const uint32_t row = std::max(claim.begin, 3U);
    if (claim.kind == ClaimKind::kItems && claim.batch % 2 == 1 && row < claim.end) {
      usleep(100 * (8 - row));  // the later the row, the sooner it fails
      producer.Fail(claim, row, ProblemKind::kFailed, "row " + std::to_string(row));
      return;
    }
    if (claim.kind == ClaimKind::kCollate && claim.batch % 2 == 1) {
      producer.Fail(claim, 0, ProblemKind::kFailed, "collated though samples are missing");
      return;
    }
    MakeSplit(producer, claim);
  });
  crew.scheduler().StartEpoch(0);
  for (uint64_t number = 0; number < 8; ++number) {
    const ReadyBatch batch = crew.Expect();
    if (number % 2 == 0) {
      ASSERT_TRUE(HasSamples(batch, Range(number * 8, 8)));
      continue;
    }
    ASSERT_EQ(batch.problem, ProblemKind::kFailed);
    ASSERT_EQ(batch.problem_row, 3U);
    ASSERT_EQ(batch.problem_message, "row 3");
  }
}

TEST_P(BatchSplitTest, SamplesThatCannotBeKeptAreMadeAsAWhole) {
  SKIP_WITHOUT_FORK();
  Crew crew(Split(64, 8), GetParam(), [](BatchProducer& producer, const Claim& claim) {
    if (claim.kind == ClaimKind::kItems && claim.batch % 3 == 1 && claim.end == claim.rows) {
      producer.Fail(claim, claim.begin, ProblemKind::kMismatch, {});
      return;
    }
    if (claim.kind == ClaimKind::kCollate && claim.batch % 3 == 1) {
      producer.Fail(claim, 0, ProblemKind::kFailed, "collated though a sample was not kept");
      return;
    }
    MakeSplit(producer, claim);
  });
  crew.scheduler().StartEpoch(0);
  for (uint64_t number = 0; number < 8; ++number) {
    ASSERT_TRUE(HasSamples(crew.Expect(), Range(number * 8, 8)));
  }
}

// A claimant and a scheduler in one thread, claim by claim.
class StepByStep : public ::testing::Test {
 protected:
  void Begin(const SchedulerOptions& options) {
    scheduler_ = BatchScheduler::Create(options);
    scheduler_->StartEpoch(0);
  }
  BatchProducer Producer(uint32_t id) { return {scheduler_->arena(), id, scheduler_->completion_fd()}; }

  std::shared_ptr<BatchScheduler> scheduler_;
};

SchedulerOptions OneBatch() {
  SchedulerOptions options = Split(2, 2);
  options.prefetch = 1;
  options.cross_epochs = false;
  return options;
}

TEST_F(StepByStep, TheCollationIsFreeWhenTheLastItemIsDone) {
  SchedulerOptions options = OneBatch();
  options.producers = 2;
  Begin(options);
  BatchProducer producer = Producer(0);
  BatchProducer other = Producer(1);
  const std::optional<Claim> first = producer.TryClaim();
  const std::optional<Claim> second = other.TryClaim();
  EXPECT_FALSE(producer.TryClaim().has_value());
  MakeSplit(other, *second);
  EXPECT_FALSE(other.TryClaim().has_value()) << "an item is missing";
  MakeSplit(producer, *first);
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kTimedOut);
  const std::optional<Claim> collation = producer.TryClaim();
  ASSERT_TRUE(collation.has_value());
  EXPECT_EQ(collation->kind, ClaimKind::kCollate);
  EXPECT_EQ(collation->begin, 0U);
  EXPECT_EQ(collation->end, 2U);
  EXPECT_FALSE(other.TryClaim().has_value()) << "it is claimed once";
  MakeSplit(producer, *collation);
  ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler_->Take(), Range(0, 2)));
  EXPECT_EQ(scheduler_->stats().all.samples, 2U) << "not counted again by the collation";
}

TEST_F(StepByStep, ACollatorThatHadLookedAwayLooksAgain) {
  SchedulerOptions options = OneBatch();
  options.collators = 1;
  Begin(options);
  BatchProducer collator = Producer(0);
  BatchProducer other = Producer(1);
  const std::optional<Claim> first = other.TryClaim();
  const std::optional<Claim> second = other.TryClaim();
  EXPECT_FALSE(collator.TryClaim().has_value());
  MakeSplit(other, *first);
  MakeSplit(other, *second);
  EXPECT_FALSE(other.TryClaim().has_value()) << "not a collator";
  const std::optional<Claim> collation = collator.TryClaim();
  ASSERT_TRUE(collation.has_value());
  EXPECT_EQ(collation->kind, ClaimKind::kCollate);
}

TEST_F(StepByStep, WhoRetiresLeavesTheCollationToTheOthers) {
  Begin(OneBatch());
  BatchProducer producer = Producer(0);
  BatchProducer other = Producer(1);
  const std::optional<Claim> first = producer.TryClaim();
  const std::optional<Claim> second = producer.TryClaim();
  EXPECT_FALSE(other.TryClaim().has_value());
  MakeSplit(producer, *first);
  scheduler_->RetireProducer(0);
  MakeSplit(producer, *second);
  EXPECT_FALSE(producer.WaitForClaim().has_value());
  EXPECT_TRUE(other.TryClaim().has_value());
}

TEST_F(StepByStep, ACollationThatIsNotNeededIsNeverClaimed) {
  Begin(Split(40, 2));
  BatchProducer producer = Producer(0);
  for (int round = 0; round < 10; ++round) {
    producer.Fail(*producer.TryClaim(), 0, ProblemKind::kFailed, "first");
    producer.Fail(*producer.TryClaim(), 1, ProblemKind::kFailed, "second");
    const std::optional<Claim> next = producer.TryClaim();
    ASSERT_EQ(next->kind, ClaimKind::kItems) << "of the next batch";
    ASSERT_EQ(scheduler_->Wait(0), WaitOutcome::kBatch);
    EXPECT_EQ(scheduler_->Take().problem_message, "first");
    producer.Fail(*next, 0, ProblemKind::kFailed, "first");
    producer.Fail(*producer.TryClaim(), 1, ProblemKind::kFailed, "second");
    EXPECT_EQ(scheduler_->Take().problem_message, "first");
  }
}

TEST_F(StepByStep, AnAbandonedBatchIsNotCollated) {
  Begin(OneBatch());
  BatchProducer producer = Producer(0);
  const std::optional<Claim> first = producer.TryClaim();
  MakeSplit(producer, *producer.TryClaim());
  scheduler_->StartEpoch(1);
  MakeSplit(producer, *first);
  const std::optional<Claim> next = producer.TryClaim();
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->epoch, 1U);
  EXPECT_EQ(next->kind, ClaimKind::kItems);
}

TEST_F(StepByStep, SamplesBeyondTheSlotAreRefused) {
  SchedulerOptions options = OneBatch();
  options.arena.slot_bytes = size_t{1} << 20;
  Begin(options);
  BatchProducer producer = Producer(0);
  const std::string half((size_t{1} << 20) * 35 / 100, 'x');
  const std::optional<Claim> first = producer.TryClaim();
  producer.Keep(*first, 0, "", {half});
  const std::optional<Claim> second = producer.TryClaim();
  EXPECT_THROW(producer.Keep(*second, 1, "", {half, half}), ResourceExhausted);
}

TEST_F(StepByStep, LeavesDoNotReachIntoTheSamples) {
  SchedulerOptions options = OneBatch();
  options.arena.slot_bytes = size_t{1} << 20;
  Begin(options);
  BatchProducer producer = Producer(0);
  const std::string sample(200'000, 'x');
  std::optional<Claim> claim;
  for (uint32_t row = 0; row < 2; ++row) {
    claim = producer.TryClaim();
    producer.Keep(*claim, row, "", {sample});
    producer.Complete(*claim);
  }
  claim = producer.TryClaim();
  ASSERT_EQ(claim->kind, ClaimKind::kCollate);
  const size_t limit = producer.LeavesLimit(*claim);
  const auto leaf_of = [&](size_t bytes) {
    const LeafSpec leaf{LeafKind::kArray, -1, 1, {static_cast<int64_t>(bytes)}};
    return BatchLayout({leaf}, "", producer.DataOffset(*claim), limit);
  };
  EXPECT_THROW(leaf_of(limit - kDataOffset + 1), ResourceExhausted);
  // The largest one, with other bytes than the samples.
  const BatchLayout layout = leaf_of(limit - kDataOffset);
  ASSERT_TRUE(producer.PublishLayout(*claim, layout.bytes()));
  std::memset(producer.Data(*claim) + layout.leaf(0).offset, 'y', limit - kDataOffset);
  EXPECT_THROW(producer.Attach(*claim, "no room"), ResourceExhausted);
  for (const KeptSample& kept : producer.Kept(*claim)) {
    ASSERT_EQ(kept.buffers.size(), 1U);
    EXPECT_EQ(std::string(reinterpret_cast<char*>(kept.buffers[0].data()), kept.buffers[0].size()), sample);
  }
}

TEST_F(StepByStep, TheLimitOfLeavesIsWhereTheSamplesBegin) {
  Begin(OneBatch());
  BatchProducer producer = Producer(0);
  const std::string sample(1000, 'x');
  producer.Keep(*producer.TryClaim(), 0, "", {sample});
  const std::optional<Claim> second = producer.TryClaim();
  // The table, and a message of 24 bytes of numbers, and 1000 bytes.
  EXPECT_EQ(producer.LeavesLimit(*second), scheduler_->arena()->slot_bytes() - 64 - 64 - 1024);
}

TEST_F(StepByStep, BytesDoNotCountTheSamplesBesideTheBatch) {
  Begin(OneBatch());
  BatchProducer producer = Producer(0);
  while (const std::optional<Claim> claim = producer.TryClaim()) {
    if (claim->kind == ClaimKind::kCollate) {
      producer.PublishLayout(*claim, SampleLayout(producer, *claim, 4).bytes());
      producer.Attach(*claim, "state");
      producer.Complete(*claim);
    } else {
      MakeSplit(producer, *claim);
    }
  }
  EXPECT_EQ(scheduler_->Take().attachment, "state");
  EXPECT_EQ(scheduler_->stats().bytes, 2U * 32 + 64);
}

TEST(BatchSplitMemoryTest, IsBoundedOverAnEpoch) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = Split(4000, 4);
  Crew crew(options, 2, [](BatchProducer& producer, const Claim& claim) {
    // Of many sizes, 16 KiB at most.
    MakeSplit(producer, claim, {.words = 64 + static_cast<uint32_t>(claim.batch * 7919 % 2000)});
  });
  crew.scheduler().StartEpoch(0);
  size_t early = 0;
  for (uint64_t number = 0; number < 1000; ++number) {
    ASSERT_EQ(crew.Expect().problem, ProblemKind::kNone);
    if (number == 500) {
      early = crew.scheduler().stats().resident_bytes;
    }
  }
  EXPECT_LE(crew.scheduler().stats().resident_bytes, early + (32 << 10));
}

TEST(BatchSplitMemoryTest, BatchesThatAreKeptGiveTheirSamplesBack) {
  SKIP_WITHOUT_FORK();
  constexpr uint32_t kWords = 16 << 10;  // 128 KiB a sample
  Crew crew(Split(40, 4), 2, SplitMakers({.words = kWords}));
  crew.scheduler().StartEpoch(0);
  std::deque<ReadyBatch> kept;
  for (uint64_t number = 0; number < 10; ++number) {
    kept.push_back(crew.Expect());
  }
  for (uint64_t number = 0; number < 10; ++number) {
    EXPECT_TRUE(HasSamples(kept[number], Range(number * 4, 4), kWords));
  }
  // Ten batches, the samples of two of them, and three batches with samples that are open.
  constexpr size_t kBatch = size_t{kWords} * 8 * 4;
  EXPECT_LE(crew.scheduler().stats().resident_bytes, (10 + 2 + 3 * 2) * kBatch + (16 << 20) / 4);
}

struct SplitStorm {
  const char* name;
  uint32_t collators;
  bool in_order;
  bool abandon;
  bool uneven;
};

void PrintTo(const SplitStorm& storm, std::ostream* out) { *out << storm.name; }

class SplitStormTest : public ::testing::TestWithParam<SplitStorm> {};

INSTANTIATE_TEST_SUITE_P(Kinds, SplitStormTest,
                         ::testing::Values(SplitStorm{"all_collate", kMaxProducers, true, false, false},
                                           SplitStorm{"one_collates", 1, true, false, false},
                                           SplitStorm{"any_order", 2, false, false, true},
                                           SplitStorm{"abandoned", 2, true, true, false},
                                           SplitStorm{"uneven", 3, true, false, true}),
                         [](const auto& instance) { return std::string(instance.param.name); });

// Random producers are killed again and again; every batch comes once, nevertheless, and right.
TEST_P(SplitStormTest, EveryBatchComesOnceWhoeverDies) {
  SKIP_WITHOUT_FORK();
  const SplitStorm storm = GetParam();
  SchedulerOptions options = Split(uint64_t{1} << 40, 6);
  options.prefetch = 6;
  options.collators = storm.collators;
  options.in_order = storm.in_order;
  Crew crew(options, 3, [storm](BatchProducer& producer, const Claim& claim) {
    if (storm.uneven && claim.kind == ClaimKind::kItems && claim.batch % 8 == 5) {
      producer.Fail(claim, claim.begin, claim.batch % 16 == 5 ? ProblemKind::kMismatch : ProblemKind::kFailed, "unfit");
      return;
    }
    MakeSplit(producer, claim, {.cost_ns = 3'000});
  });
  std::mt19937_64 random(storm.collators);
  constexpr int kKills = 60;
  uint64_t epoch = 0;
  uint64_t first = 0;
  std::set<uint64_t> numbers;
  uint64_t taken = 0;
  crew.scheduler().StartEpoch(epoch);
  uint64_t next_kill = MonotonicNanoseconds();
  for (int kills = 0; kills < kKills || taken < 20;) {
    const WaitOutcome outcome = crew.scheduler().Wait(kMillisecond);
    if (outcome == WaitOutcome::kBatch) {
      const ReadyBatch batch = crew.scheduler().Take();
      ASSERT_EQ(batch.epoch, epoch);
      ASSERT_TRUE(numbers.insert(batch.batch).second);
      if (storm.in_order) {
        ASSERT_EQ(batch.batch, first + numbers.size() - 1);
      }
      if (storm.uneven && batch.batch % 16 == 13) {
        ASSERT_EQ(batch.problem, ProblemKind::kFailed);
        ASSERT_EQ(batch.problem_row, 0U);
      } else {
        ASSERT_TRUE(HasSamples(batch, Range(batch.batch * 6, 6)));
      }
      ++taken;
    } else if (outcome == WaitOutcome::kProducerDied) {
      crew.ReplaceDead();
    } else {
      ASSERT_EQ(outcome, WaitOutcome::kTimedOut);
      ASSERT_LT(MonotonicNanoseconds(), next_kill + kPatience);
    }
    if (kills < kKills && MonotonicNanoseconds() >= next_kill) {
      crew.producer(static_cast<uint32_t>(random() % crew.size())).Kill();
      ++kills;
      next_kill = MonotonicNanoseconds() + random() % (5 * kMillisecond);
      if (storm.abandon) {
        first = random() % 1000;
        numbers.clear();
        crew.scheduler().StartEpoch(++epoch, first);
      }
    }
  }
  EXPECT_LE(crew.scheduler().stats().slots_used, 16U);
}

TEST(BatchSplitDeathTest, ACollationThatKillsIsGivenUp) {
  SKIP_WITHOUT_FORK();
  Crew crew(Split(12, 4), 2, [](BatchProducer& producer, const Claim& claim) {
    if (claim.kind == ClaimKind::kCollate && claim.batch == 1) {
      raise(SIGKILL);
    }
    MakeSplit(producer, claim);
  });
  crew.GiveUpAfter(
      4, [](BatchScheduler& scheduler, const ProducerDeath& death) { scheduler.Abandon(death.sequence, death.row); });
  crew.scheduler().StartEpoch(0);
  for (uint64_t number = 0; number < 3; ++number) {
    const ReadyBatch batch = crew.Expect();
    EXPECT_EQ(batch.problem, number == 1 ? ProblemKind::kKilled : ProblemKind::kNone);
  }
  EXPECT_GE(crew.deaths().size(), 4U);
  EXPECT_EQ(crew.deaths()[0].kind, ClaimKind::kCollate);
}

TEST(BatchSplitDeathTest, AnItemThatKillsIsGivenUpAndNamed) {
  SKIP_WITHOUT_FORK();
  Crew crew(Split(12, 4), 2, [](BatchProducer& producer, const Claim& claim) {
    if (claim.kind == ClaimKind::kItems && claim.batch == 1 && claim.end == 4) {
      producer.BeginRow(claim, 3);
      raise(SIGKILL);
    }
    MakeSplit(producer, claim);
  });
  crew.GiveUpAfter(
      4, [](BatchScheduler& scheduler, const ProducerDeath& death) { scheduler.Abandon(death.sequence, death.row); });
  crew.scheduler().StartEpoch(0);
  for (uint64_t number = 0; number < 3; ++number) {
    const ReadyBatch batch = crew.Expect();
    EXPECT_EQ(batch.problem, number == 1 ? ProblemKind::kKilled : ProblemKind::kNone);
    EXPECT_EQ(batch.problem_row, number == 1 ? 3U : 0U);
  }
}

}  // namespace
}  // namespace headrace::shared_memory
