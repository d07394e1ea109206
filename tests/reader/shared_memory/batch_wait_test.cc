// Sleeping and waking, on both sides; and what a fork of the main process may do.
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "reader/shared_memory/arena/process_id.h"
#include "reader/shared_memory/waiting/futex.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

TEST(BatchWaitTest, TimesOutAfterTheTimeGiven) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 1));
  scheduler->StartEpoch(0);
  for (const int64_t limit : {int64_t{0}, int64_t{1}, 20 * kMillisecond}) {
    const uint64_t begin = MonotonicNanoseconds();
    EXPECT_EQ(scheduler->Wait(limit), WaitOutcome::kTimedOut);
    EXPECT_GE(MonotonicNanoseconds() - begin, static_cast<uint64_t>(limit));
  }
}

TEST(BatchWaitTest, ProducerTimesOutAfterTheTimeGiven) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 1));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  for (const int64_t limit : {int64_t{0}, int64_t{1}, 20 * kMillisecond}) {
    const uint64_t begin = MonotonicNanoseconds();
    EXPECT_FALSE(producer.WaitForClaim(limit).has_value());
    EXPECT_GE(MonotonicNanoseconds() - begin, static_cast<uint64_t>(limit));
  }
  EXPECT_FALSE(producer.stopped());
}

// Sends SIGALRM to this process over and over.
class Alarm {
 public:
  Alarm() {
    struct sigaction action{};
    action.sa_handler = [](int) {};
    sigaction(SIGALRM, &action, &before_);
    const itimerval every{{0, 5000}, {0, 5000}};
    setitimer(ITIMER_REAL, &every, nullptr);
  }
  ~Alarm() {
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

 private:
  struct sigaction before_{};
};

TEST(BatchWaitTest, SignalHandlerInterruptsTheConsumer) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 1));
  scheduler->StartEpoch(0);
  const Alarm alarm;
  EXPECT_EQ(scheduler->Wait(kPatience), WaitOutcome::kInterrupted);
}

TEST(BatchWaitTest, SignalHandlerDoesNotEndAProducersWait) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 1));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  const Alarm alarm;
  const uint64_t begin = MonotonicNanoseconds();
  EXPECT_FALSE(producer.WaitForClaim(30 * kMillisecond).has_value());
  EXPECT_GE(MonotonicNanoseconds() - begin, 30 * kMillisecond);
}

TEST(BatchWaitTest, InterruptEndsTheWaitUnderWayOrTheNext) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 1));
  scheduler->StartEpoch(0);
  scheduler->Interrupt();
  EXPECT_EQ(scheduler->Wait(kPatience), WaitOutcome::kInterrupted);
  std::thread other([&] {
    usleep(20'000);
    scheduler->Interrupt();
  });
  EXPECT_EQ(scheduler->Wait(kPatience), WaitOutcome::kInterrupted);
  other.join();
}

TEST(BatchWaitTest, ShutdownWakesTheConsumer) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 1));
  scheduler->StartEpoch(0);
  std::thread other([&] {
    usleep(20'000);
    scheduler->Shutdown();
  });
  EXPECT_EQ(scheduler->Wait(kPatience), WaitOutcome::kStopped);
  EXPECT_EQ(scheduler->Wait(kPatience), WaitOutcome::kStopped);
  other.join();
}

TEST(BatchWaitTest, NewEpochWakesTheConsumerOfTheOldOne) {
  SchedulerOptions options = SmallOptions(10, 1);
  options.cross_epochs = false;
  const auto scheduler = BatchScheduler::Create(options);
  scheduler->StartEpoch(0);
  std::thread other([&] {
    usleep(20'000);
    scheduler->StartEpoch(1, 10);
  });
  const uint64_t begin = MonotonicNanoseconds();
  EXPECT_EQ(scheduler->Wait(kPatience), WaitOutcome::kEndOfEpoch);
  EXPECT_LT(MonotonicNanoseconds() - begin, static_cast<uint64_t>(kPatience));
  other.join();
}

TEST(BatchWaitTest, ShutdownEndsSleepingProducers) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(10, 1), 3);
  for (uint32_t id = 0; id < crew.size(); ++id) {
    crew.producer(id).AwaitSleep();
  }
  crew.scheduler().Shutdown();
  for (uint32_t id = 0; id < crew.size(); ++id) {
    EXPECT_EQ(crew.producer(id).Join(), 0);
  }
}

TEST(BatchWaitTest, DroppingTheSchedulerEndsItsProducers) {
  SKIP_WITHOUT_FORK();
  auto scheduler = BatchScheduler::Create(SmallOptions(10, 1));
  ChildProcess child([&] {
    BatchProducer producer(Arena::Attach(scheduler->arena()->fd()), 0, scheduler->completion_fd());
    _exit(producer.WaitForClaim().has_value() ? 3 : 0);
  });
  child.AwaitSleep();
  scheduler.reset();
  EXPECT_EQ(child.Join(), 0);
}

// Lets a producer go `steps` instructions into WaitForClaim; false if it sleeps by then.
bool StepIntoWait(const ChildProcess& child, int steps) {
  int status = 0;
  waitpid(child.pid(), &status, 0);
  for (int i = 0; i < steps; ++i) {
    if (ptrace(PTRACE_SINGLESTEP, child.pid(), nullptr, nullptr) != 0) {
      throw std::runtime_error("the child cannot be stepped");
    }
    const uint64_t begin = MonotonicNanoseconds();
    while (waitpid(child.pid(), &status, WNOHANG) == 0) {
      if (MonotonicNanoseconds() - begin > kSecond) {
        return false;
      }
    }
  }
  return true;
}

// Most instructions are the sanitizers' own; going through each of them takes minutes.
#ifdef HEADRACE_SANITIZED
constexpr int kStride = 11;
#else
constexpr int kStride = 1;
#endif

// Does `event` when a producer without work has gone 0, 1, 2, … instructions on its way to sleep: it must end, within
// seconds, whichever it was.
void ExpectEndsProducer(const std::function<void(BatchScheduler&)>& event) {
  int steps = 0;
  for (;; steps += kStride) {
    const auto scheduler = BatchScheduler::Create(SmallOptions(10, 1));
    // Waiting awake adds instructions without end, and none that matter here.
    scheduler->SetProducers(kMaxProducers);
    ChildProcess child([&] {
      BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
      ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      raise(SIGSTOP);
      producer.WaitForClaim();
      _exit(0);
    });
    if (!StepIntoWait(child, steps)) {
      break;
    }
    event(*scheduler);
    ptrace(PTRACE_DETACH, child.pid(), nullptr, nullptr);
    pollfd ended{child.pidfd(), POLLIN, 0};
    ASSERT_EQ(poll(&ended, 1, 5000), 1) << "asleep after an event at instruction " << steps;
  }
  // Fewer instructions would mean that they were not seen.
  EXPECT_GE(steps, 50);
}

TEST(BatchWaitTest, ProducerSleepsThroughNoShutdown) {
  SKIP_WITHOUT_FORK();
  ExpectEndsProducer([](BatchScheduler& scheduler) { scheduler.Shutdown(); });
}

TEST(BatchWaitTest, ProducerSleepsThroughNoWork) {
  SKIP_WITHOUT_FORK();
  ExpectEndsProducer([](BatchScheduler& scheduler) { scheduler.StartEpoch(0); });
}

TEST(BatchWaitTest, DeathIsSeenWithoutTimeToWait) {
  SKIP_WITHOUT_FORK();
  Crew crew(SmallOptions(10, 1), 1);
  crew.producer(0).AwaitSleep();
  crew.producer(0).Kill();
  crew.producer(0).Join();
  crew.scheduler().StartEpoch(0);
  EXPECT_EQ(crew.scheduler().Wait(0), WaitOutcome::kProducerDied);
  const std::vector<ProducerDeath> deaths = crew.scheduler().TakeDeaths();
  ASSERT_EQ(deaths.size(), 1U);
  EXPECT_EQ(deaths[0].producer, 0U);
  EXPECT_FALSE(deaths[0].busy);
  EXPECT_TRUE(crew.scheduler().TakeDeaths().empty());
}

TEST(BatchWaitTest, ProducerWatchedDuringTheWaitIsWatchedAtOnce) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(SmallOptions(10, 1));
  scheduler->StartEpoch(0);
  ChildProcess child([] { usleep(60'000'000); });
  std::thread other([&] {
    usleep(20'000);
    scheduler->WatchProducer(3, child.pidfd());
    usleep(20'000);
    child.Kill();
  });
  EXPECT_EQ(scheduler->Wait(kPatience), WaitOutcome::kProducerDied);
  other.join();
}

// One producer is woken for one row and dies before it claims it; the other has slept on.
TEST(BatchWaitTest, WakeUpThatAProducerTookToItsGraveIsRepeated) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(1, 1);
  options.prefetch = 1;
  options.cross_epochs = false;
  const auto scheduler = BatchScheduler::Create(options);
  ControlBlock& control = scheduler->arena()->control();
  ChildProcess doomed([&] {
    const uint32_t signal = control.work_signal.load();
    control.sleepers[0].fetch_or(1);
    FutexWait(control.work_signal, signal, -1);
    raise(SIGKILL);
  });
  doomed.AwaitSleep();
  ChildProcess sleeper([&] {
    BatchProducer producer(scheduler->arena(), 1, scheduler->completion_fd());
    while (const std::optional<Claim> claim = producer.WaitForClaim()) {
      MakeRows(producer, *claim);
    }
  });
  sleeper.AwaitSleep();
  scheduler->WatchProducer(0, doomed.pidfd());
  scheduler->WatchProducer(1, sleeper.pidfd());
  scheduler->StartEpoch(0);
  WaitOutcome outcome = scheduler->Wait(5 * kSecond);
  if (outcome == WaitOutcome::kProducerDied) {
    EXPECT_EQ(scheduler->TakeDeaths().at(0).producer, 0U);
    outcome = scheduler->Wait(5 * kSecond);
  }
  ASSERT_EQ(outcome, WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler->Take(), {0}));
}

// Or every batch that is opened would cost a system call from then on.
TEST(BatchWaitTest, AProducerThatDiedAsleepIsNotTakenForASleeper) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(SmallOptions(8, 1));
  const ControlBlock& control = scheduler->arena()->control();
  const ChildProcess child([&] { BatchProducer(scheduler->arena(), 0, scheduler->completion_fd()).WaitForClaim(); });
  child.AwaitSleep();
  ASSERT_TRUE(AnySleeper(control));
  scheduler->WatchProducer(0, child.pidfd());
  child.Kill();
  scheduler->StartEpoch(0);
  ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kProducerDied);
  EXPECT_FALSE(AnySleeper(control));
}

TEST(BatchForkTest, AChildKnowsItsOwnId) {
  SKIP_WITHOUT_FORK();
  EXPECT_EQ(ProcessId(), getpid());
  ChildProcess child([] { _exit(ProcessId() == getpid() && ProcessId() == getpid() ? 0 : 3); });
  EXPECT_EQ(child.Join(), 0);
  EXPECT_EQ(ProcessId(), getpid());
}

TEST(BatchForkTest, ChildThatDropsSchedulerAndBatchesChangesNothing) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(20, 2);
  options.arena.slot_count = 4;
  auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  MakeAll(producer);
  std::vector<ReadyBatch> held;
  held.push_back(scheduler->Take());
  held.push_back(scheduler->Take());
  MakeAll(producer);
  // All slots are in use: one that came back would be used for the next batch at once.
  ChildProcess child([&] {
    held.clear();
    scheduler.reset();
  });
  ASSERT_EQ(child.Join(), 0);
  EXPECT_EQ(scheduler->stats().held_slots, 2U);
  EXPECT_FALSE(producer.stopped());
  EXPECT_EQ(MakeAll(producer), 0);
  for (uint64_t batch = 2; batch < 10; ++batch) {
    ASSERT_EQ(scheduler->Wait(0), WaitOutcome::kBatch);
    EXPECT_TRUE(HasSamples(scheduler->Take(), Range(batch * 2, 2)));
    MakeAll(producer);
  }
  EXPECT_TRUE(HasSamples(held[0], Range(0, 2)));
  EXPECT_TRUE(HasSamples(held[1], Range(2, 2)));
}

TEST(BatchForkTest, ChildMayKeepABatchForReading) {
  SKIP_WITHOUT_FORK();
  const auto scheduler = BatchScheduler::Create(SmallOptions(20, 2));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  MakeAll(producer);
  const ReadyBatch batch = scheduler->Take();
  ChildProcess child([&] { _exit(HasSamples(batch, Range(0, 2)) ? 0 : 3); });
  EXPECT_EQ(child.Join(), 0);
}

}  // namespace
}  // namespace headrace::shared_memory
