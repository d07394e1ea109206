// What a trace remembers.
#include "reader/shared_memory/arena/trace.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/spin_pause.h"
#include "gtest/gtest.h"
#include "reader/shared_memory/waiting/futex.h"
#include "tests/reader/shared_memory/transport_test_util.h"

namespace headrace::shared_memory {
namespace {

TraceEvent EventOf(uint64_t number) {
  const auto small = static_cast<uint32_t>(number);
  return {TraceKind::kRows, 0, number, number, number, number, small, small, small, small};
}

// Memory of a ring, zeroed.
class Memory {
 public:
  explicit Memory(uint32_t capacity) : words_(TraceRing::Bytes(capacity) / sizeof(uint64_t)) {}
  std::byte* data() { return reinterpret_cast<std::byte*>(words_.data()); }

 private:
  std::vector<uint64_t> words_;
};

TEST(TraceRingTest, RemembersTheNewestEvents) {
  Memory memory(8);
  TraceRing ring(memory.data(), 8);
  for (uint64_t number = 0; number < 21; ++number) {
    ring.Write(EventOf(number));
  }
  std::vector<TraceEvent> events;
  TraceRing(memory.data(), 8).Read(3, &events);
  ASSERT_EQ(events.size(), 7U);
  for (uint64_t i = 0; i < 7; ++i) {
    EXPECT_EQ(events[i].begin_ns, 14 + i);
    EXPECT_EQ(events[i].end_row, 14 + i);
    EXPECT_EQ(events[i].producer, 3U);
  }
}

TEST(TraceRingTest, WithoutMemoryTakesNoNotes) {
  TraceRing ring;
  EXPECT_FALSE(ring);
  ring.Write(EventOf(1));
  std::vector<TraceEvent> events;
  ring.Read(0, &events);
  EXPECT_TRUE(events.empty());
}

TEST(TraceRingTest, AReaderSeesWholeEventsOnly) {
  Memory memory(64);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    TraceRing ring(memory.data(), 64);
    for (uint64_t number = 0; !stop.load(); ++number) {
      ring.Write(EventOf(number));
      for (int pause = 0; pause < static_cast<int>(number % 200); ++pause) {
        SpinPause();  // now faster than the reader, now slower
      }
    }
  });
  size_t seen = 0;
  const uint64_t begin = MonotonicNanoseconds();
  while (seen < 20'000 && MonotonicNanoseconds() - begin < uint64_t{kPatience}) {
    std::vector<TraceEvent> events;
    TraceRing(memory.data(), 64).Read(0, &events);
    for (const TraceEvent& event : events) {
      const auto small = static_cast<uint32_t>(event.begin_ns);
      EXPECT_TRUE(event.end_ns == event.begin_ns && event.epoch == event.begin_ns && event.batch == event.begin_ns &&
                  event.stream == small && event.slot == small && event.begin_row == small && event.end_row == small);
      ++seen;
    }
  }
  stop.store(true);
  writer.join();
  EXPECT_GE(seen, 20'000U);
}

SchedulerOptions Traced(uint64_t length, uint64_t batch_size) {
  SchedulerOptions options = SmallOptions(length, batch_size);
  options.arena.trace_events = 1000;
  options.cross_epochs = false;
  return options;
}

TEST(BatchTraceTest, TellsTheLifeOfEachBatch) {
  SKIP_WITHOUT_FORK();
  const uint64_t begin_ns = MonotonicNanoseconds();
  Crew crew(Traced(40, 4), 2, SampleOptions{.cost_ns = 100'000});
  crew.scheduler().StartEpoch(7);
  for (uint64_t number = 0; number < 10; ++number) {
    crew.Expect();
  }
  const std::vector<TraceEvent> events = crew.scheduler().Trace();
  std::map<uint64_t, std::map<TraceKind, uint64_t>> moments;  // by batch
  std::map<uint64_t, uint64_t> rows;
  uint64_t last = begin_ns;
  size_t waits = 0;
  for (const TraceEvent& event : events) {
    EXPECT_GE(event.begin_ns, last) << "by begin";
    last = event.begin_ns;
    EXPECT_GE(event.end_ns, event.begin_ns);
    EXPECT_EQ(event.epoch, 7U);
    if (event.kind == TraceKind::kRows) {
      EXPECT_LT(event.producer, 2U);
      EXPECT_GE(event.end_ns - event.begin_ns, (event.end_row - event.begin_row) * uint64_t{100'000});
      EXPECT_GE(event.begin_ns, moments[event.batch][TraceKind::kOpened]);
      rows[event.batch] += event.end_row - event.begin_row;
    } else if (event.kind == TraceKind::kWait) {
      ++waits;
    } else {
      EXPECT_EQ(event.producer, TraceEvent::kScheduler);
      EXPECT_EQ(event.end_ns, event.begin_ns);
      moments[event.batch][event.kind] = event.begin_ns;
    }
  }
  EXPECT_GE(waits, 1U);
  EXPECT_LE(last, MonotonicNanoseconds());
  for (uint64_t number = 0; number < 10; ++number) {
    EXPECT_EQ(rows[number], 4U);
    const auto& of_batch = moments[number];
    ASSERT_EQ(of_batch.size(), 4U);
    EXPECT_LT(of_batch.at(TraceKind::kOpened), of_batch.at(TraceKind::kReady));
    EXPECT_LT(of_batch.at(TraceKind::kReady), of_batch.at(TraceKind::kTaken));
    EXPECT_LE(of_batch.at(TraceKind::kTaken), of_batch.at(TraceKind::kReleased));
  }
}

TEST(BatchTraceTest, IsEmptyUnlessAskedFor) {
  SchedulerOptions options = SmallOptions(4, 4);
  const auto scheduler = BatchScheduler::Create(options);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  MakeAll(producer);
  scheduler->Take();
  EXPECT_TRUE(scheduler->Trace().empty());
}

TEST(BatchTraceTest, OutlivesWhoWroteIt) {
  SKIP_WITHOUT_FORK();
  Crew crew(Traced(4000, 4), 2);
  crew.scheduler().StartEpoch(0);
  for (uint64_t number = 0; number < 100; ++number) {
    if (number % 20 == 10) {
      crew.producer(number % 40 == 10 ? 0 : 1).Kill();
    }
    ASSERT_TRUE(HasSamples(crew.Expect(), Range(number * 4, 4)));
  }
  std::map<uint64_t, std::set<uint32_t>> rows;
  for (const TraceEvent& event : crew.scheduler().Trace()) {
    for (uint32_t row = event.begin_row; event.kind == TraceKind::kRows && row < event.end_row; ++row) {
      rows[event.batch].insert(row);
    }
  }
  for (uint64_t number = 0; number < 100; ++number) {
    EXPECT_EQ(rows[number].size(), 4U);
  }
}

TEST(BatchTraceTest, TooLongOnesAreRefused) {
  SchedulerOptions options = SmallOptions(4, 4);
  options.arena.trace_events = kMaxTraceEvents + 1;
  EXPECT_THROW(BatchScheduler::Create(options), InvalidArgument);
}

}  // namespace
}  // namespace headrace::shared_memory
