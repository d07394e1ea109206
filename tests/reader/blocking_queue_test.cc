#include "reader/blocking_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "framework/errors.h"
#include "framework/wait_hook.h"
#include "tests/reader/reader_test_util.h"

namespace headrace {
namespace {

using std::chrono::milliseconds;
using IntQueue = BlockingQueue<int>;

std::exception_ptr SomeError(const std::string& what = "broken") {
  return std::make_exception_ptr(std::runtime_error(what));
}

std::vector<int> Drain(IntQueue& queue) {
  std::vector<int> items;
  int item = 0;
  while (queue.Receive(&item) == ReceiveResult::kItem) items.push_back(item);
  return items;
}

std::vector<int> FirstInts(int n) {
  std::vector<int> items(static_cast<size_t>(n));
  std::iota(items.begin(), items.end(), 0);
  return items;
}

TEST(BlockingQueueTest, RefusesACapacityOfZero) { EXPECT_THROW(IntQueue(0), InvalidArgument); }

TEST(BlockingQueueTest, TakesCapacityItemsThenBlocks) {
  IntQueue queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.Send(int{i}), SendResult::kTaken);
  EXPECT_EQ(queue.SendFor(3, milliseconds(1)), SendResult::kTimedOut);
  EXPECT_EQ(queue.Size(), 3u);
  EXPECT_EQ(queue.Cap(), 3u);
  int item = -1;
  EXPECT_EQ(queue.Receive(&item), ReceiveResult::kItem);
  EXPECT_EQ(queue.SendFor(3, milliseconds(1)), SendResult::kTaken);
}

TEST(BlockingQueueTest, ATimeoutBeyondTheClocksRangeIsNone) {
  BlockingQueue<int> queue(1);
  std::thread sender([&queue] {
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(queue.SendFor(3, BlockingQueue<int>::Clock::duration::max()), SendResult::kTaken);
    EXPECT_EQ(queue.SendFor(4, BlockingQueue<int>::Clock::duration::max()), SendResult::kTaken);
  });
  for (const int expected : {3, 4}) {
    int item = 0;
    EXPECT_EQ(queue.ReceiveFor(&item, BlockingQueue<int>::Clock::duration::max()), ReceiveResult::kItem);
    EXPECT_EQ(item, expected);
  }
  sender.join();
}

TEST(BlockingQueueTest, ReceiveForGivesUpOnAnEmptyQueue) {
  IntQueue queue(1);
  int item = -1;
  EXPECT_EQ(queue.ReceiveFor(&item, milliseconds(1)), ReceiveResult::kTimedOut);
  EXPECT_EQ(item, -1);
}

TEST(BlockingQueueTest, KeepsTheOrderWithASlowProducer) {
  IntQueue queue(4);
  std::jthread producer([&] {
    for (int i = 0; i < 20; ++i) {
      if (i % 5 == 0) GiveOthersTime();
      queue.Send(int{i});
    }
    queue.Close();
  });
  EXPECT_EQ(Drain(queue), FirstInts(20));
}

TEST(BlockingQueueTest, KeepsTheOrderWithASlowConsumer) {
  IntQueue queue(4);
  std::jthread producer([&] {
    for (int i = 0; i < 20; ++i) queue.Send(int{i});
    queue.Close();
  });
  std::vector<int> items;
  int item = 0;
  while (queue.Receive(&item) == ReceiveResult::kItem) {
    if (item % 5 == 0) GiveOthersTime();
    items.push_back(item);
  }
  EXPECT_EQ(items, FirstInts(20));
}

TEST(BlockingQueueTest, ManyProducersAndManyConsumersPassEachItemOnce) {
  constexpr int kThreads = 8;
  constexpr int kEach = 500;
  IntQueue queue(5);
  std::vector<std::atomic<int>> seen(kThreads * kEach);
  std::atomic<int> producing{kThreads};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) EXPECT_EQ(queue.Send(t * kEach + i), SendResult::kTaken);
        if (--producing == 0) queue.Close();
      });
      threads.emplace_back([&] {
        int item = 0;
        while (queue.Receive(&item) == ReceiveResult::kItem) ++seen[static_cast<size_t>(item)];
      });
    }
  }
  for (const auto& count : seen) EXPECT_EQ(count, 1);
  EXPECT_EQ(queue.stats().sent, seen.size());
  EXPECT_EQ(queue.stats().received, seen.size());
}

TEST(BlockingQueueTest, AProducersItemsStayInOrderAmongManyProducers) {
  constexpr int kThreads = 4;
  constexpr int kEach = 300;
  IntQueue queue(3);
  std::vector<std::jthread> producers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) queue.Send(t * kEach + i);
    });
  }
  std::array<int, kThreads> next{};
  for (int n = 0; n < kThreads * kEach; ++n) {
    int item = -1;
    ASSERT_EQ(queue.Receive(&item), ReceiveResult::kItem);
    EXPECT_EQ(item % kEach, next[static_cast<size_t>(item / kEach)]++);
  }
}

TEST(BlockingQueueTest, CloseLetsQueuedItemsDrain) {
  IntQueue queue(4);
  for (int i = 0; i < 3; ++i) queue.Send(int{i});
  queue.Close();
  EXPECT_TRUE(queue.IsClosed());
  EXPECT_EQ(Drain(queue), FirstInts(3));
}

TEST(BlockingQueueTest, SendAfterTheEndIsTheSendersMistakeAndLeavesTheItem) {
  BlockingQueue<std::unique_ptr<int>> queue(1);
  queue.Close();
  auto item = std::make_unique<int>(1);
  EXPECT_EQ(queue.Send(std::move(item)), SendResult::kAfterEnd);
  EXPECT_NE(item, nullptr);  // NOLINT(bugprone-use-after-move): that is the promise
  queue.ReOpen();
  queue.Fail(SomeError());
  EXPECT_EQ(queue.Send(std::move(item)), SendResult::kAfterEnd);
}

TEST(BlockingQueueTest, SendAfterTheConsumersEndIsRefused) {
  IntQueue queue(1);
  queue.Interrupt();
  EXPECT_TRUE(queue.IsClosed());
  EXPECT_EQ(queue.Send(1), SendResult::kRefused);
  queue.Close();  // by a feeder that has not noticed
  EXPECT_EQ(queue.Send(1), SendResult::kRefused);
  queue.ReOpen();
  EXPECT_EQ(queue.Send(1), SendResult::kTaken);
  queue.Close();
  EXPECT_EQ(queue.Send(1), SendResult::kAfterEnd);
}

TEST(BlockingQueueTest, CloseUnblocksSenders) {
  IntQueue queue(1);
  queue.Send(0);
  std::vector<std::jthread> senders;
  std::atomic<int> refused{0};
  for (int i = 0; i < 4; ++i) {
    senders.emplace_back([&] { refused += queue.Send(1) != SendResult::kTaken; });
  }
  GiveOthersTime();
  queue.Close();
  senders.clear();
  EXPECT_EQ(refused, 4);
  EXPECT_EQ(queue.Size(), 1u);
}

TEST(BlockingQueueTest, CloseUnblocksReceivers) {
  IntQueue queue(1);
  std::vector<std::jthread> receivers;
  std::atomic<int> ended{0};
  for (int i = 0; i < 4; ++i) {
    receivers.emplace_back([&] {
      int item = 0;
      ended += queue.Receive(&item) == ReceiveResult::kClosed;
    });
  }
  GiveOthersTime();
  queue.Close();
  receivers.clear();
  EXPECT_EQ(ended, 4);
}

TEST(BlockingQueueTest, ReOpenDropsWhatIsQueuedAndTakesItemsAgain) {
  IntQueue queue(2);
  queue.Send(1);
  queue.Close();
  queue.ReOpen();
  EXPECT_FALSE(queue.IsClosed());
  EXPECT_EQ(queue.Size(), 0u);
  EXPECT_EQ(queue.Send(2), SendResult::kTaken);
  queue.Close();
  EXPECT_EQ(Drain(queue), std::vector<int>{2});
}

TEST(BlockingQueueTest, ItemsBeforeAFailureAreDeliveredThenTheErrorEveryTime) {
  IntQueue queue(4);
  queue.Send(0);
  queue.Send(1);
  EXPECT_TRUE(queue.Fail(SomeError()));
  int item = -1;
  EXPECT_EQ(queue.Receive(&item), ReceiveResult::kItem);
  EXPECT_EQ(queue.Receive(&item), ReceiveResult::kItem);
  EXPECT_EQ(item, 1);
  EXPECT_THROW(queue.Receive(&item), std::runtime_error);
  EXPECT_THROW(queue.Receive(&item), std::runtime_error);
}

TEST(BlockingQueueTest, AFailureUnblocksReceiversAndSenders) {
  IntQueue empty(1);
  IntQueue full(1);
  full.Send(0);
  std::atomic<int> released{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      int item = 0;
      EXPECT_THROW(empty.Receive(&item), std::runtime_error);
      ++released;
    });
    threads.emplace_back([&] { released += full.Send(1) != SendResult::kTaken; });
  }
  GiveOthersTime();
  empty.Fail(SomeError());
  full.Fail(SomeError());
  threads.clear();
  EXPECT_EQ(released, 6);
}

TEST(BlockingQueueTest, TheFirstErrorIsKept) {
  IntQueue queue(1);
  EXPECT_TRUE(queue.Fail(SomeError("first")));
  EXPECT_FALSE(queue.Fail(SomeError("second")));
  int item = 0;
  EXPECT_STREQ(ErrorOf<std::runtime_error>([&] { queue.Receive(&item); }).what(), "first");
}

TEST(BlockingQueueTest, EveryReceiverMayAddContextToAnErrorOfItsOwn) {
  IntQueue queue(1);
  queue.Fail(std::make_exception_ptr(DataLoss("bad record")));
  int item = 0;
  try {
    queue.Receive(&item);
    FAIL();
  } catch (DataLoss& error) {
    error.SetOpType("read");
  }
  EXPECT_STREQ(ErrorOf<DataLoss>([&] { queue.Receive(&item); }).what(), "bad record");
}

TEST(BlockingQueueTest, AnErrorWinsOverACloseBeforeAndAfterIt) {
  int item = 0;
  IntQueue closed_first(1);
  closed_first.Close();
  closed_first.Fail(SomeError());
  EXPECT_THROW(closed_first.Receive(&item), std::runtime_error);
  IntQueue failed_first(1);
  failed_first.Fail(SomeError());
  failed_first.Close();
  EXPECT_THROW(failed_first.Receive(&item), std::runtime_error);
}

TEST(BlockingQueueTest, ReOpenForgetsTheError) {
  IntQueue queue(1);
  queue.Fail(SomeError());
  queue.ReOpen();
  queue.Send(7);
  int item = 0;
  EXPECT_EQ(queue.Receive(&item), ReceiveResult::kItem);
  EXPECT_EQ(item, 7);
}

TEST(BlockingQueueTest, FailNeedsAnError) {
  IntQueue queue(1);
  EXPECT_THROW(queue.Fail(nullptr), InvalidArgument);
  EXPECT_FALSE(queue.IsClosed());
}

TEST(BlockingQueueTest, KillDropsItemsAndIsPermanent) {
  BlockingQueue<std::shared_ptr<int>> queue(2);
  auto item = std::make_shared<int>(1);
  queue.Send(std::shared_ptr<int>(item));
  queue.Kill();
  EXPECT_EQ(item.use_count(), 1);
  EXPECT_TRUE(queue.IsKilled());
  EXPECT_TRUE(queue.IsClosed());
  EXPECT_EQ(queue.Receive(&item), ReceiveResult::kKilled);
  EXPECT_EQ(queue.Send(std::shared_ptr<int>(item)), SendResult::kRefused);
  EXPECT_THROW(queue.ReOpen(), FailedPrecondition);
}

TEST(BlockingQueueTest, KillUnblocksReceivers) {
  IntQueue queue(1);
  ReceiveResult result = ReceiveResult::kItem;
  std::jthread receiver([&] {
    int item = 0;
    result = queue.Receive(&item);
  });
  GiveOthersTime();
  queue.Kill();
  receiver.join();
  EXPECT_EQ(result, ReceiveResult::kKilled);
}

TEST(BlockingQueueTest, AnErrorIsNotHiddenByAKill) {
  IntQueue queue(1);
  queue.Fail(SomeError());
  queue.Kill();
  int item = 0;
  EXPECT_THROW(queue.Receive(&item), std::runtime_error);
}

TEST(BlockingQueueTest, AnOldEpochCanNeitherSendNorCloseNorFail) {
  IntQueue queue(2);
  const uint64_t old_epoch = queue.epoch();
  EXPECT_EQ(queue.Send(1, old_epoch), SendResult::kTaken);
  const uint64_t new_epoch = queue.ReOpen();
  EXPECT_EQ(new_epoch, queue.epoch());
  EXPECT_EQ(queue.Send(2, old_epoch), SendResult::kRefused);
  EXPECT_FALSE(queue.Close(old_epoch));
  EXPECT_FALSE(queue.Fail(SomeError(), old_epoch));
  EXPECT_FALSE(queue.IsClosed());
  EXPECT_EQ(queue.Send(3, new_epoch), SendResult::kTaken);
  EXPECT_TRUE(queue.Close(new_epoch));
  EXPECT_EQ(Drain(queue), std::vector<int>{3});
}

TEST(BlockingQueueTest, ASenderThatWaitsAcrossAReOpenIsRefused) {
  IntQueue queue(1);
  queue.Send(0);
  const ScopedWaitHook hook([&] { queue.ReOpen(); });
  EXPECT_EQ(queue.Send(1), SendResult::kRefused);
  EXPECT_EQ(queue.Size(), 0u);
}

TEST(BlockingQueueTest, AReceiverThatWaitsAcrossAReOpenTakesNothingOfTheNewEpoch) {
  IntQueue queue(1);
  const ScopedWaitHook hook([&] {  // called while Receive waits
    queue.ReOpen();
    queue.Send(9);
  });
  int item = 0;
  EXPECT_EQ(queue.Receive(&item), ReceiveResult::kClosed);
  EXPECT_EQ(queue.Receive(&item), ReceiveResult::kItem);
  EXPECT_EQ(item, 9);
}

TEST(BlockingQueueTest, ReOpenWakesReceivers) {
  IntQueue queue(1);
  ReceiveResult result = ReceiveResult::kItem;
  std::atomic<bool> done{false};
  std::jthread receiver([&] {
    int item = 0;
    result = queue.Receive(&item);
    done = true;
  });
  EXPECT_TRUE(Eventually([&] {
    queue.ReOpen();
    return done.load();
  }));
  queue.Close();
  receiver.join();
  EXPECT_EQ(result, ReceiveResult::kClosed);
}

TEST(BlockingQueueTest, ItemsAndErrorsMayUseTheQueueWhenTheyAreDestroyed) {
  struct Curious {
    explicit Curious(BlockingQueue<std::shared_ptr<Curious>>* owner) : queue(owner) {}
    BlockingQueue<std::shared_ptr<Curious>>* queue;
    ~Curious() { queue->Size(); }
  };
  BlockingQueue<std::shared_ptr<Curious>> queue(2);
  queue.Send(std::make_shared<Curious>(&queue));
  queue.Fail(std::make_exception_ptr(std::make_shared<Curious>(&queue)));
  queue.ReOpen();
  queue.Send(std::make_shared<Curious>(&queue));
  queue.Kill();
  EXPECT_EQ(queue.Size(), 0u);
}

TEST(BlockingQueueTest, SpeedTestModeGivesTheFrontItemAgainAndAgain) {
  IntQueue queue(2, /*speed_test_mode=*/true);
  queue.Send(5);
  queue.Close();
  int item = 0;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(queue.Receive(&item), ReceiveResult::kItem);
    EXPECT_EQ(item, 5);
  }
  queue.Fail(SomeError());
  EXPECT_THROW(queue.Receive(&item), std::runtime_error);
}

TEST(BlockingQueueTest, SpeedTestModeServesAllWaitingConsumersWithOneItem) {
  IntQueue queue(1, /*speed_test_mode=*/true);
  std::vector<std::jthread> consumers;
  std::atomic<int> sum{0};
  for (int i = 0; i < 4; ++i) {
    consumers.emplace_back([&] {
      int item = 0;
      queue.Receive(&item);
      sum += item;
    });
  }
  GiveOthersTime();
  queue.Send(1);
  consumers.clear();
  EXPECT_EQ(sum, 4);
}

TEST(BlockingQueueTest, SpeedTestModeNeedsItemsThatCanBeCopied) {
  EXPECT_THROW(BlockingQueue<std::unique_ptr<int>>(1, /*speed_test_mode=*/true), InvalidArgument);
}

TEST(BlockingQueueTest, CountsItemsAndWaiting) {
  IntQueue queue(1);
  queue.Send(0);
  queue.SendFor(1, milliseconds(2));
  EXPECT_EQ(queue.stats().depth, 1u);
  int item = 0;
  queue.Receive(&item);
  queue.ReceiveFor(&item, milliseconds(3));
  const QueueStats stats = queue.stats();
  EXPECT_EQ(stats.sent, 1u);
  EXPECT_EQ(stats.received, 1u);
  EXPECT_EQ(stats.depth, 0u);
  EXPECT_EQ(stats.capacity, 1u);
  EXPECT_GE(stats.producer_wait_ns, 2'000'000u);
  EXPECT_GE(stats.consumer_wait_ns, 3'000'000u);
}

TEST(BlockingQueueTest, AWaitHookIsCalledWhileWaitingAndItsErrorLeavesTheWait) {
  IntQueue queue(1);
  int calls = 0;
  const ScopedWaitHook hook([&] {
    EXPECT_EQ(queue.Size(), 0u);  // the lock is free
    ++calls;
    throw std::out_of_range("interrupted");
  });
  int item = 0;
  EXPECT_THROW(queue.Receive(&item), std::out_of_range);
  EXPECT_EQ(calls, 1);
  queue.Send(4);  // the queue goes on
  EXPECT_EQ(queue.Receive(&item), ReceiveResult::kItem);
  EXPECT_EQ(item, 4);
}

TEST(BlockingQueueTest, AWaitHookDoesNotEndAWaitByItself) {
  IntQueue queue(1);
  int calls = 0;
  const ScopedWaitHook hook([&] {
    if (++calls == 2) queue.Send(9);
  });
  int item = 0;
  EXPECT_EQ(queue.Receive(&item), ReceiveResult::kItem);
  EXPECT_EQ(item, 9);
  EXPECT_EQ(calls, 2);
}

TEST(WaitHookTest, BelongsToItsThreadAndNests) {
  EXPECT_EQ(ScopedWaitHook::Current(), nullptr);
  const ScopedWaitHook outer([] {});
  const auto* current = ScopedWaitHook::Current();
  {
    const ScopedWaitHook inner([] {});
    EXPECT_NE(ScopedWaitHook::Current(), current);
    std::jthread([] { EXPECT_EQ(ScopedWaitHook::Current(), nullptr); }).join();
  }
  EXPECT_EQ(ScopedWaitHook::Current(), current);
}

TEST(WaitHookTest, NeedsAFunction) { EXPECT_THROW(ScopedWaitHook(nullptr), InvalidArgument); }

}  // namespace
}  // namespace headrace
