#include "reader/shared_memory/batches/open_batches.h"

#include <memory>
#include <optional>
#include <utility>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "reader/shared_memory/arena_repair.h"
#include "reader/shared_memory/batch_producer.h"
#include "tests/reader/shared_memory/transport_test_util.h"

namespace headrace::shared_memory {
namespace {

using Next = OpenBatches::Next;

// Batches of 4 of 20 samples, 3 of them open, without a scheduler: one thread is consumer and producers.
class OpenBatchesTest : public ::testing::Test {
 protected:
  OpenBatchesTest() { batches_.SetProducers(2, 0); }

  // The number of the next batch; nothing if it is not ready.
  std::optional<uint64_t> Take() {
    const std::optional<OpenBatch> batch = batches_.TakeReady();
    if (!batch) {
      return std::nullopt;
    }
    if (batch->has_slot) {
      batches_.CloseClaims(*batch);
      batches_.slots().Free(batch->slot, false);
    }
    batches_.Advance();
    return batch->facts.batch;
  }

  const SchedulerOptions options_ = SmallOptions(20, 4);
  const std::shared_ptr<Arena> arena_ = Arena::Create(options_.arena);
  ControlBlock& control_ = arena_->control();
  ProducerTable producers_{control_};
  TraceRing trace_;
  OpenBatches batches_{options_, BatchPlan(options_), *arena_, producers_, trace_};
  ArenaRepair repair_{batches_, producers_, *arena_, /*keeps_pages=*/false};
  BatchProducer producer_{arena_, 0, -1};
  BatchProducer other_{arena_, 1, -1};
};

TEST_F(OpenBatchesTest, NothingIsOpenBeforeAnEpochStarts) {
  EXPECT_FALSE(batches_.started());
  EXPECT_FALSE(producer_.TryClaim().has_value());
  EXPECT_EQ(batches_.CountReady(), 0U);
}

TEST_F(OpenBatchesTest, AsManyAreOpenAsArePrefetched) {
  batches_.StartEpoch({});
  EXPECT_EQ(batches_.batches().size(), 3U);
  EXPECT_EQ(control_.oldest, 1U);
  EXPECT_EQ(control_.next, 4U);
  EXPECT_EQ(batches_.LookAtNext(), Next::kBeingMade);
  EXPECT_EQ(Take(), std::nullopt);
  MakeAll(producer_);
  EXPECT_EQ(batches_.CountReady(), 3U);
  EXPECT_EQ(batches_.LookAtNext(), Next::kReady);
  EXPECT_EQ(Take(), 0U);
  EXPECT_EQ(batches_.batches().size(), 3U) << "another one opens";
  EXPECT_EQ(control_.oldest, 2U);
  MakeAll(producer_);
  for (uint64_t batch = 1; batch < 5; ++batch) {
    EXPECT_EQ(Take(), batch);
    MakeAll(producer_);
  }
  // What is open now belongs to the next epoch.
  EXPECT_EQ(batches_.LookAtNext(), Next::kEndOfEpoch);
}

TEST_F(OpenBatchesTest, ABatchIsReadyWhenAllOfItIsDone) {
  batches_.StartEpoch({});
  const std::optional<Claim> claim = producer_.TryClaim();
  ASSERT_TRUE(claim.has_value());
  MakeAll(other_);
  EXPECT_EQ(batches_.LookAtNext(), Next::kBeingMade);
  EXPECT_EQ(batches_.CountReady(), 2U);
  MakeRows(producer_, *claim);
  EXPECT_EQ(batches_.LookAtNext(), Next::kReady);
}

TEST_F(OpenBatchesTest, NothingCanBeClaimedOfWhatIsClosed) {
  batches_.StartEpoch({});
  const std::optional<Claim> claim = producer_.TryClaim();
  ASSERT_TRUE(claim.has_value());
  batches_.Stop();
  EXPECT_TRUE(batches_.stopped());
  EXPECT_TRUE(batches_.batches().empty());
  EXPECT_FALSE(other_.TryClaim().has_value());
  EXPECT_EQ(batches_.slots().draining().size(), 1U) << "a producer may still write there";
  MakeRows(producer_, *claim);
  batches_.slots().FreeDrained();
  EXPECT_TRUE(batches_.slots().draining().empty());
  batches_.Open();
  EXPECT_TRUE(batches_.batches().empty());
}

TEST_F(OpenBatchesTest, AnEpochThatFollowsKeepsWhatIsOpen) {
  batches_.StartEpoch({});
  MakeAll(producer_);
  ASSERT_EQ(Take(), 0U);
  const uint64_t oldest = batches_.batches().front().facts.sequence;
  batches_.StartEpoch({0, 1});
  EXPECT_EQ(batches_.batches().front().facts.sequence, oldest);
  batches_.StartEpoch({0, 3});
  EXPECT_NE(batches_.batches().front().facts.sequence, oldest);
  EXPECT_EQ(batches_.batches().front().facts.batch, 3U);
}

TEST_F(OpenBatchesTest, AnAbandonedBatchIsTakenWithoutASlot) {
  batches_.StartEpoch({});
  const uint64_t sequence = batches_.batches().front().facts.sequence;
  EXPECT_FALSE(batches_.Abandon(sequence, 4)) << "a batch has rows 0 to 3";
  EXPECT_FALSE(batches_.Abandon(sequence + 10, 0));
  EXPECT_TRUE(batches_.Abandon(sequence, 2));
  const std::optional<OpenBatch> batch = batches_.TakeReady();
  ASSERT_TRUE(batch.has_value());
  EXPECT_FALSE(batch->has_slot);
  EXPECT_EQ(batch->problem.kind, ProblemKind::kKilled);
  EXPECT_EQ(batch->problem.row, 2U);
}

TEST_F(OpenBatchesTest, ABatchOfWhichAllRowsAreSkippedIsNotDelivered) {
  batches_.StartEpoch({});
  const uint64_t sequence = batches_.batches().front().facts.sequence;
  for (uint32_t row = 0; row < 4; ++row) {
    EXPECT_TRUE(batches_.Skip(sequence, row));
  }
  MakeAll(producer_);
  EXPECT_EQ(Take(), 1U);
}

TEST_F(OpenBatchesTest, TheChunksOfADeadProducerAreClaimedAgain) {
  batches_.StartEpoch({});
  const std::optional<Claim> claim = producer_.TryClaim();
  ASSERT_TRUE(claim.has_value());
  producer_.BeginRow(*claim, 0);
  MakeAll(other_);
  EXPECT_EQ(batches_.LookAtNext(), Next::kBeingMade);
  ASSERT_EQ(repair_.Claims().size(), 1U);
  EXPECT_TRUE(repair_.Claims().front().at_row);
  const ProducerDeath death = repair_.Reclaim(0);
  EXPECT_TRUE(death.busy);
  EXPECT_EQ(death.batch, 0U);
  EXPECT_TRUE(repair_.Claims().empty());
  MakeAll(other_);
  EXPECT_EQ(Take(), 0U);
}

TEST_F(OpenBatchesTest, ACheckWritesAnewWhatWasOverwritten) {
  batches_.StartEpoch({});
  const auto ring = [&] { return control_.ring[batches_.batches().front().facts.sequence % kMaxSlots].load(); };
  const uint32_t slot = ring();
  control_.ring[batches_.batches().front().facts.sequence % kMaxSlots] = 77;
  control_.oldest = 1000;
  control_.stop = 1;
  repair_.CheckSharedState();
  EXPECT_EQ(ring(), slot);
  EXPECT_EQ(control_.oldest, 1U);
  EXPECT_EQ(control_.stop, 0U);
  MakeAll(producer_);
  EXPECT_EQ(Take(), 0U);
}

TEST_F(OpenBatchesTest, ACheckFailsABatchWithAWordThatNobodyWrites) {
  batches_.StartEpoch({});
  const OpenBatch& batch = batches_.batches().front();
  arena_->slot(batch.slot).chunk_words[0] = 0x1234567800000000;
  repair_.CheckSharedState();
  ASSERT_EQ(batches_.LookAtNext(), Next::kReady);
  EXPECT_EQ(batches_.TakeReady()->problem.kind, ProblemKind::kCorrupt);
}

TEST_F(OpenBatchesTest, SuppliesComeBetweenStartAndEnd) {
  SchedulerOptions options = options_;
  options.arena.order = IndexOrder::kExplicit;
  const std::shared_ptr<Arena> arena = Arena::Create(options.arena);
  ProducerTable producers(arena->control());
  OpenBatches batches(options, BatchPlan(options), *arena, producers, trace_);
  EXPECT_THROW(batches.Supply(1, "12345678", false), FailedPrecondition);
  batches.StartEpoch({});
  EXPECT_EQ(batches.WantedSupply(), 3U);
  EXPECT_EQ(batches.LookAtNext(), Next::kNeedsIndices);
  batches.Supply(1, "12345678", false);
  EXPECT_EQ(batches.WantedSupply(), 2U);
  EXPECT_EQ(batches.LookAtNext(), Next::kBeingMade);
  batches.EndSupply();
  EXPECT_EQ(batches.WantedSupply(), 0U);
  EXPECT_THROW(batches.Supply(1, "12345678", false), FailedPrecondition);
}

TEST_F(OpenBatchesTest, StreamsThatDoNotExistAreRefused) { EXPECT_THROW(batches_.StreamEndAttachment(0), OutOfRange); }

}  // namespace
}  // namespace headrace::shared_memory
