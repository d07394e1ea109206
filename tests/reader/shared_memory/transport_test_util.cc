#include "transport_test_util.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>

#include "framework/errors.h"
#include "reader/index_permutation.h"
#include "reader/shared_memory/waiting/futex.h"

namespace headrace::shared_memory {

ChildProcess::ChildProcess(const std::function<void()>& body) {
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) {
    throw std::runtime_error("fork failed");
  }
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(1);
    }
    try {
      body();
    } catch (...) {
      _exit(1);
    }
    _exit(0);
  }
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (pidfd_ < 0) {
    Kill();
    Join();
    throw std::runtime_error("pidfd_open failed");
  }
}

ChildProcess::~ChildProcess() {
  if (!status_) {
    Kill();
    Join();
  }
  close(pidfd_);
}

int ChildProcess::Join() {
  if (!status_) {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    status_ = status;
  }
  return *status_;
}

void ChildProcess::AwaitSleep() const {
  const std::string path = "/proc/" + std::to_string(pid_) + "/stat";
  for (int i = 0; i < 10'000; ++i) {
    std::ifstream file(path);
    std::string stat;
    std::getline(file, stat);
    const size_t name_end = stat.rfind(')');
    if (name_end != std::string::npos && stat.compare(name_end, 3, ") S") == 0) {
      return;
    }
    usleep(1000);
  }
  throw std::runtime_error("the child does not sleep");
}

namespace {

std::array<int, 2> MakePipe() {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe2 failed");
  }
  return ends;
}

}  // namespace

WaitingChild::WaitingChild(const std::function<bool()>& body)
    : gate_(MakePipe()), child_([&] {
        char byte = 0;
        const bool let_go = read(gate_[0], &byte, 1) == 1;
        _exit(let_go && body() ? 0 : 1);
      }) {
  close(gate_[0]);
}

void WaitingChild::LetGo() {
  if (gate_[1] >= 0) {
    EXPECT_EQ(write(gate_[1], "", 1), 1);
    close(gate_[1]);
    gate_[1] = -1;
  }
}

uint64_t SampleWord(uint64_t epoch, uint64_t index, uint32_t word) {
  return MixBits(MixBits(epoch * 1'000'003 + index) + word);
}

BatchLayout SampleLayout(const BatchProducer& producer, const Claim& claim, uint32_t words) {
  const LeafSpec leaf{LeafKind::kArray, -1, sizeof(uint64_t), {claim.rows, words}};
  return BatchLayout({leaf}, "samples", producer.DataOffset(claim), producer.arena().slot_bytes());
}

void WriteRow(BatchProducer& producer, const Claim& claim, uint32_t row, uint32_t words) {
  const uint64_t offset = LayoutView(producer.Data(claim)).leaf(0).offset;
  auto* out = reinterpret_cast<uint64_t*>(producer.Data(claim) + offset) + size_t{row} * words;
  const uint64_t index = producer.IndexAt(claim, row);
  for (uint32_t word = 0; word < words; ++word) {
    out[word] = SampleWord(claim.epoch, index, word);
  }
}

void MakeRows(BatchProducer& producer, const Claim& claim, const SampleOptions& options) {
  if (!producer.PublishLayout(claim, SampleLayout(producer, claim, options.words).bytes())) {
    producer.Fail(claim, claim.begin, ProblemKind::kMismatch, "another layout");
    return;
  }
  for (uint32_t row = claim.begin; row < claim.end; ++row) {
    producer.BeginRow(claim, row);
    const uint64_t begin = MonotonicNanoseconds();
    while (MonotonicNanoseconds() - begin < static_cast<uint64_t>(options.cost_ns)) {
    }
    WriteRow(producer, claim, row, options.words);
  }
  producer.Complete(claim);
}

void MakeSplit(BatchProducer& producer, const Claim& claim, const SampleOptions& options) {
  const std::string odd = "odd";
  switch (claim.kind) {
    case ClaimKind::kItems:
      for (uint32_t row = claim.begin; row < claim.end; ++row) {
        producer.BeginRow(claim, row);
        const uint64_t begin = MonotonicNanoseconds();
        while (MonotonicNanoseconds() - begin < static_cast<uint64_t>(options.cost_ns)) {
        }
        const uint64_t index = producer.IndexAt(claim, row);
        std::vector<uint64_t> words(options.words);
        for (uint32_t word = 0; word < options.words; ++word) {
          words[word] = SampleWord(claim.epoch, index, word);
        }
        const std::string_view bytes(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint64_t));
        producer.Keep(claim, row, std::to_string(index), {odd, bytes});
      }
      producer.Complete(claim);
      return;
    case ClaimKind::kCollate:
      producer.PublishLayout(claim, SampleLayout(producer, claim, options.words).bytes());
      for (uint32_t row = 0; const KeptSample& sample : producer.Kept(claim)) {
        const std::string message(reinterpret_cast<const char*>(sample.message.data()), sample.message.size());
        if (message != std::to_string(producer.IndexAt(claim, row)) || sample.buffers.size() != 2 ||
            std::memcmp(sample.buffers[0].data(), "odd", 3) != 0 ||
            sample.buffers[1].size() != options.words * sizeof(uint64_t) ||
            reinterpret_cast<uintptr_t>(sample.buffers[1].data()) % 64 != 0) {
          producer.Fail(claim, row, ProblemKind::kFailed, "not what was kept");
          return;
        }
        std::byte* leaf = producer.Data(claim) + LayoutView(producer.Data(claim)).leaf(0).offset;
        std::memcpy(leaf + row++ * sample.buffers[1].size(), sample.buffers[1].data(), sample.buffers[1].size());
      }
      producer.Complete(claim);
      return;
    default:
      MakeRows(producer, claim, options);
  }
}

int MakeAll(BatchProducer& producer, const SampleOptions& options) {
  int claims = 0;
  while (const std::optional<Claim> claim = producer.TryClaim()) {
    MakeRows(producer, *claim, options);
    ++claims;
  }
  return claims;
}

::testing::AssertionResult HasSamples(const ReadyBatch& batch, const std::vector<uint64_t>& indices, uint32_t words) {
  const auto failure = [&batch] {
    return ::testing::AssertionFailure() << "epoch " << batch.epoch << " batch " << batch.batch << ": ";
  };
  if (batch.problem != ProblemKind::kNone) {
    return failure() << "problem " << static_cast<uint32_t>(batch.problem) << " at row " << batch.problem_row << ": "
                     << batch.problem_message;
  }
  if (batch.rows != indices.size()) {
    return failure() << batch.rows << " rows instead of " << indices.size();
  }
  const BatchLayout& layout = batch.layout();
  if (layout.leaf_count() != 1 || layout.leaf(0).dims[0] != batch.rows || layout.leaf(0).dims[1] != words ||
      layout.tree() != "samples") {
    return failure() << "wrong layout";
  }
  const auto* data = reinterpret_cast<const uint64_t*>(batch.slot + layout.leaf(0).offset);
  for (size_t row = 0; row < indices.size(); ++row) {
    for (uint32_t word = 0; word < words; ++word) {
      if (data[row * words + word] != SampleWord(batch.epoch, indices[row], word)) {
        return failure() << "row " << row << " word " << word << " is not that of sample " << indices[row];
      }
    }
  }
  return ::testing::AssertionSuccess();
}

std::vector<uint64_t> Range(uint64_t first, uint64_t count) {
  std::vector<uint64_t> range(count);
  std::iota(range.begin(), range.end(), first);
  return range;
}

SchedulerOptions SmallOptions(uint64_t dataset_length, uint64_t batch_size) {
  SchedulerOptions options;
  options.arena.slot_count = 16;
  options.arena.slot_bytes = size_t{4} << 20;
  options.arena.dataset_length = dataset_length;
  options.arena.recheck_ms = 3600 * 1000;  // or it would make up for wake-ups that are lost
  options.batch_size = batch_size;
  options.prefetch = 3;
  return options;
}

ThreadCrew::ThreadCrew(const SchedulerOptions& options, uint32_t producers, bool attach, Work work) {
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

ThreadCrew::~ThreadCrew() {
  scheduler_->Shutdown();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

ReadyBatch ThreadCrew::Expect() {
  if (scheduler_->Wait(kPatience) != WaitOutcome::kBatch) {
    throw std::runtime_error("no batch");
  }
  return scheduler_->Take();
}

Crew::Crew(const SchedulerOptions& options, uint32_t producers, const SampleOptions& samples)
    : Crew(options, producers,
           [samples](BatchProducer& producer, const Claim& claim) { MakeRows(producer, claim, samples); }) {}

Crew::Crew(const SchedulerOptions& options, uint32_t producers, Work work) : work_(std::move(work)) {
  SchedulerOptions complete = options;
  complete.producers = producers;
  scheduler_ = BatchScheduler::Create(complete);
  producers_.resize(producers);
  for (uint32_t id = 0; id < producers; ++id) {
    Start(id);
  }
}

Crew::~Crew() { scheduler_->Shutdown(); }

void Crew::Start(uint32_t id) {
  producers_[id] = std::make_unique<ChildProcess>([this, id] {
    BatchProducer producer(Arena::Attach(scheduler_->arena()->fd()), id, scheduler_->completion_fd());
    while (const std::optional<Claim> claim = producer.WaitForClaim()) {
      work_(producer, *claim);
    }
  });
  scheduler_->WatchProducer(id, producers_[id]->pidfd());
}

void Crew::ReplaceDead() {
  for (const ProducerDeath& death : scheduler_->TakeDeaths()) {
    deaths_.push_back(death);
    if (give_up_ && death.busy && ++deaths_at_[{death.sequence, death.row}] == most_deaths_) {
      give_up_(*scheduler_, death);
    }
    producers_[death.producer]->Join();
    Start(death.producer);
  }
}

std::optional<ReadyBatch> Crew::Next() {
  for (;;) {
    switch (const WaitOutcome outcome = scheduler_->Wait(kPatience)) {
      case WaitOutcome::kBatch:
        return scheduler_->Take();
      case WaitOutcome::kEndOfEpoch:
        return std::nullopt;
      case WaitOutcome::kProducerDied:
        ReplaceDead();
        break;
      default:
        throw std::runtime_error("Wait gave outcome " + std::to_string(static_cast<int>(outcome)));
    }
  }
}

ReadyBatch Crew::Expect() {
  std::optional<ReadyBatch> batch = Next();
  if (!batch) {
    throw std::runtime_error("the epoch ended early");
  }
  return *std::move(batch);
}

}  // namespace headrace::shared_memory
