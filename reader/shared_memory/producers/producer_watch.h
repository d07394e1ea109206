// Tracks the processes that producers live in, and which of them have ended. What follows from it is up to the caller:
// see producer_death.h, and ProcessPool in python/headrace/data/_workers/process_pool.py, which starts another worker.
//
// All pidfds are in one epoll set, one per process, however many producers a process has, so a sleeper waits for a
// single descriptor, fd().
//
// Thread-safety: any thread may call fd(); BatchScheduler's mutex guards everything else. A forked child shares the
// epoll set with its parent: it may destroy the object, which closes only its own descriptors, and must not call
// anything else.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/export.h"

namespace headrace::shared_memory {

class HEADRACE_API ProducerWatch {
 public:
  // Throws IoError if the system gives no epoll set.
  ProducerWatch();
  ~ProducerWatch();
  ProducerWatch(const ProducerWatch&) = delete;
  ProducerWatch& operator=(const ProducerWatch&) = delete;

  // Readable while a watched process has ended that TakeEnded has not yet returned.
  int fd() const { return epoll_fd_; }

  // Watches producers first … first + count - 1, which live in the process behind `pidfd` (duplicated). None of them
  // may be watched already. Throws IoError if the descriptor cannot be watched.
  void Add(uint32_t first, uint32_t count, int pidfd);
  // Stops watching a producer; does nothing if it is not watched.
  void Remove(uint32_t producer);

  bool Watches(uint32_t producer) const { return Find(producer) != nullptr; }
  // Whether the process of a watched producer has ended.
  bool HasEnded(uint32_t producer) const;
  // Sends SIGKILL to the process of a watched producer.
  void Kill(uint32_t producer) const;

  // The producers of each watched process.
  std::vector<std::vector<uint32_t>> Processes() const;

  // The producers whose processes have ended since the last call, which are no longer watched. One system call.
  std::vector<uint32_t> TakeEnded();

 private:
  struct Process {
    int pidfd;
    std::vector<uint32_t> producers;
  };
  const Process* Find(uint32_t producer) const;
  void Close(const Process& process) const;

  int epoll_fd_ = -1;
  std::vector<Process> processes_;
};

}  // namespace headrace::shared_memory
