#include "framework/profiler.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "framework/thread_annotations.h"

namespace headrace {
namespace {

struct Recorded {
  Mutex mutex;
  std::vector<ProfiledSpan> spans HR_GUARDED_BY(mutex);
};

// Not destroyed: threads of readers may end after static objects.
Recorded& All() {
  static auto* const all = new Recorded;
  return *all;
}

int64_t ThisThread() {
  thread_local const auto id = static_cast<int64_t>(syscall(SYS_gettid));
  return id;
}

}  // namespace

std::atomic<bool> Profiler::on_{false};

uint64_t Profiler::Now() {
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(now.count());
}

void Profiler::Start() {
  Recorded& all = All();
  const MutexLock lock(all.mutex);
  all.spans.clear();
  on_.store(true, std::memory_order_relaxed);
}

std::vector<ProfiledSpan> Profiler::Stop() {
  Recorded& all = All();
  const MutexLock lock(all.mutex);
  on_.store(false, std::memory_order_relaxed);
  return std::exchange(all.spans, {});
}

void Profiler::Record(ProfiledSpan::Kind kind, std::string name, uint64_t begin_ns, size_t bytes) {
  Recorded& all = All();
  const MutexLock lock(all.mutex);
  if (is_on()) {
    all.spans.push_back({kind, std::move(name), ThisThread(), begin_ns, Now(), bytes});
  }
}

}  // namespace headrace
