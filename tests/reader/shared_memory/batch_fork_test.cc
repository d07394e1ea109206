// Batches that the consumer holds while a child is forked: the child reads them as they were for as long as it lives.
#include <fcntl.h>
#include <sys/resource.h>
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

  // After that, the next Wait looks which children have ended.
  static void AwaitLook() { usleep(50'000); }

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
  AwaitLook();
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
  AwaitLook();
  EXPECT_FALSE(NextSlots(20).contains(slot));
  EXPECT_TRUE(second.Holds());
  AwaitLook();
  EXPECT_TRUE(NextSlots(20).contains(slot));
}

// Nothing tells when it ends, so its slot is not used again.
TEST_F(ForkedChildTest, AChildThatWasForkedWithoutDescriptorsLeftCountsAsAlive) {
  SKIP_WITHOUT_FORK();
  ReadyBatch batch = Next();
  const std::byte* slot = batch.slot;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  batch = ReadyBatch();
  AwaitLook();
  EXPECT_FALSE(NextSlots(20).contains(slot));
  scheduler_->StartEpoch(1);
  EXPECT_FALSE(NextSlots(20).contains(slot));
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
  AwaitLook();
  Next();
  EXPECT_FALSE(Next().last_slots);
}

TEST_F(ForkedChildTest, TheNextEpochUsesWhatChildrenHadThatHaveEnded) {
  SKIP_WITHOUT_FORK();
  ReadyBatch batch = Next();
  const std::byte* slot = batch.slot;
  WaitingChild child([] { return true; });
  batch = ReadyBatch();
  EXPECT_TRUE(child.Holds());
  scheduler_->StartEpoch(1);
  EXPECT_TRUE(NextSlots(20).contains(slot));
}

}  // namespace
}  // namespace headrace::shared_memory
