// A fork of the process that owns a scheduler: whatever it calls, it is refused before anything is written.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

// All that a scheduler does.
std::vector<std::function<void(BatchScheduler&)>> Calls() {
  return {
      [](BatchScheduler& scheduler) { scheduler.StartEpoch(3); },
      [](BatchScheduler& scheduler) { scheduler.Supply(1, std::string(8, 0), false); },
      [](BatchScheduler& scheduler) { scheduler.EndSupply(); },
      [](BatchScheduler& scheduler) { scheduler.WantedSupply(); },
      [](BatchScheduler& scheduler) { scheduler.Wait(0); },
      [](BatchScheduler& scheduler) { scheduler.TryWait(); },
      [](BatchScheduler& scheduler) { scheduler.Interrupt(); },
      [](BatchScheduler& scheduler) { scheduler.Take(); },
      [](BatchScheduler& scheduler) { scheduler.StreamEndAttachment(0); },
      [](BatchScheduler& scheduler) { scheduler.WatchProducer(0, 0); },
      [](BatchScheduler& scheduler) { scheduler.RetireProducer(0); },
      [](BatchScheduler& scheduler) { scheduler.SetProducers(3); },
      [](BatchScheduler& scheduler) { scheduler.TakeDeaths(); },
      [](BatchScheduler& scheduler) { scheduler.Claims(); },
      [](BatchScheduler& scheduler) { scheduler.Reclaim(0); },
      [](BatchScheduler& scheduler) { scheduler.Accuse(0); },
      [](BatchScheduler& scheduler) { scheduler.Abandon(1, 0); },
      [](BatchScheduler& scheduler) { scheduler.Skip(1, 0); },
      [](BatchScheduler& scheduler) { scheduler.Shutdown(); },
      [](BatchScheduler& scheduler) { scheduler.stats(); },
      [](BatchScheduler& scheduler) { scheduler.Trace(); },
  };
}

TEST(BatchOwnerTest, AForkIsRefusedEverythingAndChangesNothing) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(0, 1);
  options.arena.order = IndexOrder::kExplicit;
  const auto scheduler = BatchScheduler::Create(options);
  scheduler->StartEpoch(0);
  scheduler->Supply(1, std::string(8, 0), false);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  MakeAll(producer);
  // All but the words that tell who sleeps, which belong to nobody.
  const auto content = [&] {
    const auto* begin = reinterpret_cast<const char*>(&scheduler->arena()->control());
    const auto* slot = reinterpret_cast<const char*>(scheduler->arena()->slot_data(0));
    return std::string(begin, sizeof(ControlBlock)) + std::string(slot, kDataOffset);
  };
  const std::string before = content();
  ChildProcess child([&] {
    int refused = 0;
    const auto calls = Calls();
    for (const auto& call : calls) {
      try {
        call(*scheduler);
      } catch (const FailedPrecondition& error) {
        refused += error.message() == kNotTheOwner ? 1 : 0;
      }
    }
    _exit(refused == static_cast<int>(calls.size()) ? 0 : 2);
  });
  const int status = child.Join();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(content(), before);
  ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), {0}));
}

// Nor does it wait for a mutex that a thread held which does not exist in it.
TEST(BatchOwnerTest, AForkNeverWaitsForAThreadOfItsParent) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(SmallOptions(1000, 4));
  scheduler->StartEpoch(0);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load()) {
      scheduler->stats();
    }
  });
  for (int i = 0; i < 20; ++i) {
    ChildProcess child([&] {
      for (const auto& call : Calls()) {
        try {
          call(*scheduler);
        } catch (const FailedPrecondition&) {
        }
      }
    });
    EXPECT_TRUE(WIFEXITED(child.Join()));
  }
  stop.store(true);
  busy.join();
}

}  // namespace
}  // namespace headrace::shared_memory
