// What the tests of the transport share: child processes that cannot outlive their test, samples whose bytes follow
// from their index, and a scheduler together with its producers.
#pragma once

#include <sys/types.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reader/shared_memory/batch_producer.h"
#include "reader/shared_memory/batch_scheduler.h"

// ThreadSanitizer neither follows a fork nor sees another process: the tests of processes leave it to the tests of
// threads, which run the same code.
#if defined(__SANITIZE_THREAD__)
#define SKIP_WITHOUT_FORK() GTEST_SKIP() << "ThreadSanitizer does not support forked children"
#else
#define SKIP_WITHOUT_FORK() static_cast<void>(0)
#endif

namespace headrace::shared_memory {

inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1000 * kMillisecond;
// Longer than anything takes on a busy machine, shorter than ctest's patience.
inline constexpr int64_t kPatience = 30 * kSecond;

// A forked child that runs `body` and exits with 0, or with 1 if `body` throws. It dies with the thread that made it;
// the destructor kills and reaps it.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<void()>& body);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_; }
  void Kill(int signal = SIGKILL) const { kill(pid_, signal); }
  // The wait status, once it has ended.
  int Join();
  // Waits until it sleeps in the kernel.
  void AwaitSleep() const;

 private:
  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> status_;
};

// A forked child that does nothing until it is let go, and then says whether `body` holds.
class WaitingChild {
 public:
  explicit WaitingChild(const std::function<bool()>& body);
  ~WaitingChild() { LetGo(); }
  WaitingChild(const WaitingChild&) = delete;
  WaitingChild& operator=(const WaitingChild&) = delete;

  bool Holds() {
    LetGo();
    return child_.Join() == 0;
  }

 private:
  void LetGo();

  std::array<int, 2> gate_;
  ChildProcess child_;
};

struct SampleOptions {
  uint32_t words = 4;   // of 64 bits, per sample
  int64_t cost_ns = 0;  // CPU time per sample
};

// Word `word` of sample `index`.
uint64_t SampleWord(uint64_t epoch, uint64_t index, uint32_t word);

// The layout of a batch of such samples.
BatchLayout SampleLayout(const BatchProducer& producer, const Claim& claim, uint32_t words);
// Writes one row of a batch whose layout is published.
void WriteRow(BatchProducer& producer, const Claim& claim, uint32_t row, uint32_t words);
// Makes the claimed rows and completes the claim.
void MakeRows(BatchProducer& producer, const Claim& claim, const SampleOptions& options = {});
// The same where samples are kept and collated.
void MakeSplit(BatchProducer& producer, const Claim& claim, const SampleOptions& options = {});
// Makes all rows that can be claimed now; returns the number of claims.
int MakeAll(BatchProducer& producer, const SampleOptions& options = {});

// Whether a batch holds just the samples `indices`, in this order.
::testing::AssertionResult HasSamples(const ReadyBatch& batch, const std::vector<uint64_t>& indices,
                                      uint32_t words = SampleOptions().words);

// first, first + 1, …: `count` numbers.
std::vector<uint64_t> Range(uint64_t first, uint64_t count);

// Small slots, so that sanitizers and limits do not mind.
SchedulerOptions SmallOptions(uint64_t dataset_length, uint64_t batch_size);

// A scheduler and producers in threads of this process, which use its mapping or attach their own.
class ThreadCrew {
 public:
  using Work = std::function<void(BatchProducer&, const Claim&)>;

  ThreadCrew(const SchedulerOptions& options, uint32_t producers, bool attach, Work work);
  ~ThreadCrew();
  ThreadCrew(const ThreadCrew&) = delete;
  ThreadCrew& operator=(const ThreadCrew&) = delete;

  BatchScheduler& scheduler() { return *scheduler_; }
  // The next batch. Throws if none comes.
  ReadyBatch Expect();

 private:
  std::shared_ptr<BatchScheduler> scheduler_;
  std::vector<std::thread> threads_;
};

// A scheduler and its producer processes.
class Crew {
 public:
  // What a producer does with each of its claims.
  using Work = std::function<void(BatchProducer&, const Claim&)>;

  // Starts `producers` processes, which make ordinary samples or do `work`.
  Crew(const SchedulerOptions& options, uint32_t producers, const SampleOptions& samples = {});
  Crew(const SchedulerOptions& options, uint32_t producers, Work work);
  ~Crew();

  BatchScheduler& scheduler() { return *scheduler_; }
  const std::shared_ptr<BatchScheduler>& scheduler_pointer() { return scheduler_; }
  ChildProcess& producer(uint32_t id) { return *producers_[id]; }
  uint32_t size() const { return static_cast<uint32_t>(producers_.size()); }
  const std::vector<ProducerDeath>& deaths() const { return deaths_; }
  // From now on `give_up` is called for each row that has ended `deaths` producers.
  void GiveUpAfter(uint32_t deaths, std::function<void(BatchScheduler&, const ProducerDeath&)> give_up) {
    most_deaths_ = deaths;
    give_up_ = std::move(give_up);
  }

  // The next batch, or nothing at the end of the epoch. Replaces producers that died. Throws if none comes.
  std::optional<ReadyBatch> Next();
  // Next, where the epoch must not end.
  ReadyBatch Expect();
  // Starts the producers anew whose deaths the scheduler has seen.
  void ReplaceDead();
  // Starts a producer that was retired and has ended.
  void Restart(uint32_t id) { Start(id); }

 private:
  void Start(uint32_t id);

  std::shared_ptr<BatchScheduler> scheduler_;
  Work work_;
  std::vector<std::unique_ptr<ChildProcess>> producers_;
  std::vector<ProducerDeath> deaths_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> deaths_at_;  // by sequence and row
  uint32_t most_deaths_ = 0;
  std::function<void(BatchScheduler&, const ProducerDeath&)> give_up_;
};

}  // namespace headrace::shared_memory
