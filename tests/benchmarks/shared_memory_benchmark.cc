// How fast batches travel from producer processes to a consumer, beside plain memcpy on the same machine in the same
// run. See Usage for what is measured.
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "framework/errors.h"
#include "reader/shared_memory/batch_producer.h"
#include "reader/shared_memory/batch_scheduler.h"
#include "reader/shared_memory/waiting/futex.h"

namespace headrace::shared_memory {
namespace {

constexpr std::string_view kUsage = R"(Usage: shared_memory_benchmark [options]

Producer processes copy a private buffer into the batches of a BatchScheduler; the consumer takes the batches in
order, checks one byte of each and drops it. Beside it, "memcpy": as many processes make the same copies into as many
warm shared slots, without any transport. The two alternate; the figures are medians over the rounds.

  --producers LIST   numbers of producer processes (default 1,2)
  --sizes LIST       bytes per batch, with K or M for KiB or MiB (default 1K,16K,256K,1M,4M,16M,32M)
  --seconds S        time per size, number of producers and side (default 1)
  --rounds N         into which that time is cut (default 5)
  --json FILE        write the figures there too
  --help
)";

struct Options {
  std::vector<uint64_t> producers = {1, 2};
  std::vector<uint64_t> sizes = {1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 32 << 20};
  double seconds = 1;
  uint64_t rounds = 5;
  std::string json;
};

// A forked child; killed and reaped when dropped.
class Process {
 public:
  explicit Process(const std::function<void()>& body) {
    const pid_t parent = getpid();
    pid_ = fork();
    HR_ENFORCE(pid_ >= 0, IoError, "fork failed: ", std::strerror(errno));
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) {
        _exit(1);
      }
      try {
        body();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        _exit(1);
      }
      _exit(0);
    }
  }
  ~Process() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

double ProcessCpuSeconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

std::unique_ptr<char[]> MakeSource(uint64_t bytes) {
  auto source = std::make_unique<char[]>(bytes);
  std::memset(source.get(), 1, bytes);
  return source;
}

// Batches that are made ahead: enough that each producer has the next one at hand.
uint32_t Prefetch(uint64_t producers) { return static_cast<uint32_t>(2 * producers + 2); }

// The transport.
class Transport {
 public:
  Transport(uint32_t producers, uint64_t bytes) : bytes_(bytes) {
    SchedulerOptions options;
    options.arena.dataset_length = uint64_t{1} << 62;
    options.prefetch = Prefetch(producers);
    options.producers = producers;
    scheduler_ = BatchScheduler::Create(options);
    for (uint32_t id = 0; id < producers; ++id) {
      processes_.push_back(std::make_unique<Process>([this, id] { Produce(id); }));
      const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, processes_.back()->pid(), 0));
      scheduler_->WatchProducer(id, pidfd);
      close(pidfd);
    }
    scheduler_->StartEpoch(0);
    for (uint32_t i = 0; i < 4 * options.prefetch; ++i) {
      TakeOne();
    }
  }
  ~Transport() { scheduler_->Shutdown(); }

  struct Result {
    double batches_per_s;
    double cpu_us_per_batch;  // of the consumer
  };
  Result Measure(double seconds) {
    // What was made while nobody measured does not count.
    for (uint32_t i = 0; i <= scheduler_->options().prefetch; ++i) {
      TakeOne();
    }
    const double cpu = ProcessCpuSeconds();
    const uint64_t begin = MonotonicNanoseconds();
    const uint64_t end = begin + static_cast<uint64_t>(seconds * 1e9);
    uint64_t batches = 0;
    uint64_t now = begin;
    for (; now < end; now = MonotonicNanoseconds()) {
      TakeOne();
      ++batches;
    }
    return {1e9 * static_cast<double>(batches) / static_cast<double>(now - begin),
            1e6 * (ProcessCpuSeconds() - cpu) / static_cast<double>(batches)};
  }
  uint32_t slots_used() const { return scheduler_->stats().slots_used; }

 private:
  void Produce(uint32_t id) const {
    BatchProducer producer(Arena::Attach(scheduler_->arena()->fd()), id, scheduler_->completion_fd());
    const std::unique_ptr<char[]> source = MakeSource(bytes_);
    const LeafSpec leaf{LeafKind::kArray, -1, 1, {1, static_cast<int64_t>(bytes_)}};
    const BatchLayout layout({leaf}, "", kDataOffset, producer.arena().slot_bytes());
    while (const std::optional<Claim> claim = producer.WaitForClaim()) {
      producer.PublishLayout(*claim, layout.bytes());
      source[bytes_ - 1] = static_cast<char>(claim->batch);
      std::memcpy(producer.Data(*claim) + layout.leaf(0).offset, source.get(), bytes_);
      producer.Complete(*claim);
    }
  }

  void TakeOne() {
    const WaitOutcome outcome = scheduler_->Wait(int64_t{30} * 1'000'000'000);
    HR_ENFORCE(outcome == WaitOutcome::kBatch, Timeout, "no batch came: outcome ", static_cast<int>(outcome));
    const ReadyBatch batch = scheduler_->Take();
    const auto* data = reinterpret_cast<const char*>(batch.slot + batch.layout().leaf(0).offset);
    HR_ENFORCE(data[bytes_ - 1] == static_cast<char>(batch.batch), DataLoss, "batch ", batch.batch, " is wrong");
  }

  uint64_t bytes_;
  std::shared_ptr<BatchScheduler> scheduler_;
  std::vector<std::unique_ptr<Process>> processes_;
};

// The same copies by the same number of processes into as many slots, and nothing else.
class Memcpy {
 public:
  Memcpy(uint32_t producers, uint64_t bytes, uint32_t slots) : bytes_(bytes), producers_(producers) {
    ArenaOptions options;
    options.slot_count = slots;
    arena_ = Arena::Create(options);
    void* shared = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    HR_ENFORCE(shared != MAP_FAILED, ResourceExhausted, "mmap failed: ", std::strerror(errno));
    shared_ = new (shared) Shared{};
    for (uint32_t slot = 0; slot < slots; ++slot) {
      std::memset(arena_->slot_data(slot) + kDataOffset, 1, bytes);
    }
    for (uint32_t id = 0; id < producers; ++id) {
      processes_.push_back(std::make_unique<Process>([this, id] { Copy(id); }));
    }
    Measure(0.01);
  }
  ~Memcpy() {
    processes_.clear();
    munmap(shared_, sizeof(Shared));
  }

  // Copies a second, of all processes together.
  double Measure(double seconds) {
    shared_->running.store(producers_);
    shared_->stop.store(0);
    shared_->round.fetch_add(1);
    FutexWake(shared_->round);
    usleep(static_cast<useconds_t>(seconds * 1e6));
    shared_->stop.store(1);
    while (const uint32_t running = shared_->running.load()) {
      FutexWait(shared_->running, running, 1'000'000'000);
    }
    double rate = 0;
    for (uint32_t id = 0; id < producers_; ++id) {
      rate += shared_->rates[id];
    }
    return rate;
  }

 private:
  struct Shared {
    std::atomic<uint32_t> round;
    std::atomic<uint32_t> running;
    std::atomic<uint32_t> stop;
    double rates[kMaxProducers];
  };

  void Copy(uint32_t id) const {
    const auto arena = Arena::Attach(arena_->fd());
    const std::unique_ptr<char[]> source = MakeSource(bytes_);
    uint64_t next = id;
    for (uint32_t round = 0;; ++round) {
      while (shared_->round.load() == round) {
        FutexWait(shared_->round, round, -1);
      }
      const uint64_t begin = MonotonicNanoseconds();
      uint64_t copies = 0;
      do {
        source[bytes_ - 1] = static_cast<char>(copies);
        std::memcpy(arena->slot_data(next % arena->slot_count()) + kDataOffset, source.get(), bytes_);
        next += producers_;
        ++copies;
      } while (shared_->stop.load(std::memory_order_relaxed) == 0);
      shared_->rates[id] = 1e9 * static_cast<double>(copies) / static_cast<double>(MonotonicNanoseconds() - begin);
      shared_->running.fetch_sub(1);
      FutexWake(shared_->running);
    }
  }

  uint64_t bytes_;
  uint32_t producers_;
  std::shared_ptr<Arena> arena_;
  Shared* shared_ = nullptr;
  std::vector<std::unique_ptr<Process>> processes_;
};

struct Figures {
  uint32_t producers;
  uint64_t bytes;
  uint32_t slots;
  double batches_per_s;
  double memcpy_per_s;
  double ratio;  // median of the rounds' ratios
  double lowest_ratio;
  double highest_ratio;
  double cpu_us_per_batch;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Figures Measure(uint32_t producers, uint64_t bytes, const Options& options) {
  Transport transport(producers, bytes);
  Memcpy copies(producers, bytes, transport.slots_used());
  std::vector<double> batches;
  std::vector<double> plain;
  std::vector<double> ratios;
  std::vector<double> cpu;
  for (uint64_t round = 0; round < options.rounds; ++round) {
    const Transport::Result result = transport.Measure(options.seconds / static_cast<double>(options.rounds));
    batches.push_back(result.batches_per_s);
    cpu.push_back(result.cpu_us_per_batch);
    plain.push_back(copies.Measure(options.seconds / static_cast<double>(options.rounds)));
    ratios.push_back(batches.back() / plain.back());
  }
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  return {producers, bytes,      transport.slots_used(), Median(batches), Median(plain), Median(ratios), *low,
          *high,     Median(cpu)};
}

std::string SizeName(uint64_t bytes) {
  if (bytes % (1 << 20) == 0) {
    return StrCat(bytes >> 20, " MiB");
  }
  return bytes % (1 << 10) == 0 ? StrCat(bytes >> 10, " KiB") : StrCat(bytes, " B");
}

void WriteJson(const std::string& path, const std::vector<Figures>& all) {
  std::ofstream out(path);
  out << "[\n";
  for (size_t i = 0; i < all.size(); ++i) {
    const Figures& f = all[i];
    out << "  {\"producers\": " << f.producers << ", \"batch_bytes\": " << f.bytes << ", \"slots\": " << f.slots
        << ", \"batches_per_s\": " << f.batches_per_s
        << ", \"bytes_per_s\": " << f.batches_per_s * static_cast<double>(f.bytes)
        << ", \"memcpy_per_s\": " << f.memcpy_per_s
        << ", \"memcpy_bytes_per_s\": " << f.memcpy_per_s * static_cast<double>(f.bytes) << ", \"ratio\": " << f.ratio
        << ", \"lowest_ratio\": " << f.lowest_ratio << ", \"highest_ratio\": " << f.highest_ratio
        << ", \"consumer_cpu_us_per_batch\": " << f.cpu_us_per_batch << "}" << (i + 1 < all.size() ? "," : "") << "\n";
  }
  out << "]\n";
  out.flush();
  HR_ENFORCE(out.good(), IoError, "cannot write '", path, "'");
}

double ParseNumber(std::string_view option, std::string_view text, double least, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  HR_ENFORCE(error == std::errc() && end == text.data() + text.size() && value >= least && value <= most,
             InvalidArgument, option, " must be ", least, " to ", most, ", got '", text, "'");
  return value;
}

std::vector<uint64_t> ParseList(std::string_view option, const std::string& text, double least, double most) {
  std::vector<uint64_t> values;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    uint64_t unit = 1;
    if (!item.empty() && (item.back() == 'K' || item.back() == 'M')) {
      unit = item.back() == 'K' ? 1 << 10 : 1 << 20;
      item.pop_back();
    }
    const double value = ParseNumber(option, item, 0, most) * static_cast<double>(unit);
    HR_ENFORCE(value >= least && value <= most, InvalidArgument, option, " must be ", least, " to ", most, ", got '",
               text, "'");
    values.push_back(static_cast<uint64_t>(value));
  }
  HR_ENFORCE(!values.empty(), InvalidArgument, option, " needs at least one number");
  return values;
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    HR_ENFORCE(
        name == "--producers" || name == "--sizes" || name == "--seconds" || name == "--rounds" || name == "--json",
        InvalidArgument, "unknown option '", name, "'; see --help");
    HR_ENFORCE(i + 1 < argc, InvalidArgument, name, " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--producers") {
      options.producers = ParseList(name, value, 1, 30);
    } else if (name == "--sizes") {
      options.sizes = ParseList(name, value, 1, 1 << 30);
    } else if (name == "--seconds") {
      options.seconds = ParseNumber(name, value, 0.001, 3600);
    } else if (name == "--rounds") {
      options.rounds = static_cast<uint64_t>(ParseNumber(name, value, 1, 1000));
    } else {
      options.json = value;
    }
  }
  return options;
}

int Run(int argc, char** argv) {
  if (std::any_of(argv + 1, argv + argc, [](std::string_view argument) { return argument == "--help"; })) {
    std::cout << kUsage;
    return 0;
  }
  const Options options = Parse(argc, argv);
  std::vector<Figures> all;
  std::printf("%9s %9s %6s %12s %8s %12s %8s %7s %15s %12s\n", "producers", "batch", "slots", "batches/s", "GB/s",
              "memcpy/s", "GB/s", "ratio", "(lowest-highest)", "CPU us/batch");
  for (const uint64_t producers : options.producers) {
    for (const uint64_t bytes : options.sizes) {
      const Figures f = Measure(static_cast<uint32_t>(producers), bytes, options);
      const double gigabytes = 1e-9 * static_cast<double>(bytes);
      std::printf("%9u %9s %6u %12.0f %8.2f %12.0f %8.2f %7.3f   (%.3f-%.3f) %12.2f\n", f.producers,
                  SizeName(f.bytes).c_str(), f.slots, f.batches_per_s, f.batches_per_s * gigabytes, f.memcpy_per_s,
                  f.memcpy_per_s * gigabytes, f.ratio, f.lowest_ratio, f.highest_ratio, f.cpu_us_per_batch);
      std::fflush(stdout);
      all.push_back(f);
    }
  }
  if (!options.json.empty()) {
    WriteJson(options.json, all);
  }
  return 0;
}

}  // namespace
}  // namespace headrace::shared_memory

int main(int argc, char** argv) {
  try {
    return headrace::shared_memory::Run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
