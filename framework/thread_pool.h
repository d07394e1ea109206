// Runs the loops of kernels on several threads.
//
//   ParallelFor(rows, /*grain=*/64, [&](int64_t begin, int64_t end) {
//     for (int64_t r = begin; r < end; ++r) { … }
//   });
//
// A loop is cut into blocks of `grain` by its length alone, also where one thread runs all of them. Which thread runs a
// block is left to chance. So a kernel gives the same bits for any number of threads if each block writes elements of
// its own and computes them from data that no block writes; one that sums over blocks keeps a sum for each, and adds
// these up in their order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "framework/export.h"
#include "framework/function_ref.h"
#include "framework/process_owned.h"

namespace headrace {

// Threads that wait for blocks. An Executor has one, and makes it the pool of the thread that runs a program.
//
// One loop at a time: a loop that finds the pool busy, because another thread that uses it got there first or because
// it lies within a block of a loop, is run by the thread that called it alone. So nothing ever waits for a thread of
// the pool that is not running already, and loops may nest. The caller takes part in its loop: `threads` includes it.
//
// The threads start with the first loop, look out for the next one for some microseconds after each, then sleep, and
// end with the pool. A forked child has none of them; there all loops run on the thread that calls. They block all
// signals, which are the program's.
//
// Thread-safety: any thread may use it, which the destructor must not overlap.
class HEADRACE_API ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  // Throws InvalidArgument unless `threads` is in [1, kMaxThreads].
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  using Block = FunctionRef<void(int64_t begin, int64_t end)>;

  // Runs the blocks of [0, count) and returns true, or does nothing and returns false if the pool is busy. Throws the
  // exception of the first block that throws, after all earlier and running blocks have finished; the others are
  // skipped. Throws ResourceExhausted if the threads cannot be started.
  bool TryRun(int64_t count, int64_t grain, const Block& block);

 private:
  class Workers;

  const int threads_;
  ProcessOwned<Workers> workers_;
};

// While it exists, ParallelFor on this thread uses `pool`; nullptr: the thread alone.
class HEADRACE_API ScopedThreadPool {
 public:
  explicit ScopedThreadPool(ThreadPool* pool);
  ~ScopedThreadPool();
  ScopedThreadPool(const ScopedThreadPool&) = delete;
  ScopedThreadPool& operator=(const ScopedThreadPool&) = delete;

 private:
  ThreadPool* const outer_;
};

// The most threads that ParallelFor on this thread uses, 1 within a block of a loop of the pool: to cut a loop by whose
// results do not depend on the cut.
HEADRACE_API int PoolThreads();

// As ParallelFor, of more than one block.
HEADRACE_API void RunBlocks(int64_t count, int64_t grain, const ThreadPool::Block& block);

// Calls block(begin, end) for each [0, grain), [grain, 2 grain), … of [0, count), on the threads of this thread's pool.
// A grain below 1 counts as 1, so that it may be the quotient of a constant and the size of a row.
// A block should take some microseconds, or handing it over costs more than it saves; a loop of one block costs
// nothing. Allocates nothing. Throws as ThreadPool::TryRun.
template <typename Function>
void ParallelFor(int64_t count, int64_t grain, const Function& block) {
  if (count > grain) {
    RunBlocks(count, grain, block);
  } else if (count > 0) {
    block(int64_t{0}, count);
  }
}

}  // namespace headrace
