// What the figures say.
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "gtest/gtest.h"
#include "reader/shared_memory/waiting/futex.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

TEST(BatchStatsTest, BytesAreThoseOfTheBatchesTaken) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(8, 4));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  const std::optional<Claim> first = producer.TryClaim();
  producer.PublishLayout(*first, SampleLayout(producer, *first, 100).bytes());
  producer.AllocateSide(*first, 130, kDataOffset + 4 * 800);
  producer.Complete(*first);
  for (uint32_t row = 1; row < 4; ++row) {
    MakeRows(producer, *producer.TryClaim(), {.words = 100});
  }
  EXPECT_EQ(scheduler->stats().bytes, 0U);
  scheduler->Take();
  EXPECT_EQ(scheduler->stats().bytes, 4U * 800 + 192);
  producer.Fail(*producer.TryClaim(), 0, ProblemKind::kFailed, "a message");
  MakeAll(producer);
  scheduler->Take();
  EXPECT_EQ(scheduler->stats().bytes, 4U * 800 + 192) << "a batch that failed has none";
}

TEST(BatchStatsTest, BatchesReadyAreThoseCompleteAndNotTaken) {
  SchedulerOptions options = SmallOptions(10, 1);
  options.prefetch = 4;
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  EXPECT_EQ(scheduler->stats().prefetch, 4U);
  const std::optional<Claim> first = producer.TryClaim();
  MakeRows(producer, *producer.TryClaim());
  EXPECT_EQ(scheduler->stats().ready_batches, 1U) << "whether it is the consumer's next or not";
  EXPECT_EQ(scheduler->stats().open_batches, 4U);
  MakeRows(producer, *first);
  EXPECT_EQ(scheduler->stats().ready_batches, 2U);
  scheduler->Take();
  EXPECT_EQ(scheduler->stats().ready_batches, 1U);
}

TEST(BatchStatsTest, TimesAreOfEachProducerAndOfAll) {
  SKIP_WITHOUT_FORK();
  const uint64_t begin = MonotonicNanoseconds();
  Crew crew(SmallOptions(64, 4), 2, [](BatchProducer& producer, const Claim& claim) {
    producer.AddTime(100 + producer.id(), 10, 1);
    MakeRows(producer, claim, {.cost_ns = 100'000});
  });
  crew.scheduler().StartEpoch(0);
  while (crew.Next()) {
  }
  crew.scheduler().Shutdown();
  crew.producer(0).Join();
  crew.producer(1).Join();
  const SchedulerStats stats = crew.scheduler().stats();
  ASSERT_EQ(stats.producers.size(), 2U);
  uint64_t samples = 0;
  for (uint32_t id = 0; id < 2; ++id) {
    const ProducerStats& producer = stats.producers[id];
    EXPECT_EQ(producer.dataset_ns, producer.claims * (100 + id));
    EXPECT_EQ(producer.collate_ns, producer.claims * 10);
    EXPECT_EQ(producer.copy_ns, producer.claims);
    EXPECT_GE(producer.work_ns, producer.samples * 100'000);
    samples += producer.samples;
  }
  EXPECT_GE(samples, 64U);
  EXPECT_EQ(stats.all.samples, samples);
  EXPECT_EQ(stats.all.dataset_ns, stats.producers[0].dataset_ns + stats.producers[1].dataset_ns);
  EXPECT_LE(stats.elapsed_ns, MonotonicNanoseconds() - begin);
  EXPECT_GE(stats.elapsed_ns, stats.wait_ns);
  EXPECT_LE(stats.all.work_ns, 2 * stats.elapsed_ns);
}

TEST(BatchStatsTest, ProducersThatJoinLaterAreCounted) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(8, 4));
  EXPECT_EQ(scheduler->stats().producers.size(), 1U);
  scheduler->SetProducers(3);
  scheduler->SetProducers(2);
  EXPECT_EQ(scheduler->stats().producers.size(), 3U);
  BatchProducer producer(scheduler->arena(), 2, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  MakeAll(producer);
  EXPECT_EQ(scheduler->stats().producers[2].samples, 8U + 4);
}

}  // namespace
}  // namespace headrace::shared_memory
