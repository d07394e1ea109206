#include "reader/shared_memory/batches/forked_children.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "framework/errors.h"

namespace headrace::shared_memory {
namespace {

// Whether nobody has the write end of a pipe any more. Nothing is ever written.
bool IsClosed(int read_end) {
  pollfd end{read_end, 0, 0};
  return read_end >= 0 && poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0;
}

void CloseEnd(int end) {
  if (end >= 0) {
    close(end);
  }
}

}  // namespace

ForkedChildren& ForkedChildren::Instance() {
  static ForkedChildren& instance = *new ForkedChildren;
  return instance;
}

ForkedChildren::ForkedChildren() {
  const int failed = pthread_atfork([] { Instance().BeforeFork(); }, [] { Instance().AfterForkInParent(); },
                                    [] { Instance().AfterForkInChild(); });
  HR_ENFORCE(failed == 0, ResourceExhausted, "pthread_atfork failed: out of memory");
}

uint64_t ForkedChildren::NoteTaken() {
  const MutexLock lock(mutex_);
  ++held_;
  return forks_;
}

bool ForkedChildren::Free(uint64_t taken) {
  const MutexLock lock(mutex_);
  if (!children_.empty() && children_.back().fork > taken) {
    return false;
  }
  --held_;
  return true;
}

void ForkedChildren::GiveUp(uint64_t taken) {
  const MutexLock lock(mutex_);
  --held_;
  std::erase_if(children_, [&](Child& child) {
    const bool done = child.fork > taken && --child.slots == 0;
    if (done) {
      CloseEnd(child.fd);
    }
    return done;
  });
}

void ForkedChildren::ForgetEnded() {
  const MutexLock lock(mutex_);
  EraseEnded();
}

void ForkedChildren::EraseEnded() {
  std::erase_if(children_, [](const Child& child) {
    const bool ended = IsClosed(child.fd);
    if (ended) {
      CloseEnd(child.fd);
    }
    return ended;
  });
}

void ForkedChildren::BeforeFork() {
  mutex_.lock();
  if (held_ == 0) {
    return;
  }
  EraseEnded();
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    ends = {-1, -1};  // no descriptor is left; the fork is not to fail for that
  }
  write_end_ = ends[1];
  children_.push_back({++forks_, held_, ends[0]});
}

void ForkedChildren::AfterForkInParent() {
  CloseEnd(write_end_);
  write_end_ = -1;
  mutex_.unlock();
}

void ForkedChildren::AfterForkInChild() {
  // The write end stays open: it says that this process lives.
  write_end_ = -1;
  for (const Child& child : children_) {
    CloseEnd(child.fd);
  }
  children_.clear();
  held_ = 0;  // what the parent held is not this process's to free
  mutex_.unlock();
}

}  // namespace headrace::shared_memory
