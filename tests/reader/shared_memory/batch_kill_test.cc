// Producers that are killed: at random moments, at every step of a claim, and by the sample they make.
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "reader/index_permutation.h"
#include "reader/shared_memory/waiting/futex.h"
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

// What two slots and producer 0 have in shared memory.
class MemoryImage {
 public:
  explicit MemoryImage(const Arena& arena) { Update(arena); }

  // Whether anything has changed since.
  bool Update(const Arena& arena) {
    bool changed = false;
    ForEachPart(arena, [&](std::byte* memory, size_t bytes, size_t at) {
      if (copy_.size() < at + bytes) {
        copy_.resize(at + bytes);
      }
      if (std::memcmp(copy_.data() + at, memory, bytes) != 0) {
        std::memcpy(copy_.data() + at, memory, bytes);
        changed = true;
      }
    });
    return changed;
  }
  void Restore(const Arena& arena) const {
    ForEachPart(arena, [&](std::byte* memory, size_t bytes, size_t at) { std::memcpy(memory, &copy_[at], bytes); });
  }

 private:
  template <typename Visit>
  static void ForEachPart(const Arena& arena, const Visit& visit) {
    size_t at = 0;
    const auto part = [&](void* memory, size_t bytes) {
      visit(static_cast<std::byte*>(memory), bytes, at);
      at += bytes;
    };
    part(&arena.control(), offsetof(ControlBlock, ring));
    part(&arena.control().producers[0], sizeof(ProducerRecord));
    for (uint32_t slot = 0; slot < 2; ++slot) {
      std::byte* data = arena.slot_data(slot);
      part(data, offsetof(SlotHeader, chunk_words) + 64);
      part(&arena.slot(slot).problems, 4 * sizeof(ChunkProblem));
      part(data + kLayoutOffset, 256);
      part(data + kDataOffset, 256);
      part(data + arena.slot_bytes() - 512, 512);
    }
  }

  std::vector<std::byte> copy_;
};

// A path through the protocol, on which a producer is killed at every change that it makes to shared memory.
struct Path {
  const char* name;
  Collation collation;
  IndexOrder order;
  // What the doomed producer does with a claim. Whatever it was, another one makes the same claim right.
  void (*doomed)(BatchProducer&, const Claim&);
  bool retire = false;  // it is asked to end while it makes the items of a batch
};

void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }

constexpr uint32_t kKillWords = 2;

// Every instruction counts: the doomed are stepped through them. So nothing is computed that could be known before.
const BatchLayout& TwoRows() {
  static const BatchLayout layout({{LeafKind::kArray, -1, sizeof(uint64_t), {2, kKillWords}}}, "samples", kDataOffset,
                                  SmallOptions(4, 2).arena.slot_bytes);
  return layout;
}

// Of each batch of a stream. Producers may begin batches beyond its end before that is known.
constexpr std::string_view kStates[] = {"state 0", "state 1", "beyond the end", "beyond the end"};

void MakeRight(BatchProducer& producer, const Claim& claim) {
  if (claim.kind == ClaimKind::kItems) {
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      producer.BeginRow(claim, row);
      producer.Keep(claim, row, "kept", {});
    }
    producer.Complete(claim);
    return;
  }
  const auto kept = claim.kind == ClaimKind::kCollate ? producer.Kept(claim) : std::vector<KeptSample>();
  for (uint32_t row = 0; row < kept.size(); ++row) {
    if (std::memcmp(kept[row].message.data(), "kept", 4) != 0) {
      producer.Fail(claim, row, ProblemKind::kFailed, "not what was kept");
      return;
    }
  }
  producer.PublishLayout(claim, TwoRows().bytes());
  for (uint32_t row = claim.begin; row < claim.end; ++row) {
    producer.BeginRow(claim, row);
    WriteRow(producer, claim, row, kKillWords);
  }
  if (claim.kind == ClaimKind::kStream) {
    producer.Attach(claim, kStates[claim.batch]);
    producer.SetStreamEnd(claim, claim.batch == 1 ? StreamEnd::kAfter : StreamEnd::kGoesOn);
  }
  producer.Complete(claim);
}

// An error that will not come again.
void FailOnce(BatchProducer& producer, const Claim& claim) {
  producer.BeginRow(claim, claim.end - 1);
  if (claim.kind == ClaimKind::kStream) {
    producer.Attach(claim, kStates[claim.batch]);
    producer.SetStreamEnd(claim, claim.batch == 1 ? StreamEnd::kAfter : StreamEnd::kGoesOn);
  }
  producer.Fail(claim, claim.end - 1, ProblemKind::kFailed, "once");
}

void FailAfterTheItems(BatchProducer& producer, const Claim& claim) {
  (claim.kind == ClaimKind::kItems ? MakeRight : FailOnce)(producer, claim);
}

void MismatchOnce(BatchProducer& producer, const Claim& claim) {
  if (MakesBatch(claim.kind)) {
    MakeRight(producer, claim);
    return;
  }
  producer.Fail(claim, claim.begin, ProblemKind::kMismatch, {});
}

class KillAtEveryMomentTest : public ::testing::TestWithParam<Path> {
 protected:
  // A scheduler at the begin of an epoch; always the same, but for where it is.
  struct Stage {
    std::shared_ptr<BatchScheduler> scheduler;
    std::unique_ptr<BatchProducer> doomed;
    std::unique_ptr<BatchProducer> survivor;
    std::vector<Claim> claims;  // of the doomed
  };
  Stage SetUpStage();
  // The shared memory after each change that the doomed producer makes to it.
  static std::vector<MemoryImage> StepThrough(const Stage& stage);
  // The survivor makes what there is and the consumer takes it, as it should be or, where `failed`, failed with "once".
  static void FinishEpoch(const Stage& stage, bool failed);
};

INSTANTIATE_TEST_SUITE_P(
    Paths, KillAtEveryMomentTest,
    ::testing::Values(Path{"rows", Collation::kNone, IndexOrder::kSequential, MakeRight},
                      Path{"rows_fail", Collation::kNone, IndexOrder::kSequential, FailOnce},
                      Path{"rows_mismatch", Collation::kNone, IndexOrder::kSequential, MismatchOnce},
                      Path{"whole", Collation::kWhole, IndexOrder::kSequential, MakeRight},
                      Path{"whole_fails", Collation::kWhole, IndexOrder::kSequential, FailOnce},
                      Path{"items_and_collation", Collation::kSplit, IndexOrder::kSequential, MakeRight},
                      Path{"items_fail", Collation::kSplit, IndexOrder::kSequential, FailOnce},
                      Path{"items_mismatch", Collation::kSplit, IndexOrder::kSequential, MismatchOnce},
                      Path{"collation_fails", Collation::kSplit, IndexOrder::kSequential, FailAfterTheItems},
                      Path{"items_then_retired", Collation::kSplit, IndexOrder::kSequential, MakeRight, true},
                      Path{"stream_with_attachment", Collation::kNone, IndexOrder::kStream, MakeRight},
                      Path{"stream_fails_with_attachment", Collation::kNone, IndexOrder::kStream, FailOnce}),
    [](const auto& instance) { return std::string(instance.param.name); });

KillAtEveryMomentTest::Stage KillAtEveryMomentTest::SetUpStage() {
  const Path path = GetParam();
  SchedulerOptions options = SmallOptions(4, 2);
  options.arena.order = path.order;
  options.collation = path.collation;
  options.prefetch = 2;
  options.cross_epochs = false;
  Stage stage;
  stage.scheduler = BatchScheduler::Create(options);
  BatchScheduler& scheduler = *stage.scheduler;
  stage.doomed = std::make_unique<BatchProducer>(scheduler.arena(), 0, scheduler.completion_fd());
  stage.survivor = std::make_unique<BatchProducer>(scheduler.arena(), 1, scheduler.completion_fd());
  // The slots then hold batches of an epoch before: nothing of them must come again.
  scheduler.StartEpoch(0);
  FinishEpoch(stage, false);
  // How batches are cut does not depend on how long that took.
  scheduler.arena()->control().producers[1].samples.store(0);
  scheduler.StartEpoch(1);
  if (path.retire) {
    for (int i = 0; i < 2; ++i) {
      stage.claims.push_back(*stage.doomed->TryClaim());
    }
    while (const std::optional<Claim> claim = stage.survivor->TryClaim()) {  // it has looked past all there is
      MakeRight(*stage.survivor, *claim);
    }
  }
  return stage;
}

std::vector<MemoryImage> KillAtEveryMomentTest::StepThrough(const Stage& stage) {
  const Path path = GetParam();
  // As if the consumer slept, so that the producer takes the way past the wake-up too.
  stage.scheduler->arena()->control().consumer_sleeps.store(1);
  if (path.retire) {
    stage.scheduler->RetireProducer(0);
  }
  ChildProcess child([&] {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      _exit(2);
    }
    raise(SIGSTOP);
    for (const Claim& claim : stage.claims) {
      path.doomed(*stage.doomed, claim);
    }
    while (const std::optional<Claim> claim = path.retire ? stage.doomed->WaitForClaim() : stage.doomed->TryClaim()) {
      path.doomed(*stage.doomed, *claim);
    }
    _exit(0);
  });
  int status = 0;
  waitpid(child.pid(), &status, 0);
  EXPECT_TRUE(WIFSTOPPED(status)) << "the child could not be traced";
  MemoryImage image(*stage.scheduler->arena());
  std::vector<MemoryImage> images{image};
  while (WIFSTOPPED(status)) {
    if (ptrace(PTRACE_SINGLESTEP, child.pid(), nullptr, nullptr) != 0) {
      ADD_FAILURE() << "PTRACE_SINGLESTEP failed";
      break;
    }
    waitpid(child.pid(), &status, 0);
    if (image.Update(*stage.scheduler->arena())) {
      images.push_back(image);
    }
  }
  return images;
}

void KillAtEveryMomentTest::FinishEpoch(const Stage& stage, bool failed) {
  BatchScheduler& scheduler = *stage.scheduler;
  const bool stream = GetParam().order == IndexOrder::kStream;
  for (uint64_t number = 0; number < 2; ++number) {
    WaitOutcome outcome = WaitOutcome::kTimedOut;
    for (int round = 0; round < 6 && outcome != WaitOutcome::kBatch; ++round) {
      outcome = scheduler.Wait(0);  // first: it sees the death, and the survivor would wait for the dead one's layout
      if (outcome == WaitOutcome::kProducerDied) {
        scheduler.TakeDeaths();
      }
      while (const std::optional<Claim> claim =
                 outcome == WaitOutcome::kBatch ? std::nullopt : stage.survivor->TryClaim()) {
        MakeRight(*stage.survivor, *claim);
      }
    }
    ASSERT_EQ(outcome, WaitOutcome::kBatch);
    const ReadyBatch batch = scheduler.Take();
    ASSERT_EQ(batch.batch, number);
    EXPECT_EQ(batch.attachment, stream ? kStates[number] : "");
    if (failed && batch.problem != ProblemKind::kNone) {
      EXPECT_EQ(batch.problem, ProblemKind::kFailed) << batch.problem_message;
      EXPECT_EQ(batch.problem_message, "once");
    } else {
      EXPECT_TRUE(HasSamples(batch, Range(stream ? 0 : number * 2, 2), kKillWords));
    }
  }
  EXPECT_EQ(scheduler.Wait(0), WaitOutcome::kEndOfEpoch);
}

// The doomed producer is stepped through its path once, instruction by instruction. Each state of the shared memory on
// the way is what a kill there would leave: it is given to a scheduler that is otherwise at the begin of the epoch.
TEST_P(KillAtEveryMomentTest, NothingIsLostWrongOrStuck) {
  SKIP_WITHOUT_FORK();
  const Path path = GetParam();
  const std::vector<MemoryImage> moments = StepThrough(SetUpStage());
  // Claims, notes, the completions: far fewer would mean that the steps were not seen.
  EXPECT_GE(moments.size(), 15U);
  ChildProcess dead([] {});
  dead.Join();
  for (size_t moment = 0; moment < moments.size() && !HasFailure(); ++moment) {
    SCOPED_TRACE("killed at change " + std::to_string(moment));
    const Stage stage = SetUpStage();
    stage.scheduler->WatchProducer(0, dead.pidfd());
    if (path.retire) {
      stage.scheduler->RetireProducer(0);
    }
    moments[moment].Restore(*stage.scheduler->arena());
    FinishEpoch(stage, path.doomed == FailOnce || path.doomed == FailAfterTheItems);
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
      slot.layout_state.store(LayoutWriting(0));
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
    uint64_t word = ChunkWord(slot.sequence.load(), kChunkUnclaimed);
    slot.chunk_words[2].compare_exchange_strong(word, ChunkWord(slot.sequence.load(), kChunkClaimed, 0));
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
      EXPECT_EQ(batch.problem, ProblemKind::kKilled);
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
