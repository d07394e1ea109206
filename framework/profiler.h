// Records the activity of operators and readers over time. While off, it costs an operator one relaxed load.
//
//   Profiler::Start();
//   executor.Run(*prepared, &scope);
//   for (const ProfiledSpan& span : Profiler::Stop()) Print(span.name, span.end_ns - span.begin_ns);
//
// Thread-safety: all functions, from any thread. Spans of all threads of the process go into one list, which grows for
// as long as the profiler is on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/export.h"

namespace headrace {

struct ProfiledSpan {
  enum class Kind { kOperator, kReader };

  Kind kind;
  std::string name;   // the operator's type, or the reader's class
  int64_t thread;     // as the system numbers threads
  uint64_t begin_ns;  // of the monotonic clock
  uint64_t end_ns;
  size_t bytes;  // of the tensors that it has put out; 0 if it failed
};

class HEADRACE_API Profiler {
 public:
  // Discards all records, and records from now on.
  static void Start();
  // Records no more. Returns the spans that have ended since Start, in the order of their ends: an operator comes after
  // those that it runs.
  static std::vector<ProfiledSpan> Stop();
  static bool is_on() { return on_.load(std::memory_order_relaxed); }

  static uint64_t Now();
  // Nothing if it is off.
  static void Record(ProfiledSpan::Kind kind, std::string name, uint64_t begin_ns, size_t bytes);

 private:
  static std::atomic<bool> on_;
};

}  // namespace headrace
