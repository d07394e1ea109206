// Streams: batches whose number is known only when they end.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "reader/shared_memory/waiting/futex.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

constexpr uint64_t kBatchSize = 4;

SchedulerOptions Streams(uint32_t streams) {
  SchedulerOptions options = SmallOptions(0, kBatchSize);
  options.arena.order = IndexOrder::kStream;
  options.streams = streams;
  options.prefetch = 5;
  return options;
}

uint64_t SampleOf(uint32_t stream, uint64_t number) { return uint64_t{stream} * 1'000'000 + number; }

std::string AttachmentOf(uint32_t stream, uint64_t batch) {
  return std::to_string(stream) + ":" + std::to_string(batch);
}

// Makes a claim of streams of `lengths` samples. A stream whose last batch is full notices its end one batch later.
void MakeOfStream(BatchProducer& producer, const Claim& planned, const std::vector<uint64_t>& lengths,
                  int64_t cost_ns = 0) {
  const uint64_t length = lengths[planned.stream];
  const uint64_t first = planned.batch * kBatchSize;
  if (first >= length) {
    producer.SetStreamEnd(planned, StreamEnd::kBefore);
    producer.Complete(planned);
    return;
  }
  Claim claim = planned;
  if (length - first < kBatchSize) {
    claim.rows = claim.end = static_cast<uint32_t>(length - first);
    producer.SetRows(claim, claim.rows);
    producer.SetStreamEnd(claim, StreamEnd::kAfter);
  }
  producer.PublishLayout(claim, SampleLayout(producer, claim, 4).bytes());
  for (uint32_t row = 0; row < claim.rows; ++row) {
    producer.BeginRow(claim, row);
    const uint64_t begin = MonotonicNanoseconds();
    while (MonotonicNanoseconds() - begin < static_cast<uint64_t>(cost_ns)) {
    }
    auto* out = reinterpret_cast<uint64_t*>(producer.Data(claim) + LayoutView(producer.Data(claim)).leaf(0).offset);
    for (uint32_t word = 0; word < 4; ++word) {
      out[row * 4 + word] = SampleWord(claim.epoch, SampleOf(claim.stream, first + row), word);
    }
  }
  producer.Attach(claim, AttachmentOf(claim.stream, claim.batch));
  producer.Complete(claim);
}

Crew::Work StreamMakers(std::vector<uint64_t> lengths, int64_t cost_ns = 0) {
  return [lengths = std::move(lengths), cost_ns](BatchProducer& producer, const Claim& claim) {
    MakeOfStream(producer, claim, lengths, cost_ns);
  };
}

using Delivered = std::pair<uint32_t, uint64_t>;  // stream, batch in it

// What streams of these lengths deliver, from the given positions on.
std::vector<Delivered> RoundRobin(const std::vector<uint64_t>& lengths, std::vector<uint64_t> next = {},
                                  uint32_t turn = 0) {
  next.resize(lengths.size());
  std::vector<Delivered> delivered;
  for (size_t idle = 0; idle < lengths.size(); turn = (turn + 1) % static_cast<uint32_t>(lengths.size())) {
    if (next[turn] * kBatchSize >= lengths[turn]) {
      ++idle;
      continue;
    }
    idle = 0;
    delivered.emplace_back(turn, next[turn]++);
  }
  return delivered;
}

// Whether a batch is as MakeOfStream makes it.
void ExpectRight(const ReadyBatch& batch, const std::vector<uint64_t>& lengths) {
  const uint64_t first = batch.stream_batch * kBatchSize;
  ASSERT_LT(first, lengths[batch.stream]);
  const uint64_t rows = std::min(kBatchSize, lengths[batch.stream] - first);
  ASSERT_TRUE(HasSamples(batch, Range(SampleOf(batch.stream, first), rows)));
  ASSERT_EQ(batch.attachment, AttachmentOf(batch.stream, batch.stream_batch));
}

// Takes the rest of the epoch, which must be `expected`, numbered from `number`.
void ExpectRest(Crew& crew, const std::vector<uint64_t>& lengths, const std::vector<Delivered>& expected,
                uint64_t number = 0) {
  for (const Delivered& next : expected) {
    const ReadyBatch batch = crew.Expect();
    ASSERT_EQ(Delivered(batch.stream, batch.stream_batch), next);
    ASSERT_EQ(batch.batch, number++);
    ASSERT_NO_FATAL_FAILURE(ExpectRight(batch, lengths));
  }
  ASSERT_FALSE(crew.Next().has_value());
}

TEST(BatchStreamTest, OneStreamOfAllProducersEndsWhereItEnds) {
  SKIP_WITHOUT_FORK();
  for (const uint64_t length : {0, 1, 4, 7, 40, 101}) {
    for (const uint32_t producers : {1, 3}) {
      Crew crew(Streams(0), producers, StreamMakers({length}));
      for (uint64_t epoch = 0; epoch < 3; ++epoch) {
        crew.scheduler().StartEpoch(epoch);
        ASSERT_NO_FATAL_FAILURE(ExpectRest(crew, {length}, RoundRobin({length}))) << length;
      }
    }
  }
}

TEST(BatchStreamTest, StreamsTakeTurnsUntilEachHasEnded) {
  SKIP_WITHOUT_FORK();
  for (const std::vector<uint64_t>& lengths : std::vector<std::vector<uint64_t>>{
           {9, 40, 17}, {0, 0, 5}, {0, 0, 0}, {100, 1, 100}, {8, 8, 8}, {3, 200, 3}, {12}}) {
    Crew crew(Streams(static_cast<uint32_t>(lengths.size())), static_cast<uint32_t>(lengths.size()),
              StreamMakers(lengths));
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      crew.scheduler().StartEpoch(epoch);
      ASSERT_NO_FATAL_FAILURE(ExpectRest(crew, lengths, RoundRobin(lengths)));
    }
  }
}

TEST(BatchStreamTest, TheOrderDoesNotDependOnTheProducersSpeed) {
  SKIP_WITHOUT_FORK();
  const std::vector<uint64_t> lengths{30, 90, 61, 2};
  for (uint32_t slow = 0; slow < 4; ++slow) {
    Crew crew(Streams(4), 4, [&](BatchProducer& producer, const Claim& claim) {
      MakeOfStream(producer, claim, lengths, producer.id() == slow ? 200'000 : 0);
    });
    crew.scheduler().StartEpoch(0);
    ASSERT_NO_FATAL_FAILURE(ExpectRest(crew, lengths, RoundRobin(lengths)));
  }
}

TEST(BatchStreamTest, AStreamIsMadeByItsProducerAlone) {
  SKIP_WITHOUT_FORK();
  Crew crew(Streams(3), 3, [](BatchProducer& producer, const Claim& claim) {
    if (claim.stream != producer.id() || claim.kind != ClaimKind::kStream) {
      producer.Fail(claim, 0, ProblemKind::kFailed, "not mine");
      return;
    }
    MakeOfStream(producer, claim, {50, 50, 50});
  });
  crew.scheduler().StartEpoch(0);
  ExpectRest(crew, {50, 50, 50}, RoundRobin({50, 50, 50}));
}

TEST(BatchStreamTest, ManySleepingProducersAreWokenForTheirStreams) {
  SKIP_WITHOUT_FORK();
  const std::vector<uint64_t> lengths(40, 6);
  Crew crew(Streams(40), 40, StreamMakers(lengths));
  for (uint32_t id = 0; id < 40; ++id) {
    crew.producer(id).AwaitSleep();
  }
  crew.scheduler().StartEpoch(0);
  ExpectRest(crew, lengths, RoundRobin(lengths));
}

TEST(BatchStreamTest, ResumesAtAnyPosition) {
  SKIP_WITHOUT_FORK();
  const std::vector<uint64_t> lengths{9, 40, 17};
  Crew crew(Streams(3), 3, StreamMakers(lengths));
  const std::vector<Delivered> all = RoundRobin(lengths);
  std::vector<uint64_t> next(3);
  for (size_t taken = 0; taken <= all.size(); ++taken) {
    const uint32_t turn = taken == 0 ? 0 : (all[taken - 1].first + 1) % 3;
    EpochStart start{7, taken};
    for (uint32_t stream = 0; stream < 3; ++stream) {
      // Of some streams the end is known, of some not yet.
      start.streams.push_back({next[stream], taken % 2 == 0 && next[stream] * kBatchSize >= lengths[stream]});
    }
    start.next_stream = turn;
    crew.scheduler().StartEpoch(start);
    ASSERT_NO_FATAL_FAILURE(ExpectRest(crew, lengths, RoundRobin(lengths, next, turn), taken));
    if (taken < all.size()) {
      ++next[all[taken].first];
    }
  }
}

TEST(BatchStreamTest, OneStreamResumesWithoutTheBatchesTaken) {
  SKIP_WITHOUT_FORK();
  for (const bool in_order : {true, false}) {
    SchedulerOptions options = Streams(0);
    options.in_order = in_order;
    Crew crew(options, 2, StreamMakers({41}));
    crew.scheduler().StartEpoch({0, 3, {4, 6, 7}});
    std::set<uint64_t> numbers;
    while (const std::optional<ReadyBatch> batch = crew.Next()) {
      ASSERT_NO_FATAL_FAILURE(ExpectRight(*batch, {41}));
      EXPECT_TRUE(numbers.insert(batch->batch).second);
    }
    EXPECT_EQ(numbers, (std::set<uint64_t>{3, 5, 8, 9, 10}));
  }
}

TEST(BatchStreamTest, WithoutOrderEveryBatchComesOnce) {
  SKIP_WITHOUT_FORK();
  const std::vector<uint64_t> lengths{30, 90, 61};
  SchedulerOptions options = Streams(3);
  options.in_order = false;
  Crew crew(options, 3, [&](BatchProducer& producer, const Claim& claim) {
    MakeOfStream(producer, claim, lengths, producer.id() == 1 ? 100'000 : 0);
  });
  crew.scheduler().StartEpoch(0);
  std::vector<uint64_t> next(3);
  for (uint64_t number = 0; const std::optional<ReadyBatch> batch = crew.Next(); ++number) {
    ASSERT_NO_FATAL_FAILURE(ExpectRight(*batch, lengths));
    ASSERT_EQ(batch->batch, number);
    ASSERT_EQ(batch->stream_batch, next[batch->stream]++) << "each stream is in order";
  }
  EXPECT_EQ(next, (std::vector<uint64_t>{8, 23, 16}));
}

TEST(BatchStreamTest, WithoutOrderASlowStreamLeavesRoomForTheOthers) {
  SchedulerOptions options = Streams(3);
  options.in_order = false;
  const std::vector<uint64_t> lengths = {40, 40, 24};
  const auto scheduler = BatchScheduler::Create(options);
  std::vector<std::unique_ptr<BatchProducer>> producers;
  for (uint32_t id = 0; id < 3; ++id) {
    producers.push_back(std::make_unique<BatchProducer>(scheduler->arena(), id, scheduler->completion_fd()));
  }
  scheduler->StartEpoch(0);
  const auto make = [&](uint32_t stream) {
    while (const std::optional<Claim> claim = producers[stream]->TryClaim()) {
      MakeOfStream(*producers[stream], *claim, lengths);
    }
  };
  const Claim slow = *producers[0]->TryClaim();
  std::vector<Delivered> delivered;
  for (;;) {
    make(1);
    make(2);
    if (scheduler->Wait(0) != WaitOutcome::kBatch) {
      break;
    }
    const ReadyBatch batch = scheduler->Take();
    delivered.emplace_back(batch.stream, batch.stream_batch);
  }
  EXPECT_EQ(delivered.size(), 16U) << "all of the others";
  EXPECT_TRUE(std::none_of(delivered.begin(), delivered.end(), [](const Delivered& each) { return each.first == 0; }));
  MakeOfStream(*producers[0], slow, lengths);
  for (uint64_t number = 0; number < 10; ++number) {
    make(0);
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    EXPECT_EQ(scheduler->Take().stream_batch, number);
  }
  make(0);
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kEndOfEpoch);
}

TEST(BatchStreamTest, TheEndOfAStreamCarriesWhatItsMakerAttached) {
  const auto scheduler = BatchScheduler::Create(Streams(2));
  BatchProducer first(scheduler->arena(), 0, scheduler->completion_fd());
  BatchProducer second(scheduler->arena(), 1, scheduler->completion_fd());
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    scheduler->StartEpoch(epoch);
    for (uint64_t number = 0; const std::optional<Claim> claim = first.TryClaim(); ++number) {
      if (number < 1) {
        MakeRows(first, *claim);
        continue;
      }
      // Batches that were open beyond the end report it once more, the later ones with nothing new.
      first.Attach(*claim, "end " + std::to_string(claim->epoch) + ":" + std::to_string(claim->batch));
      first.SetStreamEnd(*claim, StreamEnd::kBefore);
      first.Complete(*claim);
    }
    EXPECT_EQ(scheduler->StreamEndAttachment(0), "") << "its end is not known yet";
    while (const std::optional<Claim> claim = second.TryClaim()) {
      MakeOfStream(second, *claim, {0, 2});  // a short batch, whose own attachment is the end's
    }
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    EXPECT_EQ(scheduler->Take().stream, 0U);
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    EXPECT_EQ(scheduler->Take().attachment, AttachmentOf(1, 0));
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kEndOfEpoch);
    EXPECT_EQ(scheduler->StreamEndAttachment(0), "end " + std::to_string(epoch) + ":1");
    EXPECT_EQ(scheduler->StreamEndAttachment(1), AttachmentOf(1, 0));
  }
  EXPECT_THROW(scheduler->StreamEndAttachment(2), OutOfRange);
}

TEST(BatchStreamTest, AnEpochMayBeAbandoned) {
  SKIP_WITHOUT_FORK();
  const std::vector<uint64_t> lengths{30, 90, 61};
  Crew crew(Streams(3), 3, StreamMakers(lengths, 10'000));
  for (uint64_t epoch = 0; epoch < 30; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    for (uint64_t number = 0; number < epoch % 7; ++number) {
      ASSERT_EQ(crew.Expect().epoch, epoch);
    }
  }
  crew.scheduler().StartEpoch(30);
  ExpectRest(crew, lengths, RoundRobin(lengths));
}

TEST(BatchStreamTest, AFailureKeepsItsPlaceAndMayCarryAState) {
  SKIP_WITHOUT_FORK();
  Crew crew(Streams(2), 2, [](BatchProducer& producer, const Claim& claim) {
    if (claim.stream == 1 && claim.batch == 1) {
      producer.Attach(claim, "state");
      producer.Fail(claim, 2, ProblemKind::kFailed, "torn");
      return;
    }
    MakeOfStream(producer, claim, {16, 16});
  });
  crew.scheduler().StartEpoch(0);
  for (const Delivered& next : RoundRobin({16, 16})) {
    const ReadyBatch batch = crew.Expect();
    EXPECT_EQ(Delivered(batch.stream, batch.stream_batch), next);
    const bool torn = next == Delivered(1, 1);
    EXPECT_EQ(batch.problem, torn ? ProblemKind::kFailed : ProblemKind::kNone);
    EXPECT_EQ(batch.problem_message, torn ? "torn" : "");
    EXPECT_EQ(batch.attachment, torn ? "state" : AttachmentOf(next.first, next.second));
  }
  EXPECT_FALSE(crew.Next().has_value());
}

TEST(BatchStreamTest, AStreamThatKillsItsMakersEndsWithTheReport) {
  SKIP_WITHOUT_FORK();
  Crew crew(Streams(2), 2, [](BatchProducer& producer, const Claim& claim) {
    if (claim.stream == 0 && claim.batch == 1) {
      producer.BeginRow(claim, 3);
      raise(SIGKILL);
    }
    MakeOfStream(producer, claim, {100, 16});
  });
  crew.GiveUpAfter(
      4, [](BatchScheduler& scheduler, const ProducerDeath& death) { scheduler.Abandon(death.sequence, death.row); });
  crew.scheduler().StartEpoch(0);
  std::vector<Delivered> delivered;
  while (const std::optional<ReadyBatch> batch = crew.Next()) {
    delivered.emplace_back(batch->stream, batch->stream_batch);
    EXPECT_EQ(batch->problem, delivered.back() == Delivered(0, 1) ? ProblemKind::kKilled : ProblemKind::kNone);
  }
  EXPECT_EQ(delivered, (std::vector<Delivered>{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {1, 2}, {1, 3}}));
}

TEST(BatchStreamTest, WhatADeadMakerSaidDoesNotHold) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(Streams(0));
  scheduler->StartEpoch(0);
  {
    ChildProcess child([&] {
      BatchProducer producer(scheduler->arena(), 1, scheduler->completion_fd());
      const Claim claim = *producer.TryClaim();
      producer.SetRows(claim, 1);
      producer.SetStreamEnd(claim, StreamEnd::kBefore);
      producer.Attach(claim, "of the dead");
      raise(SIGKILL);
    });
    child.Join();
  }
  EXPECT_TRUE(scheduler->Reclaim(1).busy);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  const Claim claim = *producer.TryClaim();
  ASSERT_EQ(claim.batch, 0U);
  MakeRows(producer, claim);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  const ReadyBatch batch = scheduler->Take();
  EXPECT_EQ(batch.rows, kBatchSize);
  EXPECT_EQ(batch.attachment, "");
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kTimedOut) << "the stream goes on";
}

TEST(BatchStreamTest, AClaimantMayWriteAnotherLayout) {
  const auto scheduler = BatchScheduler::Create(Streams(0));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const Claim claim = *producer.TryClaim();
  ASSERT_TRUE(producer.PublishLayout(claim, SampleLayout(producer, claim, 4).bytes()));
  producer.DropLayout(claim);
  MakeRows(producer, claim, {.words = 5});
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(0, kBatchSize), 5));
}

struct StreamStorm {
  const char* name;
  uint32_t streams;
  bool in_order;
  bool abandon;
};

void PrintTo(const StreamStorm& storm, std::ostream* out) { *out << storm.name; }

class StreamStormTest : public ::testing::TestWithParam<StreamStorm> {};

INSTANTIATE_TEST_SUITE_P(Kinds, StreamStormTest,
                         ::testing::Values(StreamStorm{"one_stream", 0, true, false},
                                           StreamStorm{"one_each", 3, true, false},
                                           StreamStorm{"any_order", 3, false, false},
                                           StreamStorm{"abandoned", 3, true, true},
                                           StreamStorm{"one_any_order", 0, false, true}),
                         [](const auto& instance) { return std::string(instance.param.name); });

// Random producers are killed again and again; every batch comes once, nevertheless, and right.
TEST_P(StreamStormTest, EveryBatchComesOnceWhoeverDies) {
  SKIP_WITHOUT_FORK();
  const StreamStorm storm = GetParam();
  const std::vector<uint64_t> lengths =
      storm.streams == 0 ? std::vector<uint64_t>{1000} : std::vector<uint64_t>{300, 500, 410};
  SchedulerOptions options = Streams(storm.streams);
  options.in_order = storm.in_order;
  Crew crew(options, 3, StreamMakers(lengths, 5'000));
  const std::vector<Delivered> all = RoundRobin(lengths);
  std::mt19937_64 random(storm.streams);
  constexpr int kKills = 50;
  uint64_t epoch = 0;
  size_t epochs = 0;
  std::vector<Delivered> delivered;
  crew.scheduler().StartEpoch(epoch);
  uint64_t next_kill = MonotonicNanoseconds();
  for (int kills = 0; kills < kKills || epochs == 0;) {
    const WaitOutcome outcome = crew.scheduler().Wait(kMillisecond);
    if (outcome == WaitOutcome::kBatch) {
      const ReadyBatch batch = crew.scheduler().Take();
      ASSERT_EQ(batch.epoch, epoch);
      ASSERT_NO_FATAL_FAILURE(ExpectRight(batch, lengths));
      delivered.emplace_back(batch.stream, batch.stream_batch);
    } else if (outcome == WaitOutcome::kEndOfEpoch) {
      std::vector<Delivered> expected = all;
      if (!storm.in_order) {
        std::sort(expected.begin(), expected.end());
        std::sort(delivered.begin(), delivered.end());
      }
      ASSERT_EQ(delivered, expected);
      ++epochs;
      delivered.clear();
      crew.scheduler().StartEpoch(++epoch);
    } else if (outcome == WaitOutcome::kProducerDied) {
      crew.ReplaceDead();
    } else {
      ASSERT_EQ(outcome, WaitOutcome::kTimedOut);
      ASSERT_LT(MonotonicNanoseconds(), next_kill + kPatience);
    }
    if (kills < kKills && MonotonicNanoseconds() >= next_kill) {
      crew.producer(static_cast<uint32_t>(random() % crew.size())).Kill();
      ++kills;
      next_kill = MonotonicNanoseconds() + random() % (6 * kMillisecond);
      if (storm.abandon && random() % 4 == 0) {
        delivered.clear();
        crew.scheduler().StartEpoch(++epoch);
      }
    }
  }
  EXPECT_LE(crew.scheduler().stats().slots_used, 16U);
}

// Claims the next batch, notes its first row, and is gone.
void DieAtNextBatch(BatchScheduler& scheduler) {
  BatchProducer producer(scheduler.arena(), 7, scheduler.completion_fd());
  const std::optional<Claim> claim = producer.TryClaim();
  ASSERT_TRUE(claim.has_value());
  producer.BeginRow(*claim, 0);
  ASSERT_TRUE(scheduler.Reclaim(7).at_row);
}

TEST(BatchStreamTest, ABatchIsOnTrialFromADeathUntilItIsMade) {
  const auto scheduler = BatchScheduler::Create(Streams(0));
  scheduler->StartEpoch(0);
  BatchProducer early(scheduler->arena(), 0, scheduler->completion_fd());
  BatchProducer late(scheduler->arena(), 1, scheduler->completion_fd());
  MakeOfStream(early, *early.TryClaim(), {100});
  ASSERT_NO_FATAL_FAILURE(DieAtNextBatch(*scheduler));
  const std::optional<Claim> retried = early.TryClaim();
  const std::optional<Claim> later = late.TryClaim();
  ASSERT_EQ(retried->batch, 1U);
  ASSERT_EQ(later->batch, 2U);
  EXPECT_FALSE(early.HasTrialBefore(*retried));  // the batch itself is none before
  EXPECT_TRUE(late.HasTrialBefore(*later));
  MakeOfStream(early, *retried, {100});
  EXPECT_FALSE(late.HasTrialBefore(*later));
  EXPECT_TRUE(late.IsOpen(*later));
}

TEST(BatchStreamTest, ABatchThatIsGivenUpStaysOnTrialUntilTheEpochEnds) {
  const auto scheduler = BatchScheduler::Create(Streams(0));
  scheduler->StartEpoch(0);
  ASSERT_NO_FATAL_FAILURE(DieAtNextBatch(*scheduler));
  BatchProducer early(scheduler->arena(), 0, scheduler->completion_fd());
  BatchProducer late(scheduler->arena(), 1, scheduler->completion_fd());
  const std::optional<Claim> first = early.TryClaim();
  const std::optional<Claim> second = late.TryClaim();
  early.BeginRow(*first, 0);
  ASSERT_TRUE(scheduler->Reclaim(0).at_row);
  ASSERT_TRUE(scheduler->Abandon(first->sequence, 0));
  EXPECT_TRUE(late.HasTrialBefore(*second));
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_EQ(scheduler->Take().problem, ProblemKind::kKilled);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kEndOfEpoch);
  scheduler->StartEpoch(1);
  EXPECT_FALSE(late.HasTrialBefore(*second));
  EXPECT_FALSE(late.IsOpen(*second));
  late.Complete(*second);
  MakeOfStream(early, *early.TryClaim(), {100});
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  ASSERT_NO_FATAL_FAILURE(ExpectRight(scheduler->Take(), {100}));
}

TEST(BatchStreamTest, WrongPositionsAreRefused) {
  const auto scheduler = BatchScheduler::Create(Streams(2));
  EXPECT_THROW(scheduler->StartEpoch(EpochStart{0, 0, {}, {{0, false}}, 0}), InvalidArgument);
  EXPECT_THROW(scheduler->StartEpoch(EpochStart{0, 0, {}, {}, 2}), InvalidArgument);
  EXPECT_THROW(scheduler->StartEpoch(EpochStart{0, 0, {1}, {}, 0}), InvalidArgument);
  SchedulerOptions options = SmallOptions(10, 2);
  options.streams = 1;
  EXPECT_THROW(BatchScheduler::Create(options), InvalidArgument);
}

}  // namespace
}  // namespace headrace::shared_memory
