#include "reader/shared_memory/arena/process_id.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace headrace::shared_memory {
namespace {

std::atomic<pid_t> known{0};

void Forget() { known.store(0, std::memory_order_relaxed); }

}  // namespace

pid_t ProcessId() {
  static const bool told_of_forks = pthread_atfork(nullptr, nullptr, &Forget) == 0;
  pid_t id = told_of_forks ? known.load(std::memory_order_relaxed) : 0;
  if (id == 0) {
    id = getpid();
    known.store(id, std::memory_order_relaxed);
  }
  return id;
}

}  // namespace headrace::shared_memory
