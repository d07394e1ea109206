// Which children were forked while the consumer held batches.
//
// A child has the arena mapped as its parent has, so it would see what producers write into a slot after the parent let
// go of a batch that the child still reads. So such a slot is not used again while the child lives. A pipe tells: its
// write end is left only in the child, and in what the child forks; its read end reports when all of them have ended or
// called exec. A child that closes descriptors which it does not know gives this up.
//
// Thread-safety: any thread; one mutex, held across fork() so that the child finds it in order, else for a moment.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/export.h"
#include "framework/thread_annotations.h"

namespace headrace::shared_memory {

class HEADRACE_API ForkedChildren {
 public:
  // Those of this process. It is never destroyed.
  static ForkedChildren& Instance();
  ForkedChildren(const ForkedChildren&) = delete;
  ForkedChildren& operator=(const ForkedChildren&) = delete;

  // The consumer gets a slot. Returns what the other calls want to know about it: the number of forks so far.
  uint64_t NoteTaken() HR_EXCLUDES(mutex_);
  // The consumer has let go of the slot. Returns whether it may be used again; if not, ask again after ForgetEnded.
  bool Free(uint64_t taken) HR_EXCLUDES(mutex_);
  // The slot will not be asked about again, although a child may read it.
  void GiveUp(uint64_t taken) HR_EXCLUDES(mutex_);
  // Looks which children have ended: a system call for each of them.
  void ForgetEnded() HR_EXCLUDES(mutex_);

 private:
  struct Child {
    uint64_t fork;   // which one made it
    uint64_t slots;  // how many of those that it may read are not freed
    int fd;          // the read end; -1: there was no pipe, so it counts as alive
  };

  ForkedChildren();
  void BeforeFork() HR_NO_THREAD_SAFETY_ANALYSIS;
  void AfterForkInParent() HR_NO_THREAD_SAFETY_ANALYSIS;
  void AfterForkInChild() HR_NO_THREAD_SAFETY_ANALYSIS;
  void EraseEnded() HR_REQUIRES(mutex_);

  Mutex mutex_;
  uint64_t forks_ HR_GUARDED_BY(mutex_) = 0;  // while slots were held
  uint64_t held_ HR_GUARDED_BY(mutex_) = 0;   // slots taken and not freed
  std::vector<Child> children_ HR_GUARDED_BY(mutex_);
  int write_end_ HR_GUARDED_BY(mutex_) = -1;  // during a fork
};

}  // namespace headrace::shared_memory
