// Batches that cannot be made: what is reported does not depend on which producer came first.
#include <optional>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "reader/index_permutation.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

// Samples whose width depends on their index: `wide(index)` says whether it has 5 words or 4. A single maker of a whole
// batch decides by the first row.
template <typename Wide>
Crew::Work MixedWork(Wide wide) {
  return [wide](BatchProducer& producer, const Claim& claim) {
    const uint32_t words = wide(producer.IndexAt(claim, claim.begin)) ? 5 : 4;
    for (uint32_t row = claim.begin; row < claim.end && claim.kind != ClaimKind::kWhole; ++row) {
      if (wide(producer.IndexAt(claim, row)) != (words == 5)) {
        producer.Fail(claim, row, ProblemKind::kMismatch, "");
        return;
      }
    }
    MakeRows(producer, claim, {.words = words, .cost_ns = 10'000});
  };
}

TEST(BatchProblemTest, MismatchedSamplesGiveTheSameBatchWhoeverComesFirst) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(160, 8);
  Crew crew(options, 4, MixedWork([](uint64_t index) { return MixBits(index) % 4 == 0; }));
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    for (uint64_t batch = 0; batch < 20; ++batch) {
      const uint32_t words = MixBits(batch * 8) % 4 == 0 ? 5 : 4;
      ASSERT_TRUE(HasSamples(crew.Expect(), Range(batch * 8, 8), words));
    }
  }
}

TEST(BatchProblemTest, MismatchReopensTheBatchForOneMaker) {
  SchedulerOptions options = SmallOptions(4, 4);
  options.cross_epochs = false;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer one(scheduler->arena(), 0, scheduler->completion_fd());
  BatchProducer two(scheduler->arena(), 1, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  for (uint32_t row = 0; row < 4; ++row) {
    BatchProducer& producer = row % 2 == 0 ? one : two;
    const std::optional<Claim> claim = producer.TryClaim();
    ASSERT_TRUE(claim.has_value());
    EXPECT_EQ(claim->kind, ClaimKind::kRows);
    MakeRows(producer, *claim, {.words = row == 1 ? 7U : 4U});
  }
  EXPECT_EQ(scheduler->Wait(0), WaitOutcome::kTimedOut);
  // Both had looked past this batch.
  const std::optional<Claim> claim = two.TryClaim();
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(claim->kind, ClaimKind::kWhole);
  EXPECT_EQ(claim->begin, 0U);
  EXPECT_EQ(claim->end, 4U);
  EXPECT_FALSE(one.TryClaim().has_value());
  MakeRows(two, *claim, {.words = 9});
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), Range(0, 4), 9));
}

TEST(BatchProblemTest, MismatchWithinAWholeBatchIsAFailure) {
  SchedulerOptions options = SmallOptions(4, 4);
  options.collation = Collation::kWhole;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const std::optional<Claim> claim = producer.TryClaim();
  ASSERT_TRUE(claim.has_value());
  producer.Fail(*claim, 2, ProblemKind::kMismatch, "does not fit");
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  const ReadyBatch batch = scheduler->Take();
  EXPECT_EQ(batch.problem, ProblemKind::kFailed);
  EXPECT_EQ(batch.problem_row, 2U);
  EXPECT_EQ(batch.problem_message, "does not fit");
}

TEST(BatchProblemTest, LowestFailingRowIsReported) {
  SKIP_WITHOUT_FORK();
  // Row 9 of each batch of 16 is bad at once, row 3 after a while.
  Crew crew(SmallOptions(160, 16), 4, [](BatchProducer& producer, const Claim& claim) {
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      if (row == 3 || row == 9) {
        usleep(row == 3 ? 2000 : 0);
        producer.Fail(claim, row, ProblemKind::kFailed, "row " + std::to_string(row));
        return;
      }
    }
    MakeRows(producer, claim);
  });
  crew.scheduler().StartEpoch(0);
  for (uint64_t i = 0; i < 10; ++i) {
    const ReadyBatch batch = crew.Expect();
    EXPECT_EQ(batch.batch, i);
    EXPECT_EQ(batch.problem, ProblemKind::kFailed);
    EXPECT_EQ(batch.problem_row, 3U);
    EXPECT_EQ(batch.problem_message, "row 3");
  }
}

// Chunks of rows {0, 1} and {2, 3}: row 1 is bad, row 3 too, and the second layout differs. Whether row 0 or row 2
// comes first decides whose layout stands; the report must not follow.
TEST(BatchProblemTest, FailureBesideAMismatchIsReportedFromTheLowestRow) {
  for (const bool second_first : {false, true}) {
    SchedulerOptions options = SmallOptions(4, 2);
    options.arena.dataset_length = 512;
    options.batch_size = 512;  // two rows a chunk
    options.cross_epochs = false;
    const auto scheduler = BatchScheduler::Create(options);
    BatchProducer one(scheduler->arena(), 0, scheduler->completion_fd());
    BatchProducer two(scheduler->arena(), 1, scheduler->completion_fd());
    scheduler->StartEpoch(0);
    const auto make = [](BatchProducer& producer, const Claim& claim) {
      for (uint32_t row = claim.begin; row < claim.end; ++row) {
        const uint32_t words = row < 2 ? 4 : 5;
        if (!producer.PublishLayout(claim, SampleLayout(producer, claim, words).bytes())) {
          producer.Fail(claim, row, ProblemKind::kMismatch, "");
          return;
        }
        if (row == 1 || row == 3) {
          producer.Fail(claim, row, ProblemKind::kFailed, "row " + std::to_string(row));
          return;
        }
      }
      producer.Complete(claim);
    };
    const std::optional<Claim> first = one.TryClaim();
    const std::optional<Claim> second = two.TryClaim();
    ASSERT_TRUE(first.has_value() && second.has_value());
    ASSERT_EQ(first->end, 2U);
    if (second_first) {
      make(two, *second);
      make(one, *first);
    } else {
      make(one, *first);
      make(two, *second);
    }
    WaitOutcome outcome = WaitOutcome::kTimedOut;
    for (int round = 0; round < 3 && outcome != WaitOutcome::kBatch; ++round) {
      while (const std::optional<Claim> claim = one.TryClaim()) {
        make(one, *claim);
      }
      outcome = scheduler->Wait(0);
    }
    ASSERT_EQ(outcome, WaitOutcome::kBatch);
    const ReadyBatch batch = scheduler->Take();
    EXPECT_EQ(batch.problem, ProblemKind::kFailed) << second_first;
    EXPECT_EQ(batch.problem_row, 1U) << second_first;
  }
}

TEST(BatchProblemTest, LoaderGoesOnAfterAFailedBatch) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(30, 3), 2, [](BatchProducer& producer, const Claim& claim) {
    if (claim.batch % 2 == 1) {
      producer.Fail(claim, claim.begin, ProblemKind::kFailed, "odd");
      return;
    }
    MakeRows(producer, claim);
  });
  crew.scheduler().StartEpoch(0);
  for (uint64_t i = 0; i < 10; ++i) {
    const ReadyBatch batch = crew.Expect();
    if (i % 2 == 1) {
      EXPECT_EQ(batch.problem_message, "odd");
    } else {
      EXPECT_TRUE(HasSamples(batch, Range(i * 3, 3)));
    }
  }
}

TEST(BatchProblemTest, MessageIsNotOverwrittenByOtherRowsOfAFullSlot) {
  SchedulerOptions options = SmallOptions(2, 2);
  options.arena.slot_bytes = size_t{1} << 20;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const std::optional<Claim> first = producer.TryClaim();
  const std::optional<Claim> second = producer.TryClaim();
  ASSERT_TRUE(first.has_value() && second.has_value());
  const auto words = static_cast<uint32_t>(((size_t{1} << 20) - kDataOffset) / 16);
  ASSERT_TRUE(producer.PublishLayout(*second, SampleLayout(producer, *second, words).bytes()));
  producer.Fail(*first, 0, ProblemKind::kFailed, "why it failed");
  WriteRow(producer, *second, 1, words);
  producer.Complete(*second);
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  const ReadyBatch batch = scheduler->Take();
  EXPECT_EQ(batch.problem, ProblemKind::kFailed);
  // There is no room for it; none is better than another's bytes.
  EXPECT_EQ(batch.problem_message, "");
}

TEST(BatchProblemTest, SideDataOfManyRowsDoesNotOverlap) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(64, 64), 4, [](BatchProducer& producer, const Claim& claim) {
    const BatchLayout layout({{LeafKind::kObject, -1, 0, {claim.rows}}}, "objects", producer.DataOffset(claim),
                             producer.arena().slot_bytes());
    if (!producer.PublishLayout(claim, layout.bytes())) {
      producer.Fail(claim, claim.begin, ProblemKind::kFailed, "layout");
      return;
    }
    auto* records = reinterpret_cast<SideRecord*>(producer.Data(claim) + layout.leaf(0).offset);
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      const std::string text(1 + row * 7, static_cast<char>('0' + row));
      records[row] = producer.AllocateSide(claim, text.size(), LayoutView(producer.Data(claim)).end());
      text.copy(reinterpret_cast<char*>(producer.Data(claim) + records[row].offset), text.size());
      usleep(100);
    }
    producer.Complete(claim);
  });
  crew.scheduler().StartEpoch(0);
  const ReadyBatch batch = crew.Expect();
  ASSERT_EQ(batch.problem, ProblemKind::kNone);
  const auto* records = reinterpret_cast<const SideRecord*>(batch.slot + batch.layout().leaf(0).offset);
  for (uint32_t row = 0; row < 64; ++row) {
    const std::string text(reinterpret_cast<const char*>(batch.slot + records[row].offset), records[row].bytes);
    EXPECT_EQ(text, std::string(1 + row * 7, static_cast<char>('0' + row)));
    EXPECT_EQ(records[row].offset % 64, 0U);
  }
}

TEST(BatchProblemTest, SideDataBeyondTheSlotIsAnError) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(4, 1));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const std::optional<Claim> claim = producer.TryClaim();
  ASSERT_TRUE(claim.has_value());
  const size_t room = scheduler->arena()->slot_bytes() - kDataOffset;
  EXPECT_NO_THROW(producer.AllocateSide(*claim, room / 2, kDataOffset));
  EXPECT_THROW(producer.AllocateSide(*claim, room / 2 + 1, kDataOffset), ResourceExhausted);
  // What is refused takes no room.
  EXPECT_NO_THROW(producer.AllocateSide(*claim, room / 2 - 64, kDataOffset));
}

TEST(BatchProblemTest, AMessageArrivesAfterOneThatDidNotFit) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(2, 2));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const std::optional<Claim> first = producer.TryClaim();
  const std::optional<Claim> second = producer.TryClaim();
  producer.Fail(*second, 1, ProblemKind::kFailed, std::string(scheduler->arena()->slot_bytes(), 'x'));
  producer.Fail(*first, 0, ProblemKind::kFailed, "why it failed");
  ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
  EXPECT_EQ(scheduler->Take().problem_message, "why it failed");
}

}  // namespace
}  // namespace headrace::shared_memory
