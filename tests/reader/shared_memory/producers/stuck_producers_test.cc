#include "reader/shared_memory/producers/stuck_producers.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/reader/shared_memory/transport_test_util.h"

namespace headrace::shared_memory {
namespace {

class StuckProducersTest : public ::testing::Test {
 protected:
  // Whether the process is stuck after so many checks that all see the same.
  bool IsStuckAfter(uint32_t checks, const std::vector<uint32_t>& process, const WorkSeen& seen) {
    bool stuck = false;
    for (uint32_t check = 0; check < checks; ++check) {
      stuck = stuck_.Note(process, records_.data(), seen);
    }
    return stuck;
  }
  static WorkSeen WorkForAll() {
    WorkSeen seen;
    seen.anybody_may_claim = true;
    return seen;
  }
  void HasClaimed(uint32_t id) { AddTo(records_[id].claims, 1); }

  StuckProducers stuck_;
  std::vector<ProducerRecord> records_{4};
};

TEST_F(StuckProducersTest, OneThatDoesNothingInManyChecksIsLost) {
  HasClaimed(0);
  EXPECT_FALSE(IsStuckAfter(kStuckChecks, {0}, WorkForAll()));
  EXPECT_TRUE(IsStuckAfter(1, {0}, WorkForAll()));
  EXPECT_FALSE(IsStuckAfter(100, {}, WorkForAll()));
}

TEST_F(StuckProducersTest, TheCountBeginsAnewWithAClaim) {
  HasClaimed(0);
  WorkSeen at_work = WorkForAll();
  at_work.at_claim[0] = true;
  for (int round = 0; round < 5; ++round) {
    EXPECT_FALSE(IsStuckAfter(kStuckChecks, {0}, WorkForAll()));
    EXPECT_FALSE(IsStuckAfter(1, {0}, at_work));
  }
}

TEST_F(StuckProducersTest, OneThatStartsMayTakeItsTime) {
  EXPECT_FALSE(IsStuckAfter(100, {0}, WorkForAll()));
  HasClaimed(0);
  EXPECT_TRUE(IsStuckAfter(100, {0}, WorkForAll()));
  stuck_.Begin(0, records_[0]);  // its successor
  EXPECT_FALSE(IsStuckAfter(100, {0}, WorkForAll()));
}

TEST_F(StuckProducersTest, OneThatHasNothingToDoMayRest) {
  HasClaimed(2);
  EXPECT_FALSE(IsStuckAfter(100, {2}, {}));
  WorkSeen for_another;
  for_another.may_claim[1] = true;
  for_another.collators_may_claim = 2;
  EXPECT_FALSE(IsStuckAfter(100, {2}, for_another));
  WorkSeen for_it;
  for_it.may_claim[2] = true;
  EXPECT_TRUE(IsStuckAfter(100, {2}, for_it));
  stuck_.Begin(2, records_[2]);
  HasClaimed(2);
  WorkSeen collation;
  collation.collators_may_claim = 3;
  EXPECT_TRUE(IsStuckAfter(100, {2}, collation));
}

TEST_F(StuckProducersTest, AThreadMayWaitForAnotherOneOfItsProcess) {
  HasClaimed(0);
  HasClaimed(1);
  WorkSeen seen = WorkForAll();
  seen.at_claim[1] = true;
  EXPECT_FALSE(IsStuckAfter(100, {0, 1}, seen));
  EXPECT_FALSE(IsStuckAfter(kStuckChecks, {0, 1}, WorkForAll()));
  EXPECT_TRUE(IsStuckAfter(1, {0, 1}, WorkForAll()));
}

SchedulerOptions Hasty(uint64_t length, uint64_t batch_size) {
  SchedulerOptions options = SmallOptions(length, batch_size);
  options.cross_epochs = false;
  options.arena.recheck_ms = 5;
  return options;
}

// It has claimed rows, and a stray write took the claim away while it made them; it never comes back.
void ClaimAndGetStuck(BatchScheduler* scheduler) {
  BatchProducer stuck(scheduler->arena(), 0, scheduler->completion_fd());
  const Claim claim = *stuck.TryClaim();
  std::atomic<uint64_t>& word = scheduler->arena()->slot(claim.slot).chunk_words[claim.chunk];
  word.store(ChunkWord(claim.sequence, kChunkUnclaimed));
  pause();
}

// A process starts before it is watched, and may claim before that, too.
TEST_F(StuckProducersTest, TheSchedulerReplacesEachOneThatAStrayWriteHasSentAway) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(Hasty(8, 4));
  scheduler->StartEpoch(0);
  const std::atomic<uint64_t>& claims = scheduler->arena()->control().producers[0].claims;
  for (uint64_t died = 0; died < 4; ++died) {
    const ChildProcess child([&] { ClaimAndGetStuck(scheduler.get()); });
    const bool watched_late = died % 2 == 1;
    while (watched_late && claims.load() == died) {
      sched_yield();
    }
    scheduler->WatchProducer(0, child.pidfd());
    ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kProducerDied) << died << " died before";
    EXPECT_TRUE(scheduler->TakeDeaths().at(0).corrupt);
  }
  BatchProducer successor(scheduler->arena(), 0, scheduler->completion_fd());
  MakeAll(successor);
  for (const uint64_t first : {0, 4}) {
    ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kBatch);
    EXPECT_TRUE(HasSamples(scheduler->Take(), Range(first, 4)));
  }
}

// Or it works for ever on a batch that is none, whose slot nobody recognises any more.
TEST_F(StuckProducersTest, TheSchedulerReplacesOneWhoseSlotWasWrittenOver) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(Hasty(8, 4));
  scheduler->StartEpoch(0);
  const ChildProcess child([&] {
    BatchProducer stuck(scheduler->arena(), 0, scheduler->completion_fd());
    const Claim claim = *stuck.TryClaim();
    std::memset(scheduler->arena()->slot_data(claim.slot), 0x55, sizeof(SlotHeader));
    pause();
  });
  scheduler->WatchProducer(0, child.pidfd());
  ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kBatch);
  EXPECT_EQ(scheduler->Take().problem, ProblemKind::kCorrupt);
  ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kProducerDied);
  BatchProducer successor(scheduler->arena(), 0, scheduler->completion_fd());
  MakeAll(successor);
  ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(4, 4)));
}

TEST_F(StuckProducersTest, TheSchedulerLeavesThoseAloneThatAreAtWorkOrStarting) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(Hasty(8, 2));
  scheduler->StartEpoch(0);
  const ChildProcess slow([&] {
    BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
    const Claim claim = *producer.TryClaim();
    producer.BeginRow(claim, claim.begin);
    pause();
  });
  const ChildProcess starting([] { pause(); });
  scheduler->WatchProducer(0, slow.pidfd());
  scheduler->WatchProducer(1, starting.pidfd());
  EXPECT_EQ(scheduler->Wait(400 * kMillisecond), WaitOutcome::kTimedOut);  // some 80 checks
}

// A chunk whose word names a producer that is at work on another batch.
TEST_F(StuckProducersTest, AClaimOfAProducerThatIsElsewhereFailsItsBatch) {
  const auto scheduler = BatchScheduler::Create(Hasty(8, 4));
  scheduler->StartEpoch(0);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  const Claim first = *producer.TryClaim();
  Claim last = first;
  while (const std::optional<Claim> claim = producer.TryClaim()) {
    if (claim->batch == first.batch) {
      MakeRows(producer, *claim);
    } else {
      last = *claim;
      break;
    }
  }
  ASSERT_NE(last.batch, first.batch);
  ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kBatch);
  EXPECT_EQ(scheduler->Take().problem, ProblemKind::kCorrupt);
  MakeRows(producer, last);
  MakeAll(producer);
  ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(4, 4)));
}

}  // namespace
}  // namespace headrace::shared_memory
