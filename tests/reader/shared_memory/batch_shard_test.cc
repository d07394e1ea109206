// Loaders that share an epoch, and epochs that begin anywhere and leave batches out.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "reader/index_permutation.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

SchedulerOptions Shard(uint64_t length, uint64_t batch_size, uint32_t rank, uint32_t world) {
  SchedulerOptions options = SmallOptions(length, batch_size);
  options.rank = rank;
  options.world = world;
  return options;
}

// The positions of a rank's batch, as far as the epoch has them.
std::vector<uint64_t> Positions(const SchedulerOptions& options, uint64_t batch) {
  std::vector<uint64_t> positions;
  for (uint64_t row = 0; row < options.batch_size; ++row) {
    const uint64_t position = (batch * options.batch_size + row) * options.world + options.rank;
    if (position < options.arena.dataset_length) {
      positions.push_back(position);
    }
  }
  return positions;
}

// A scheduler and one producer, both in this thread.
class Local {
 public:
  explicit Local(const SchedulerOptions& options)
      : scheduler_(BatchScheduler::Create(options)), producer_(scheduler_->arena(), 0, scheduler_->completion_fd()) {}

  BatchScheduler& scheduler() { return *scheduler_; }
  // Numbers of the batches from here to the epoch's end; checks their samples.
  std::vector<uint64_t> Rest() {
    std::vector<uint64_t> numbers;
    while (MakeAll(producer_), scheduler_->Wait(0) == WaitOutcome::kBatch) {
      const ReadyBatch batch = scheduler_->Take();
      EXPECT_TRUE(HasSamples(batch, Positions(scheduler_->options(), batch.batch)));
      numbers.push_back(batch.batch);
    }
    EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kEndOfEpoch);
    return numbers;
  }

 private:
  std::shared_ptr<BatchScheduler> scheduler_;
  BatchProducer producer_;
};

TEST(BatchShardTest, RanksShareAnEpochRowByRow) {
  for (const uint64_t length : {0, 1, 5, 24, 25, 47}) {
    std::vector<uint64_t> seen;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      Local local(Shard(length, 4, rank, 3));
      local.scheduler().StartEpoch(0);
      EXPECT_EQ(local.Rest().size(), local.scheduler().batches_per_epoch());
      for (uint64_t batch = 0; batch < local.scheduler().batches_per_epoch(); ++batch) {
        const std::vector<uint64_t> positions = Positions(local.scheduler().options(), batch);
        EXPECT_FALSE(positions.empty());
        seen.insert(seen.end(), positions.begin(), positions.end());
      }
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, Range(0, length)) << length;
  }
}

TEST(BatchShardTest, DropLastGivesEachRankTheSameNumberOfFullBatches) {
  for (uint64_t length = 0; length < 30; ++length) {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      SchedulerOptions options = Shard(length, 4, rank, 3);
      options.drop_last = true;
      Local local(options);
      ASSERT_EQ(local.scheduler().batches_per_epoch(), length / 12);
      local.scheduler().StartEpoch(0);
      ASSERT_EQ(local.Rest(), Range(0, length / 12));
    }
  }
}

TEST(BatchShardTest, ShuffledShardsFollowThePermutation) {
  SKIP_WITHOUT_FORK();
  constexpr uint64_t kLength = 103;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    SchedulerOptions options = Shard(kLength, 8, rank, 2);
    options.arena.order = IndexOrder::kShuffled;
    options.arena.seed = 17;
    Crew crew(options, 2);
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      crew.scheduler().StartEpoch(epoch);
      const IndexPermutation permutation(kLength, 17, epoch);
      for (uint64_t batch = 0; batch < crew.scheduler().batches_per_epoch(); ++batch) {
        std::vector<uint64_t> indices = Positions(options, batch);
        std::transform(indices.begin(), indices.end(), indices.begin(), permutation);
        ASSERT_TRUE(HasSamples(crew.Expect(), indices));
      }
      ASSERT_FALSE(crew.Next().has_value());
    }
  }
}

TEST(BatchShardTest, AShardOfAnEndlessDatasetResumesAnywhere) {
  Local local(Shard(uint64_t{1} << 62, 4, 6, 7));
  const uint64_t last = local.scheduler().batches_per_epoch() - 1;
  local.scheduler().StartEpoch(3, last);
  EXPECT_EQ(local.Rest(), std::vector<uint64_t>{last});
}

TEST(BatchShardTest, SkippedBatchesAreNotMade) {
  Local local(SmallOptions(40, 4));
  local.scheduler().StartEpoch({5, 2, {9, 2, 3, 6, 6}});
  EXPECT_EQ(local.Rest(), (std::vector<uint64_t>{4, 5, 7, 8}));
  EXPECT_EQ(local.scheduler().stats().all.samples, 16U + 4 * 3) << "four batches, and three opened of the next epoch";
  local.scheduler().StartEpoch(6);
  EXPECT_EQ(local.Rest(), Range(0, 10)) << "the next epoch has all";
}

TEST(BatchShardTest, AnEpochStartedAnewSkipsNothing) {
  Local local(SmallOptions(24, 4));
  local.scheduler().StartEpoch({0, 0, {2}});
  local.scheduler().StartEpoch(0);
  EXPECT_EQ(local.Rest(), Range(0, 6));
  local.scheduler().StartEpoch({1, 0, {0, 1, 2, 3, 4, 5}});
  EXPECT_EQ(local.Rest(), std::vector<uint64_t>{});
}

TEST(BatchShardTest, SuppliedBatchesPassOverTheNumbersToSkip) {
  SchedulerOptions options = SmallOptions(0, 1);
  options.arena.order = IndexOrder::kExplicit;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch({0, 3, {4, 5}});
  const uint64_t index = 7;
  for (const uint64_t number : {3, 6}) {
    scheduler->Supply(1, {reinterpret_cast<const char*>(&index), sizeof(index)}, false);
    MakeAll(producer);
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    EXPECT_EQ(scheduler->Take().batch, number);
  }
}

TEST(BatchShardTest, WrongShardsAndSkipsAreRefused) {
  EXPECT_THROW(BatchScheduler::Create(Shard(10, 2, 2, 2)), InvalidArgument);
  EXPECT_THROW(BatchScheduler::Create(Shard(10, 2, 0, 0)), InvalidArgument);
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 2));
  EXPECT_THROW(scheduler->StartEpoch({0, 2, {1}}), InvalidArgument);
}

}  // namespace
}  // namespace headrace::shared_memory
