// Producers that are killed: at random moments, at every step of a claim, and by the sample they make.
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "reader/index_permutation.h"
#include "reader/shared_memory/futex.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

struct Storm {
  const char* name;
  uint64_t batch_size;
  int64_t cost_ns;
  bool uneven;   // samples that do not fit each other, so that batches are opened anew
  bool abandon;  // epochs are left in the middle
  bool in_order = true;
};

void PrintTo(const Storm& storm, std::ostream* out) { *out << storm.name; }

class BatchStormTest : public ::testing::TestWithParam<Storm> {};

INSTANTIATE_TEST_SUITE_P(Kinds, BatchStormTest,
                         ::testing::Values(Storm{"claims", 1, 0, false, false},
                                           Storm{"small_batches", 4, 0, false, false},
                                           Storm{"slow_samples", 64, 30'000, false, false},
                                           Storm{"uneven_samples", 8, 2'000, true, false},
                                           Storm{"abandoned_epochs", 8, 20'000, true, true},
                                           Storm{"any_order", 4, 2'000, true, false, false},
                                           Storm{"any_order_abandoned", 8, 20'000, true, true, false}),
                         [](const auto& instance) { return std::string(instance.param.name); });

uint32_t WordsOf(uint64_t index, bool uneven) { return uneven && MixBits(index) % 8 == 0 ? 5 : 4; }

// Random producers are killed again and again; each row of each batch is right nevertheless, and nothing hangs.
TEST_P(BatchStormTest, EveryRowIsRightWhoeverDies) {
  SKIP_WITHOUT_FORK();
  const Storm storm = GetParam();
  SchedulerOptions options = SmallOptions(uint64_t{1} << 40, storm.batch_size);
  options.prefetch = 6;
  options.in_order = storm.in_order;
  Crew crew(options, 3, [storm](BatchProducer& producer, const Claim& claim) {
    // A batch takes the layout of its first sample; whose rows have another says so.
    const uint32_t words = WordsOf(producer.IndexAt(claim, claim.begin), storm.uneven);
    MakeRows(producer, claim, {.words = words, .cost_ns = storm.cost_ns});
  });
  std::mt19937_64 random(storm.batch_size);
  uint64_t epoch = 0;
  uint64_t next_batch = 0;
  uint64_t taken = 0;
  std::set<uint64_t> numbers;  // taken in this epoch
  crew.scheduler().StartEpoch(epoch);
  uint64_t next_kill = MonotonicNanoseconds();
  constexpr int kKills = 50;
  for (int kills = 0; kills < kKills || taken < 20;) {
    const WaitOutcome outcome = crew.scheduler().Wait(kMillisecond);
    if (outcome == WaitOutcome::kBatch) {
      const ReadyBatch batch = crew.scheduler().Take();
      ASSERT_TRUE(numbers.insert(batch.batch).second);
      if (storm.in_order) {
        ASSERT_EQ(batch.batch, next_batch);
      } else {
        // No batch is left behind by more than what is open and what fits between.
        ASSERT_LT(batch.batch, next_batch + numbers.size() + options.prefetch);
      }
      ASSERT_EQ(batch.epoch, epoch);
      const uint64_t first = batch.batch * storm.batch_size;
      ASSERT_TRUE(HasSamples(batch, Range(first, storm.batch_size), WordsOf(first, storm.uneven)));
      next_batch += storm.in_order ? 1 : 0;
      ++taken;
    } else if (outcome == WaitOutcome::kProducerDied) {
      crew.ReplaceDead();
    } else {
      ASSERT_EQ(outcome, WaitOutcome::kTimedOut);
      // Nothing for long after the last kill is a hang.
      ASSERT_LT(MonotonicNanoseconds(), next_kill + kPatience);
    }
    if (kills < kKills && MonotonicNanoseconds() >= next_kill) {
      crew.producer(static_cast<uint32_t>(random() % crew.size())).Kill();
      ++kills;
      next_kill = MonotonicNanoseconds() + random() % (6 * kMillisecond);
      if (storm.abandon) {
        next_batch = random() % 1000;
        numbers.clear();
        crew.scheduler().StartEpoch(++epoch, next_batch);
      }
    }
  }
  EXPECT_LE(crew.scheduler().stats().slots_used, 16U);
  if (!storm.in_order) {
    // With those that are open now, no number is missing.
    while (!storm.abandon && *numbers.rbegin() != next_batch + numbers.size() - 1) {
      const std::optional<ReadyBatch> batch = crew.Next();
      ASSERT_TRUE(batch.has_value());
      ASSERT_TRUE(numbers.insert(batch->batch).second);
    }
  }
}

// Counts the changes of the shared memory that a producer touches.
class MemoryWatch {
 public:
  explicit MemoryWatch(const Arena& arena) : arena_(arena) { Changed(); }

  bool Changed() {
    bool changed = false;
    size_t at = 0;
    const auto compare = [&](const void* memory, size_t bytes) {
      if (copy_.size() < at + bytes) {
        copy_.resize(at + bytes);
      }
      if (std::memcmp(copy_.data() + at, memory, bytes) != 0) {
        std::memcpy(copy_.data() + at, memory, bytes);
        changed = true;
      }
      at += bytes;
    };
    compare(&arena_.control(), offsetof(ControlBlock, producers) + sizeof(ProducerRecord));
    for (uint32_t slot = 0; slot < 2; ++slot) {
      compare(arena_.slot_data(slot), kLayoutOffset + 256);
      compare(arena_.slot_data(slot) + kDataOffset, 256);
      compare(arena_.slot_data(slot) + arena_.slot_bytes() - 512, 512);
    }
    return changed;
  }

 private:
  const Arena& arena_;
  std::vector<char> copy_;
};

// Steps a producer, instruction by instruction, to the `moment`-th change that it makes to shared memory and kills it
// there; false if it makes fewer. Afterwards everything is made right by another.
bool KillAtMoment(int moment, Collation collation) {
  SchedulerOptions options = SmallOptions(4, 2);
  options.collation = collation;
  options.prefetch = 2;
  options.cross_epochs = false;
  const auto scheduler = BatchScheduler::Create(options);
  scheduler->StartEpoch(0);
  const LeafSpec leaf{LeafKind::kArray, -1, sizeof(uint64_t), {2, 2}};
  const BatchLayout layout({leaf}, "samples", kDataOffset, scheduler->arena()->slot_bytes());
  // As if the consumer slept, so that the producer takes the way past the wake-up too.
  scheduler->arena()->control().consumer_sleeps.store(1);
  ChildProcess child([&] {
    BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      _exit(2);
    }
    raise(SIGSTOP);
    for (int i = 0; i < (collation == Collation::kSplit ? 3 : 2); ++i) {
      const std::optional<Claim> claim = producer.TryClaim();
      if (claim->kind == ClaimKind::kItems) {
        producer.BeginRow(*claim, claim->begin);
        producer.Keep(*claim, claim->begin, "kept", {});
        producer.Complete(*claim);
        continue;
      }
      producer.PublishLayout(*claim, layout.bytes());
      producer.BeginRow(*claim, claim->begin);
      for (uint32_t row = claim->begin; row < claim->end; ++row) {
        WriteRow(producer, *claim, row, 2);
      }
      producer.Complete(*claim);
    }
    _exit(0);
  });
  scheduler->WatchProducer(0, child.pidfd());
  int status = 0;
  waitpid(child.pid(), &status, 0);
  EXPECT_TRUE(WIFSTOPPED(status)) << "the child could not be traced";
  MemoryWatch watch(*scheduler->arena());
  bool ended = false;
  for (int changes = 0; changes < moment && !ended;) {
    if (ptrace(PTRACE_SINGLESTEP, child.pid(), nullptr, nullptr) != 0) {
      ADD_FAILURE() << "PTRACE_SINGLESTEP failed";
      return false;
    }
    waitpid(child.pid(), &status, 0);
    ended = !WIFSTOPPED(status);
    changes += watch.Changed() ? 1 : 0;
  }
  if (ended) {
    return false;
  }
  child.Kill();
  child.Join();

  BatchProducer other(scheduler->arena(), 1, scheduler->completion_fd());
  for (uint64_t batch = 0; batch < 2; ++batch) {
    WaitOutcome outcome = WaitOutcome::kTimedOut;
    for (int round = 0; round < 4 && outcome != WaitOutcome::kBatch; ++round) {
      outcome = scheduler->Wait(0);
      while (const std::optional<Claim> claim = other.TryClaim()) {
        if (claim->kind == ClaimKind::kItems) {
          other.Keep(*claim, claim->begin, "kept", {});
          other.Complete(*claim);
          continue;
        }
        for (uint32_t row = 0; claim->kind == ClaimKind::kCollate && row < claim->rows; ++row) {
          EXPECT_EQ(std::memcmp(other.Kept(*claim, row).message.data(), "kept", 4), 0);
        }
        MakeRows(other, *claim, {.words = 2});
      }
    }
    EXPECT_EQ(outcome, WaitOutcome::kBatch) << "killed at change " << moment;
    if (outcome != WaitOutcome::kBatch) {
      return false;
    }
    EXPECT_TRUE(HasSamples(scheduler->Take(), Range(batch * 2, 2), 2)) << "killed at change " << moment;
  }
  return !::testing::Test::HasFailure();
}

TEST(BatchKillTest, ClaimSurvivesAKillAtEveryStep) {
  SKIP_WITHOUT_FORK();
  for (const Collation collation : {Collation::kNone, Collation::kSplit}) {
    int moment = 0;
    while (KillAtMoment(moment, collation)) {
      ++moment;
    }
    // Claims, notes, the layout, the rows, the completions: far fewer would mean that the steps were not seen.
    EXPECT_GE(moment, 20);
  }
}

TEST(BatchKillTest, KillWhileTheLayoutIsWrittenHoldsUpNobody) {
  SKIP_WITHOUT_FORK();
  for (const bool abandoned : {false, true}) {
    SchedulerOptions options = SmallOptions(4, 2);
    options.arena.slot_count = 3;
    options.prefetch = 1;
    const auto scheduler = BatchScheduler::Create(options);
    scheduler->StartEpoch(0);
    ChildProcess author([&] {
      BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
      const std::optional<Claim> claim = producer.TryClaim();
      SlotHeader& slot = producer.arena().slot(claim->slot);
      slot.layout_state.store(kLayoutWriting + 0);
      std::memset(producer.Data(*claim) + kLayoutOffset, 0xAB, 100);
      pause();
    });
    author.AwaitSleep();
    ChildProcess other([&] {
      BatchProducer producer(scheduler->arena(), 1, scheduler->completion_fd());
      while (const std::optional<Claim> claim = producer.WaitForClaim()) {
        MakeRows(producer, *claim);
      }
    });
    other.AwaitSleep();
    scheduler->WatchProducer(0, author.pidfd());
    EXPECT_EQ(scheduler->Wait(20 * kMillisecond), WaitOutcome::kTimedOut);
    if (abandoned) {
      scheduler->StartEpoch(1);
    }
    author.Kill();
    WaitOutcome outcome = scheduler->Wait(kPatience);
    if (outcome == WaitOutcome::kProducerDied) {
      const ProducerDeath death = scheduler->TakeDeaths().at(0);
      EXPECT_TRUE(death.busy);
      EXPECT_EQ(death.row, 0U);
      outcome = scheduler->Wait(kPatience);
    }
    ASSERT_EQ(outcome, WaitOutcome::kBatch);
    EXPECT_TRUE(HasSamples(scheduler->Take(), Range(0, 2)));
  }
}

TEST(BatchKillTest, DeathBeforeTheFirstNoteIsAtTheFirstRow) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(SmallOptions(8, 4));
  scheduler->StartEpoch(7);
  ChildProcess child([&] {
    BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
    MakeRows(producer, *producer.TryClaim());
    // The claim of the next row, and nothing after it.
    SlotHeader& slot = producer.arena().slot(0);
    uint64_t word = ClaimWord(slot.sequence.load(), kUnclaimed);
    slot.claims[2].compare_exchange_strong(word, ClaimWord(slot.sequence.load(), 1));
    raise(SIGKILL);
  });
  scheduler->WatchProducer(0, child.pidfd());
  ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kProducerDied);
  const ProducerDeath death = scheduler->TakeDeaths().at(0);
  EXPECT_TRUE(death.busy);
  EXPECT_EQ(death.epoch, 7U);
  EXPECT_EQ(death.batch, 0U);
  EXPECT_EQ(death.row, 2U);
  BatchProducer other(scheduler->arena(), 1, scheduler->completion_fd());
  MakeAll(other);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(0, 4)));
}

TEST(BatchKillTest, DeathsAtARowAreTakenApartFromDeathsBeforeIt) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(8, 4));
  scheduler->StartEpoch(0);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  Claim claim = *producer.TryClaim();
  EXPECT_FALSE(scheduler->Claims().at(0).at_row);
  ProducerDeath death = scheduler->Reclaim(0);
  EXPECT_TRUE(death.busy);
  EXPECT_FALSE(death.at_row);

  claim = *producer.TryClaim();
  EXPECT_EQ(claim.deaths, 0U) << "nobody came to a row";
  producer.BeginRow(claim, claim.begin);
  EXPECT_TRUE(scheduler->Claims().at(0).at_row);
  EXPECT_TRUE(scheduler->Reclaim(0).at_row);
  EXPECT_EQ(producer.TryClaim()->deaths, 1U);
}

TEST(BatchKillTest, ClaimantsAreToldHowManyDiedThere) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(8, 4));
  scheduler->StartEpoch(0);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  for (uint32_t deaths = 0; deaths < 300; ++deaths) {
    const Claim claim = *producer.TryClaim();
    ASSERT_EQ(claim.deaths, std::min(deaths, 255U));
    producer.BeginRow(claim, claim.begin);
    const std::vector<HeldClaim> held = scheduler->Claims();
    ASSERT_EQ(held.size(), 1U);
    EXPECT_EQ(held[0].producer, 0U);
    EXPECT_EQ(held[0].row, claim.begin);
    EXPECT_TRUE(held[0].at_row);
    EXPECT_TRUE(scheduler->Reclaim(0).at_row);
  }
  MakeAll(producer);
  EXPECT_TRUE(scheduler->Claims().empty());
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(0, 4)));
  // Another batch in the same slot knows nothing of that.
  scheduler->StartEpoch(1);
  for (std::optional<Claim> claim = producer.TryClaim(); claim; claim = producer.TryClaim()) {
    EXPECT_EQ(claim->deaths, 0U);
    MakeRows(producer, *claim);
  }
}

class DeadlyRowTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(WholeBatches, DeadlyRowTest, ::testing::Bool());

TEST_P(DeadlyRowTest, IsNamedByTheBatchThatIsAbandoned) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(40, 8);
  options.collation = GetParam() ? Collation::kWhole : Collation::kNone;
  options.cross_epochs = false;  // the next epoch has that row too
  Crew crew(options, 2, [](BatchProducer& producer, const Claim& claim) {
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      producer.BeginRow(claim, row);
      if (producer.IndexAt(claim, row) == 13) {
        raise(SIGKILL);
      }
    }
    MakeRows(producer, claim);
  });
  crew.GiveUpAfter(4, [](BatchScheduler& scheduler, const ProducerDeath& death) {
    EXPECT_TRUE(scheduler.Abandon(death.sequence, death.row));
  });
  crew.scheduler().StartEpoch(0);
  for (uint64_t i = 0; i < 5; ++i) {
    const ReadyBatch batch = crew.Expect();
    if (i == 1) {
      EXPECT_EQ(batch.problem, kKilled);
      EXPECT_EQ(batch.problem_row, 5U);
      EXPECT_EQ(batch.rows, 0U);
    } else {
      EXPECT_TRUE(HasSamples(batch, Range(i * 8, 8)));
    }
  }
  // One more may have begun it between its fourth death and the end of the tries.
  ASSERT_GE(crew.deaths().size(), 4U);
  for (const ProducerDeath& death : crew.deaths()) {
    EXPECT_TRUE(death.busy);
    EXPECT_EQ(death.batch, 1U);
    EXPECT_EQ(death.row, 5U);
    EXPECT_EQ(death.kind, GetParam() ? ClaimKind::kWhole : ClaimKind::kRows);
  }
}

TEST(BatchKillTest, DeadlyRowOfAnAbandonedBatchDoesNotHoldItsSlot) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(40, 1);
  options.arena.slot_count = 2;
  options.prefetch = 1;
  Crew crew(options, 1, [](BatchProducer& producer, const Claim& claim) {
    if (claim.epoch % 2 == 0) {
      usleep(2000);
      raise(SIGKILL);
    }
    MakeRows(producer, claim);
  });
  for (uint64_t epoch = 0; epoch < 10; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    if (epoch % 2 == 1) {
      ASSERT_TRUE(HasSamples(crew.Expect(), {0}));
    } else {
      usleep(500);
    }
  }
}

// The consumer sees a death at the very moment when another thread reclaims the dead one and starts its successor.
TEST(BatchKillTest, SuccessorIsNotTakenForTheDead) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(SmallOptions(40, 1));
  scheduler->StartEpoch(0);
  ChildProcess last([] { pause(); });
  for (int round = 0; round < 50; ++round) {
    ChildProcess first([] { pause(); });
    ChildProcess second([] { pause(); });
    scheduler->WatchProducer(0, first.pidfd());
    std::thread other([&] {
      usleep(1000);
      first.Kill();
      first.Join();
      scheduler->Reclaim(0);
      scheduler->WatchProducer(0, second.pidfd());
    });
    while (scheduler->Wait(10 * kMillisecond) == WaitOutcome::kProducerDied) {
      scheduler->TakeDeaths();
    }
    other.join();
    second.Kill();
    ASSERT_EQ(scheduler->Wait(5 * kSecond), WaitOutcome::kProducerDied) << "round " << round;
    scheduler->TakeDeaths();
  }
}

}  // namespace
}  // namespace headrace::shared_memory
