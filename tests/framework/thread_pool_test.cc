#include "framework/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/errors.h"

namespace headrace {
namespace {

TEST(ThreadPool, VisitsEveryElementOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    const ScopedThreadPool use(&pool);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 5000}) {
        std::vector<int> visits(static_cast<size_t>(count));
        ParallelFor(count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            ++visits[static_cast<size_t>(i)];
          }
        });
        EXPECT_EQ(visits, std::vector<int>(visits.size(), 1)) << threads << " threads, " << count << ", " << grain;
      }
    }
  }
}

TEST(ThreadPool, ALoopWithoutElementsHasNoBlocks) {
  ThreadPool pool(2);
  EXPECT_TRUE(pool.TryRun(0, 5, [](int64_t, int64_t) { ADD_FAILURE(); }));
}

TEST(ThreadPool, BlocksDoNotDependOnTheNumberOfThreads) {
  using Blocks = std::set<std::pair<int64_t, int64_t>>;
  const Blocks expected = {{0, 3}, {3, 6}, {6, 9}, {9, 10}};
  for (const int threads : {0, 1, 2, 3, 5}) {
    std::optional<ThreadPool> pool;
    if (threads > 0) {
      pool.emplace(threads);
    }
    const ScopedThreadPool use(pool ? &*pool : nullptr);
    std::mutex mutex;
    Blocks blocks;
    ParallelFor(10, 3, [&](int64_t begin, int64_t end) {
      const std::lock_guard lock(mutex);
      blocks.emplace(begin, end);
    });
    EXPECT_EQ(blocks, expected) << threads << " threads";
  }
}

// Comes to an end only if all threads of the pool run a block at the same time.
void MeetOnThreads(int threads) {
  std::atomic<int> begun = 0;
  ParallelFor(threads, 1, [&](int64_t, int64_t) {
    ++begun;
    while (begun < threads) {
      std::this_thread::yield();
    }
  });
}

TEST(ThreadPool, BlocksRunAtTheSameTime) {
  ThreadPool pool(3);
  const ScopedThreadPool use(&pool);
  MeetOnThreads(3);
}

TEST(ThreadPool, EachThreadHasItsShareOfEveryLoop) {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  const ScopedThreadPool use(&pool);
  std::vector<std::thread::id> first;
  for (int64_t loop = 1; loop < 20; ++loop) {
    std::vector<std::thread::id> ran(kThreads);
    std::atomic<int> begun = 0;
    // The first block of each share is over once all have begun.
    ParallelFor(kThreads * loop, 1, [&](int64_t begin, int64_t) {
      if (begin % loop == 0) {
        ran[static_cast<size_t>(begin / loop)] = std::this_thread::get_id();
        for (++begun; begun < kThreads;) {
          std::this_thread::yield();
        }
      }
    });
    EXPECT_EQ(ran[0], std::this_thread::get_id());
    if (first.empty()) {
      first = ran;
    }
    EXPECT_EQ(ran, first) << loop << " blocks for each thread";
  }
}

TEST(ThreadPool, AThreadWithoutAPoolRunsAllBlocksInOrder) {
  const std::thread::id self = std::this_thread::get_id();
  std::vector<int64_t> begins;
  ParallelFor(5, 2, [&](int64_t begin, int64_t) {
    EXPECT_EQ(std::this_thread::get_id(), self);
    begins.push_back(begin);
  });
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 2, 4}));
}

TEST(ThreadPool, AGrainBelowOneIsOne) {
  ThreadPool pool(2);
  for (ThreadPool* each : {static_cast<ThreadPool*>(nullptr), &pool}) {
    const ScopedThreadPool scoped(each);
    std::atomic<int> blocks{0};
    ParallelFor(5, 16384 / 40000, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(end, begin + 1);
      ++blocks;
    });
    EXPECT_EQ(blocks, 5);
  }
}

TEST(ThreadPool, ThrowsWhatTheFirstBlockThatFailsThrows) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    const ScopedThreadPool use(&pool);
    for (int round = 0; round < 100; ++round) {
      try {
        ParallelFor(100, 1, [](int64_t begin, int64_t) {
          if (begin >= 7) {
            throw std::runtime_error(std::to_string(begin));
          }
        });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "7");
      }
    }
    std::atomic<int64_t> sum = 0;
    ParallelFor(100, 1, [&](int64_t begin, int64_t) { sum += begin; });
    EXPECT_EQ(sum, 4950);
  }
}

TEST(ThreadPool, LoopsWithinBlocksRunOnTheThreadOfTheBlock) {
  ThreadPool pool(3);
  const ScopedThreadPool use(&pool);
  std::vector<int64_t> sums(50);
  ParallelFor(50, 1, [&](int64_t begin, int64_t) {
    const std::thread::id self = std::this_thread::get_id();
    ParallelFor(10, 1, [&](int64_t i, int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      sums[static_cast<size_t>(begin)] += i;
    });
  });
  EXPECT_EQ(sums, std::vector<int64_t>(50, 45));
}

// For ThreadSanitizer: what blocks write is read by the caller, and what it writes is read by the blocks of its next
// loop, without any other synchronisation.
TEST(ThreadPool, WithinABlockThereIsOneThread) {
  ThreadPool pool(2);
  const ScopedThreadPool use(&pool);
  std::vector<int> threads(8);
  ParallelFor(std::ssize(threads), 1,
              [&](int64_t begin, int64_t) { threads[static_cast<size_t>(begin)] = PoolThreads(); });
  EXPECT_THAT(threads, testing::Each(1));
  EXPECT_EQ(PoolThreads(), 2);
}

TEST(ThreadPool, LoopsFollowOneAnother) {
  ThreadPool pool(4);
  const ScopedThreadPool use(&pool);
  std::vector<int64_t> values(8);
  for (int64_t round = 0; round < 5000; ++round) {
    ParallelFor(8, 1, [&](int64_t begin, int64_t) { values[static_cast<size_t>(begin)] += round; });
    values[static_cast<size_t>(round % 8)] += 1;
  }
  for (const int64_t value : values) {
    EXPECT_EQ(value, 5000 * 4999 / 2 + 5000 / 8);
  }
}

TEST(ThreadPool, SeveralThreadsShareAPool) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::vector<int64_t> sums(4);
  for (size_t c = 0; c < sums.size(); ++c) {
    callers.emplace_back([&pool, &sum = sums[c]] {
      const ScopedThreadPool use(&pool);
      for (int round = 0; round < 500; ++round) {
        std::vector<int64_t> parts(16);
        ParallelFor(16, 1, [&](int64_t begin, int64_t) { parts[static_cast<size_t>(begin)] = begin; });
        for (const int64_t part : parts) {
          sum += part;
        }
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(sums, std::vector<int64_t>(4, 500 * 120));
}

TEST(ThreadPool, EndsInTheMiddleOfItsLookout) {
  for (int round = 0; round < 200; ++round) {
    ThreadPool pool(3);
    const ScopedThreadPool use(&pool);
    std::atomic<int64_t> sum = 0;
    ParallelFor(round % 3 * 8, 1, [&](int64_t begin, int64_t) { sum += begin; });
    EXPECT_EQ(sum, round % 3 == 0 ? 0 : round % 3 == 1 ? 28 : 120);
  }
}

TEST(ThreadPool, AForkedChildRunsLoopsOnItsOnlyThread) {
  ThreadPool pool(3);
  const ScopedThreadPool use(&pool);
  const auto sum_is_right = [] {
    std::atomic<int64_t> sum = 0;
    ParallelFor(100, 1, [&](int64_t begin, int64_t) { sum += begin; });
    return sum == 4950;
  };
  // A thread that is starting may hold a lock of AddressSanitizer's allocator, which the child would wait for.
  MeetOnThreads(3);
  EXPECT_TRUE(sum_is_right());
  // From within a loop as well, when the pool is busy.
  for (const bool within : {false, true}) {
    pid_t child = 0;
    const auto fork_child = [&] {
      child = fork();
      if (child == 0) {
        bool right = sum_is_right();
#if !defined(__SANITIZE_THREAD__)  // which knows no threads in a child of several threads
        {
          ThreadPool own(2);
          const ScopedThreadPool use_own(&own);
          right = right && sum_is_right();
        }
#endif
        _exit(right ? 0 : 1);
      }
    };
    if (within) {
      ParallelFor(2, 1, [&](int64_t begin, int64_t) {
        if (begin == 0) {
          fork_child();
        }
      });
    } else {
      fork_child();
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_TRUE(sum_is_right());
}

TEST(ThreadPool, InnerScopesHideOuterOnes) {
  EXPECT_EQ(PoolThreads(), 1);
  ThreadPool outer(2);
  const ScopedThreadPool use_outer(&outer);
  EXPECT_EQ(PoolThreads(), 2);
  const std::thread::id self = std::this_thread::get_id();
  {
    const ScopedThreadPool use_none(nullptr);
    EXPECT_EQ(PoolThreads(), 1);
    ParallelFor(100, 1, [&](int64_t, int64_t) { EXPECT_EQ(std::this_thread::get_id(), self); });
  }
  std::atomic<int> begun = 0;
  ParallelFor(2, 1, [&](int64_t, int64_t) {
    for (++begun; begun < 2;) {
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(begun, 2);
}

TEST(ThreadPool, RefusesOtherNumbersOfThreads) {
  for (const int threads : {-1, 0, ThreadPool::kMaxThreads + 1}) {
    EXPECT_THROW(ThreadPool{threads}, InvalidArgument) << threads;
  }
}

}  // namespace
}  // namespace headrace
