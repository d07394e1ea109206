#include "framework/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/spin_pause.h"
#include "framework/start_thread.h"

namespace headrace {
namespace {

thread_local ThreadPool* current_pool = nullptr;

// Long enough to bridge what lies between the loops of two kernels; waking a thread takes longer.
constexpr std::chrono::microseconds kLookout{50};

int Checked(int threads) {
  HR_ENFORCE(1 <= threads && threads <= ThreadPool::kMaxThreads, InvalidArgument,
             "expected a number of threads in [1, ", ThreadPool::kMaxThreads, "], got ", threads);
  return threads;
}

// Waits until done(), for a while awake. Returns whether it is.
template <typename Done>
bool LookOut(Done&& done) {
  const auto end = std::chrono::steady_clock::now() + kLookout;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) {
        return true;
      }
      SpinPause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace

// What the threads share. The loop that is being run is described by members that are not atomic. Its caller writes
// them while the loop is not open and nobody is inside; a thread enters (inside_), and reads them if it then finds the
// loop open, else leaves. The order of all of that is sequentially consistent, so either the caller sees the thread
// inside, or the thread sees that the loop is closed.
//
// Each thread has a share of the blocks, those in the same place of any loop, and helps the others when it is through
// with it: what one kernel has written for an image is in the cache of the thread that runs the next one for it.
class ThreadPool::Workers {
 public:
  explicit Workers(int threads) : threads_(static_cast<size_t>(threads) - 1), shares_(static_cast<size_t>(threads)) {}

  ~Workers() {
    stopping_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& thread : running_) {
      thread.join();
    }
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  bool TryRun(int64_t count, int64_t grain, const Block& block) {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      return false;
    }
    const struct Release {
      std::atomic<bool>* busy;
      ~Release() { busy->store(false, std::memory_order_release); }
    } release{&busy_};
    Start();
    count_ = count;
    grain_ = grain;
    block_ = &block;
    failed_at_.store(count, std::memory_order_relaxed);
    const int64_t blocks = count / grain + (count % grain != 0 ? 1 : 0);
    const auto shares = static_cast<int64_t>(shares_.size());
    for (int64_t i = 0; i < shares; ++i) {
      Share& share = shares_[static_cast<size_t>(i)];
      share.next.store(blocks * i / shares * grain, std::memory_order_relaxed);
      share.end = blocks * (i + 1) / shares * grain;
    }
    open_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    {
      const ScopedThreadPool none(nullptr);  // loops within blocks find the pool busy
      RunBlocks(0);
    }
    open_.store(false);
    WaitUntilNobodyIsInside();
    if (error_ != nullptr) {
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
    return true;
  }

 private:
  // Blocks that begin in [next, end), on a cache line of their own.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void Start() {
    running_.reserve(threads_);
    while (running_.size() < threads_) {
      const size_t thread = running_.size() + 1;
      const std::string what = StrCat("thread ", thread + 1, " of ", threads_ + 1, " (cpu_num)");
      running_.push_back(StartThread(what, [this, thread, seen = generation_.load()] { Work(thread, seen); }));
    }
  }

  void Work(size_t thread, uint32_t seen) {
    for (;;) {
      const auto is_new = [this, seen] { return generation_.load(std::memory_order_relaxed) != seen; };
      if (!LookOut(is_new)) {
        generation_.wait(seen);
      }
      seen = generation_.load();
      if (stopping_.load()) {
        return;
      }
      inside_.fetch_add(1);
      if (open_.load()) {
        RunBlocks(thread);
      }
      if (inside_.fetch_sub(1) == 1) {
        inside_.notify_all();
      }
    }
  }

  void RunBlocks(size_t thread) {
    for (size_t i = 0; i < shares_.size(); ++i) {
      RunShare(&shares_[(thread + i) % shares_.size()]);
    }
  }

  void RunShare(Share* share) {
    while (share->next.load(std::memory_order_relaxed) < share->end) {
      const int64_t begin = share->next.fetch_add(grain_, std::memory_order_relaxed);
      // Blocks before one that has failed still run: what the lowest of all throws is thrown.
      if (begin >= share->end || begin > failed_at_.load(std::memory_order_relaxed)) {
        return;
      }
      try {
        (*block_)(begin, begin + std::min(grain_, count_ - begin));
      } catch (...) {
        const std::lock_guard lock(error_mutex_);
        if (begin < failed_at_.load(std::memory_order_relaxed)) {
          error_ = std::current_exception();
          failed_at_.store(begin, std::memory_order_relaxed);
        }
      }
    }
  }

  void WaitUntilNobodyIsInside() {
    if (LookOut([this] { return inside_.load() == 0; })) {
      return;
    }
    for (uint32_t inside = inside_.load(); inside != 0; inside = inside_.load()) {
      inside_.wait(inside);
    }
  }

  const size_t threads_;  // besides the caller
  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> running_;  // guarded by busy_

  // The loop.
  const Block* block_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  std::vector<Share> shares_;  // by thread, the caller's first
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<int64_t> failed_at_{0};  // the block of error_, else count_

  // What threads contend for, on cache lines of their own.
  alignas(64) std::atomic<uint32_t> generation_{0};  // raised by each loop
  std::atomic<bool> open_{false};
  alignas(64) std::atomic<uint32_t> inside_{0};
};

ThreadPool::ThreadPool(int threads) : threads_(Checked(threads)), workers_(threads) {}

ThreadPool::~ThreadPool() = default;

bool ThreadPool::TryRun(int64_t count, int64_t grain, const Block& block) {
  return threads_ > 1 && workers_.InOwner() && workers_->TryRun(count, grain, block);
}

ScopedThreadPool::ScopedThreadPool(ThreadPool* pool) : outer_(current_pool) { current_pool = pool; }

ScopedThreadPool::~ScopedThreadPool() { current_pool = outer_; }

int PoolThreads() { return current_pool != nullptr ? current_pool->threads() : 1; }

void RunBlocks(int64_t count, int64_t grain, const ThreadPool::Block& block) {
  grain = std::max<int64_t>(grain, 1);
  if (current_pool != nullptr && current_pool->TryRun(count, grain, block)) {
    return;
  }
  for (int64_t begin = 0; begin < count; begin += grain) {
    block(begin, begin + std::min(grain, count - begin));
  }
}

}  // namespace headrace
