// The protocol among the threads of one process, where ThreadSanitizer sees both ends: producers use the scheduler's
// own mapping. (Through a second mapping the same words have other addresses, and a race would go unseen.)
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

class ThreadCrew {
 public:
  ThreadCrew(const SchedulerOptions& options, uint32_t producers, bool attach, Crew::Work work) {
    SchedulerOptions complete = options;
    complete.producers = producers;
    scheduler_ = BatchScheduler::Create(complete);
    for (uint32_t id = 0; id < producers; ++id) {
      threads_.emplace_back([this, id, attach, work] {
        BatchProducer producer(attach ? Arena::Attach(scheduler_->arena()->fd()) : scheduler_->arena(), id,
                               scheduler_->completion_fd());
        try {
          while (const std::optional<Claim> claim = producer.WaitForClaim()) {
            work(producer, *claim);
          }
        } catch (const FailedPrecondition&) {
          EXPECT_TRUE(producer.stopped()) << "shut down while another producer was writing the layout";
        }
      });
    }
  }
  ~ThreadCrew() {
    scheduler_->Shutdown();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  ThreadCrew(const ThreadCrew&) = delete;
  ThreadCrew& operator=(const ThreadCrew&) = delete;

  BatchScheduler& scheduler() { return *scheduler_; }

  ReadyBatch Expect() {
    if (scheduler_->Wait(kPatience) != WaitOutcome::kBatch) {
      throw std::runtime_error("no batch");
    }
    return scheduler_->Take();
  }

 private:
  std::shared_ptr<BatchScheduler> scheduler_;
  std::vector<std::thread> threads_;
};

Crew::Work Samples(const SampleOptions& options = {}) {
  return [options](BatchProducer& producer, const Claim& claim) { MakeRows(producer, claim, options); };
}

struct Kind {
  uint32_t producers;
  bool attach;
};

class BatchThreadTest : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Producers, BatchThreadTest,
                         ::testing::Values(Kind{1, false}, Kind{2, false}, Kind{4, false}, Kind{2, true}),
                         [](const auto& instance) {
                           return std::to_string(instance.param.producers) + (instance.param.attach ? "_attached" : "");
                         });

TEST_P(BatchThreadTest, EpochsAreInOrder) {
  ThreadCrew crew(SmallOptions(400, 4), GetParam().producers, GetParam().attach, Samples());
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    for (uint64_t batch = 0; batch < 100; ++batch) {
      ASSERT_TRUE(HasSamples(crew.Expect(), Range(batch * 4, 4)));
    }
    ASSERT_EQ(crew.scheduler().Wait(0), WaitOutcome::kEndOfEpoch);
  }
}

TEST_P(BatchThreadTest, EpochsMayBeAbandonedAnywhere) {
  ThreadCrew crew(SmallOptions(400, 8), GetParam().producers, GetParam().attach, Samples({.cost_ns = 5'000}));
  for (uint64_t epoch = 0; epoch < 200; ++epoch) {
    crew.scheduler().StartEpoch(epoch, epoch % 20);
    for (uint64_t batch = epoch % 20; batch < epoch % 20 + epoch % 3; ++batch) {
      ASSERT_TRUE(HasSamples(crew.Expect(), Range(batch * 8, 8)));
    }
  }
}

TEST_P(BatchThreadTest, MismatchedBatchesAreMadeAnewAmongOthers) {
  // Chunks that begin at an odd row have another layout, unless one maker has the whole batch.
  ThreadCrew crew(SmallOptions(800, 8), GetParam().producers, GetParam().attach,
                  [](BatchProducer& producer, const Claim& claim) {
                    const bool odd = claim.kind != ClaimKind::kWhole && claim.begin % 2 == 1;
                    MakeRows(producer, claim, {.words = odd ? 5U : 4U, .cost_ns = 40'000});
                  });
  crew.scheduler().StartEpoch(0);
  for (uint64_t batch = 0; batch < 40; ++batch) {
    const ReadyBatch ready = crew.Expect();
    const uint32_t words = static_cast<uint32_t>(ready.layout().leaf(0).dims[1]);
    ASSERT_TRUE(HasSamples(ready, Range(batch * 8, 8), words));
  }
}

TEST_P(BatchThreadTest, ExplicitBatchesMayBeSuppliedByAnotherThread) {
  SchedulerOptions options = SmallOptions(0, 1);
  options.arena.order = IndexOrder::kExplicit;
  ThreadCrew crew(options, GetParam().producers, GetParam().attach, Samples());
  crew.scheduler().StartEpoch(0);
  std::thread supplier([&] {
    for (uint64_t i = 0; i < 300; ++i) {
      const uint64_t indices[2] = {i, i * i};
      crew.scheduler().Supply(2, {reinterpret_cast<const char*>(indices), sizeof(indices)}, false);
    }
    crew.scheduler().EndSupply();
  });
  uint64_t taken = 0;
  for (;;) {
    const WaitOutcome outcome = crew.scheduler().Wait(kPatience);
    if (outcome == WaitOutcome::kEndOfEpoch) {
      break;
    }
    if (outcome == WaitOutcome::kNeedsIndices) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(outcome, WaitOutcome::kBatch);
    EXPECT_TRUE(HasSamples(crew.scheduler().Take(), {taken, taken * taken}));
    ++taken;
  }
  supplier.join();
  EXPECT_EQ(taken, 300U);
}

TEST_P(BatchThreadTest, BatchesMayBeDroppedByAnyThread) {
  SchedulerOptions options = SmallOptions(4000, 4);
  ThreadCrew crew(options, GetParam().producers, GetParam().attach, Samples());
  crew.scheduler().StartEpoch(0);
  std::mutex mutex;
  std::deque<std::pair<uint64_t, ReadyBatch>> shelf;
  std::atomic<bool> ended = false;
  std::atomic<int> wrong = 0;
  std::thread other([&] {
    while (!ended) {
      std::optional<std::pair<uint64_t, ReadyBatch>> item;
      {
        const std::lock_guard lock(mutex);
        if (!shelf.empty()) {
          item = std::move(shelf.front());
          shelf.pop_front();
        }
      }
      if (item && !HasSamples(item->second, Range(item->first * 4, 4))) {
        ++wrong;
      }
      crew.scheduler().stats();
    }
  });
  for (uint64_t batch = 0; batch < 500; ++batch) {
    ReadyBatch ready = crew.Expect();
    if (!ready.last_slots) {
      const std::lock_guard lock(mutex);
      shelf.emplace_back(batch, std::move(ready));
    }
  }
  ended = true;
  other.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(BatchThreadTest, SlowConsumersAndSlowProducersAlternate) {
  ThreadCrew crew(SmallOptions(100'000, 1), GetParam().producers, GetParam().attach,
                  [](BatchProducer& producer, const Claim& claim) {
                    MakeRows(producer, claim, {.cost_ns = claim.batch % 100 < 50 ? 20'000 : 0});
                  });
  crew.scheduler().StartEpoch(0);
  for (uint64_t batch = 0; batch < 1000; ++batch) {
    ASSERT_TRUE(HasSamples(crew.Expect(), {batch}));
    if (batch % 100 > 90) {
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }
}

TEST_P(BatchThreadTest, ShutdownInTheMiddleEndsEverybody) {
  for (int round = 0; round < 20; ++round) {
    ThreadCrew crew(SmallOptions(100'000, 4), GetParam().producers, GetParam().attach, Samples());
    crew.scheduler().StartEpoch(0);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      crew.scheduler().Shutdown();
    });
    std::vector<ReadyBatch> kept;
    while (crew.scheduler().Wait(kPatience) == WaitOutcome::kBatch) {
      try {
        kept.push_back(crew.scheduler().Take());
      } catch (const std::exception&) {
        break;  // stopped between the two
      }
      if (kept.size() > 5) {
        kept.clear();
      }
    }
    other.join();
    EXPECT_EQ(crew.scheduler().Wait(kPatience), WaitOutcome::kStopped);
  }
}

}  // namespace
}  // namespace headrace::shared_memory
