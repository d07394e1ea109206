// Measures what the time of a claim is spent on, for the loader's stats.
//
// Thread-safety: one thread per object.
#pragma once

#include <algorithm>
#include <cstdint>

#include "reader/shared_memory/batch_producer.h"
#include "reader/shared_memory/waiting/futex.h"

namespace headrace::python {

// Splits the time of a claim into making and writing samples. If a claim has many rows, they are cheap and reading the
// clock is not, so some rows then stand for all: the last of each group, because the first row of a batch does more. A
// row that was held up would stand for time that nobody has spent: all of them together take no longer than the claim.
class RowTimer {
 public:
  RowTimer(shared_memory::BatchProducer* producer, const shared_memory::Claim& claim)
      : producer_(producer), every_((claim.end - claim.begin + kTimedRows - 1) / kTimedRows) {
    if (every_ > 1) {
      started_ns_ = shared_memory::MonotonicNanoseconds();
    }
  }
  ~RowTimer() {
    if (timed_ == 0) {
      return;
    }
    double share = static_cast<double>(rows_) / timed_;
    const auto timed_ns = static_cast<double>(dataset_ns_ + copy_ns_);
    if (every_ > 1 && timed_ns * share > static_cast<double>(begin_ns_ - started_ns_)) {
      share = std::min(share, static_cast<double>(shared_memory::MonotonicNanoseconds() - started_ns_) / timed_ns);
    }
    producer_->AddTime(static_cast<uint64_t>(static_cast<double>(dataset_ns_) * share), 0,
                       static_cast<uint64_t>(static_cast<double>(copy_ns_) * share));
  }
  RowTimer(const RowTimer&) = delete;
  RowTimer& operator=(const RowTimer&) = delete;

  void Begin() {
    timing_ = ++rows_ % every_ == 0;
    if (timing_) {
      ++timed_;
      begin_ns_ = shared_memory::MonotonicNanoseconds();
    }
  }
  void Made() { Note(&dataset_ns_); }
  void Written() { Note(&copy_ns_); }

 private:
  static constexpr uint32_t kTimedRows = 4;

  void Note(uint64_t* sum) {
    if (timing_) {
      const uint64_t now = shared_memory::MonotonicNanoseconds();
      *sum += now - begin_ns_;
      begin_ns_ = now;
    }
  }

  shared_memory::BatchProducer* const producer_;
  const uint32_t every_;
  uint32_t rows_ = 0;
  uint32_t timed_ = 0;
  bool timing_ = false;
  uint64_t started_ns_ = 0;
  uint64_t begin_ns_ = 0;
  uint64_t dataset_ns_ = 0;
  uint64_t copy_ns_ = 0;
};

// Counts the time until Stop as spent on writing.
class CopyTimer {
 public:
  explicit CopyTimer(shared_memory::BatchProducer* producer)
      : producer_(producer), begin_ns_(shared_memory::MonotonicNanoseconds()) {}
  void Stop() const { producer_->AddTime(0, 0, shared_memory::MonotonicNanoseconds() - begin_ns_); }

 private:
  shared_memory::BatchProducer* const producer_;
  const uint64_t begin_ns_;
};

}  // namespace headrace::python
