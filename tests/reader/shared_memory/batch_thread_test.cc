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

#include "gtest/gtest.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

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

TEST_P(BatchThreadTest, BatchesAreCollatedFromKeptSamples) {
  for (const bool in_order : {true, false}) {
    SchedulerOptions options = SmallOptions(400, 4);
    options.collation = Collation::kSplit;
    options.collators = 2;
    options.in_order = in_order;
    ThreadCrew crew(options, GetParam().producers, GetParam().attach, [](BatchProducer& producer, const Claim& claim) {
      if (claim.kind == ClaimKind::kItems && claim.batch % 16 == 3) {
        producer.Fail(claim, claim.begin, claim.batch % 32 == 3 ? ProblemKind::kMismatch : ProblemKind::kFailed,
                      "for once");
        return;
      }
      MakeSplit(producer, claim);
    });
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      crew.scheduler().StartEpoch(epoch);
      uint64_t sum = 0;
      for (uint64_t taken = 0; taken < 100; ++taken) {
        const ReadyBatch batch = crew.Expect();
        sum += batch.batch;
        if (batch.batch % 32 == 19) {
          ASSERT_EQ(batch.problem, ProblemKind::kFailed);
        } else {
          ASSERT_TRUE(HasSamples(batch, Range(batch.batch * 4, 4)));
        }
      }
      ASSERT_EQ(sum, 4950U);
    }
  }
}

TEST_P(BatchThreadTest, StreamsEndAndBeginAnew) {
  for (const uint32_t streams : {0U, GetParam().producers}) {
    for (const bool in_order : {true, false}) {
      SchedulerOptions options = SmallOptions(0, 4);
      options.arena.order = IndexOrder::kStream;
      options.streams = streams;
      options.in_order = in_order;
      options.prefetch = 6;
      ThreadCrew crew(options, GetParam().producers, GetParam().attach,
                      [](BatchProducer& producer, const Claim& claim) {
                        if (claim.batch >= 20) {
                          producer.SetStreamEnd(claim, StreamEnd::kBefore);
                          producer.Complete(claim);
                          return;
                        }
                        if (claim.batch == 19 && claim.stream % 2 == 0) {
                          producer.SetStreamEnd(claim, StreamEnd::kAfter);
                        }
                        MakeRows(producer, claim);
                      });
      for (uint64_t epoch = 0; epoch < 5; ++epoch) {
        crew.scheduler().StartEpoch(epoch);
        for (uint64_t taken = 0; taken < 20 * std::max(streams, 1U); ++taken) {
          ASSERT_EQ(crew.Expect().epoch, epoch);
        }
        ASSERT_EQ(crew.scheduler().Wait(kPatience), WaitOutcome::kEndOfEpoch);
      }
    }
  }
}

TEST_P(BatchThreadTest, BatchesComeInAnyOrder) {
  SchedulerOptions options = SmallOptions(400, 4);
  options.in_order = false;
  ThreadCrew crew(options, GetParam().producers, GetParam().attach, [](BatchProducer& producer, const Claim& claim) {
    MakeRows(producer, claim, {.cost_ns = claim.batch % 7 == 0 ? 100'000 : 0});
  });
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    crew.scheduler().StartEpoch(epoch);
    uint64_t sum = 0;
    for (uint64_t taken = 0; taken < 100; ++taken) {
      const ReadyBatch batch = crew.Expect();
      ASSERT_TRUE(HasSamples(batch, Range(batch.batch * 4, 4)));
      sum += batch.batch;
    }
    ASSERT_EQ(sum, 4950U);
  }
}

TEST_P(BatchThreadTest, ProducersRetireWhileOthersWork) {
  ThreadCrew crew(SmallOptions(400, 4), GetParam().producers, GetParam().attach, Samples());
  crew.scheduler().StartEpoch(0);
  for (uint64_t batch = 0; batch < 100; ++batch) {
    if (batch != 0 && batch < GetParam().producers) {
      crew.scheduler().RetireProducer(static_cast<uint32_t>(batch));
      crew.scheduler().SetProducers(GetParam().producers - static_cast<uint32_t>(batch));
    }
    ASSERT_TRUE(HasSamples(crew.Expect(), Range(batch * 4, 4)));
  }
}

}  // namespace
}  // namespace headrace::shared_memory
