// Batches that the consumer holds while a child is forked: the child reads them as they were for as long as it lives.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

// A child that does nothing until it is let go, and then says whether `body` holds.
class WaitingChild {
 public:
  explicit WaitingChild(const std::function<bool()>& body)
      : gate_(Pipe()), child_([&] {
          char byte = 0;
          const bool let_go = read(gate_[0], &byte, 1) == 1;
          _exit(let_go && body() ? 0 : 1);
        }) {
    close(gate_[0]);
  }
  ~WaitingChild() { LetGo(); }
  WaitingChild(const WaitingChild&) = delete;
  WaitingChild& operator=(const WaitingChild&) = delete;

  bool Holds() {
    LetGo();
    return child_.Join() == 0;
  }

 private:
  static std::array<int, 2> Pipe() {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    return ends;
  }
  void LetGo() {
    if (gate_[1] >= 0) {
      EXPECT_EQ(write(gate_[1], "", 1), 1);
      close(gate_[1]);
      gate_[1] = -1;
    }
  }

  std::array<int, 2> gate_;
  ChildProcess child_;
};

class ForkedChildTest : public ::testing::Test {
 protected:
  ForkedChildTest() { scheduler_->StartEpoch(0); }

  ReadyBatch Next() {
    MakeAll(*producer_);
    EXPECT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
    return scheduler_->Take();
  }
  // The slots of the next batches, one after the other.
  std::set<const std::byte*> NextSlots(int count) {
    std::set<const std::byte*> slots;
    for (int i = 0; i < count; ++i) {
      slots.insert(Next().slot);
    }
    return slots;
  }

  std::shared_ptr<BatchScheduler> scheduler_ = BatchScheduler::Create(SmallOptions(1000, 4));
  std::optional<BatchProducer> producer_{std::in_place, scheduler_->arena(), 0U, scheduler_->completion_fd()};
};

TEST_F(ForkedChildTest, AChildKeepsWhatWasHeldAtTheForkUntilItEnds) {
  SKIP_WITHOUT_FORK();
  ReadyBatch batch = Next();
  const std::byte* slot = batch.slot;
  WaitingChild child([&] { return HasSamples(batch, Range(0, 4)); });
  batch = ReadyBatch();
  EXPECT_EQ(scheduler_->stats().held_slots, 0U);
  EXPECT_FALSE(NextSlots(20).contains(slot));
  EXPECT_TRUE(child.Holds());
  scheduler_->StartEpoch(1);
  EXPECT_TRUE(NextSlots(20).contains(slot));
}

TEST_F(ForkedChildTest, WhatTheChildForksKeepsItToo) {
  SKIP_WITHOUT_FORK();
  ReadyBatch batch = Next();
  const std::byte* slot = batch.slot;
  std::array<int, 2> result{-1, -1};
  ASSERT_EQ(pipe2(result.data(), O_CLOEXEC), 0);
  std::array<int, 2> gate{-1, -1};
  ASSERT_EQ(pipe2(gate.data(), O_CLOEXEC), 0);
  {
    ChildProcess child([&] {
      if (fork() == 0) {
        close(gate[1]);
        char byte = 0;
        const char is_same = read(gate[0], &byte, 1) == 0 && HasSamples(batch, Range(0, 4)) ? 1 : 0;
        _exit(write(result[1], &is_same, 1) == 1 ? 0 : 1);
      }
      _exit(0);
    });
    EXPECT_EQ(child.Join(), 0);
  }
  batch = ReadyBatch();
  EXPECT_FALSE(NextSlots(20).contains(slot));
  close(gate[1]);
  char is_same = 0;
  EXPECT_EQ(read(result[0], &is_same, 1), 1);
  EXPECT_EQ(is_same, 1);
  for (const int end : {gate[0], result[0], result[1]}) {
    close(end);
  }
}

TEST_F(ForkedChildTest, WhatWasLetGoBeforeOrTakenAfterAForkIsUsedAgain) {
  SKIP_WITHOUT_FORK();
  const std::byte* before = Next().slot;
  ReadyBatch held = Next();
  WaitingChild child([] { return true; });
  EXPECT_TRUE(NextSlots(20).contains(before));
  EXPECT_LE(scheduler_->stats().slots_used, SmallOptions(1000, 4).prefetch + 2);
}

TEST_F(ForkedChildTest, AChildKeepsWhatItHasWhenTheParentHasNothingLeft) {
  SKIP_WITHOUT_FORK();
  ReadyBatch batch = Next();
  WaitingChild child([&] { return HasSamples(batch, Range(0, 4)); });
  batch = ReadyBatch();
  const std::weak_ptr<Arena> arena = scheduler_->arena();
  producer_.reset();
  scheduler_.reset();
  ASSERT_TRUE(arena.expired());
  EXPECT_TRUE(child.Holds());
}

TEST_F(ForkedChildTest, OneOfSeveralChildrenIsEnough) {
  SKIP_WITHOUT_FORK();
  ReadyBatch batch = Next();
  const std::byte* slot = batch.slot;
  const auto is_same = [&] { return HasSamples(batch, Range(0, 4)); };
  WaitingChild first(is_same);
  WaitingChild second(is_same);
  batch = ReadyBatch();
  EXPECT_TRUE(first.Holds());
  scheduler_->StartEpoch(1);
  EXPECT_FALSE(NextSlots(20).contains(slot));
  EXPECT_TRUE(second.Holds());
  scheduler_->StartEpoch(2);
  EXPECT_TRUE(NextSlots(20).contains(slot));
}

// So many that there would be no slots left: the consumer is told to copy, and never waits for the children.
TEST_F(ForkedChildTest, ChildrenDoNotStopTheConsumer) {
  SKIP_WITHOUT_FORK();
  std::vector<std::unique_ptr<WaitingChild>> children;
  bool last_slots = false;
  for (uint32_t i = 0; i < 40 && !last_slots; ++i) {
    const ReadyBatch batch = Next();
    last_slots = batch.last_slots;
    children.push_back(std::make_unique<WaitingChild>([&] { return HasSamples(batch, Range(i * 4, 4)); }));
  }
  EXPECT_TRUE(last_slots);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Next().last_slots);
  }
  for (const auto& child : children) {
    EXPECT_TRUE(child->Holds());
  }
}

}  // namespace
}  // namespace headrace::shared_memory
