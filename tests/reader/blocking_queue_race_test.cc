// Everything at once: threads that push, pop, close, fail, interrupt, reopen and kill. Run under ThreadSanitizer, too.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "reader/blocking_queue.h"

namespace headrace {
namespace {

struct Item {
  uint64_t epoch = 0;
  uint32_t producer = 0;
  uint32_t number = 0;  // counts the producer's items of the epoch, those taken by the queue
};
using Queue = BlockingQueue<Item>;

// What was sent and what came out, by epoch.
class Ledger {
 public:
  void Sent(const Item& item) {
    const std::lock_guard lock(mutex_);
    ++sent_[item.epoch];
  }
  // Adds what one consumer received.
  void Received(const std::vector<Item>& items) {
    const std::lock_guard lock(mutex_);
    for (const Item& item : items) {
      EXPECT_TRUE(received_.emplace(item.epoch, item.producer, item.number).second)
          << "item " << item.number << " of producer " << item.producer << " in epoch " << item.epoch
          << " was delivered twice";
      ++delivered_[item.epoch];
    }
  }
  uint64_t sent(uint64_t epoch) const { return Of(sent_, epoch); }
  uint64_t delivered(uint64_t epoch) const { return Of(delivered_, epoch); }

 private:
  static uint64_t Of(const std::map<uint64_t, uint64_t>& counts, uint64_t epoch) {
    const auto found = counts.find(epoch);
    return found == counts.end() ? 0 : found->second;
  }

  std::mutex mutex_;
  std::map<uint64_t, uint64_t> sent_;
  std::map<uint64_t, uint64_t> delivered_;
  std::set<std::tuple<uint64_t, uint32_t, uint32_t>> received_;
};

constexpr int kThreads = 3;  // of each kind
constexpr int kEpochs = 60;

// Sends in whatever epoch it is until the queue is killed.
void Produce(Queue& queue, uint32_t producer, Ledger& ledger) {
  uint64_t epoch = 0;
  uint32_t number = 0;
  while (!queue.IsKilled()) {
    const uint64_t now = queue.epoch();
    if (now != epoch) {
      epoch = now;
      number = 0;
    }
    Item item{epoch, producer, number};
    if (queue.Send(std::move(item), epoch) == SendResult::kTaken) {
      ledger.Sent({epoch, producer, number++});
    } else {
      std::this_thread::yield();  // until somebody opens it again
    }
  }
}

// Receives until the queue is killed. Of one producer's items of an epoch no consumer sees a later one first.
std::vector<Item> Consume(Queue& queue) {
  std::vector<Item> items;
  std::map<uint32_t, Item> last;
  for (;;) {
    Item item;
    ReceiveResult result = ReceiveResult::kClosed;
    try {
      result = queue.Receive(&item);
    } catch (const std::runtime_error&) {  // of Fail
    }
    if (result == ReceiveResult::kKilled || (result != ReceiveResult::kItem && queue.IsKilled())) {
      return items;
    }
    if (result != ReceiveResult::kItem) {
      std::this_thread::yield();
      continue;
    }
    const auto before = last.find(item.producer);
    if (before != last.end()) {
      EXPECT_GE(item.epoch, before->second.epoch);
      EXPECT_TRUE(item.epoch > before->second.epoch || item.number > before->second.number);
    }
    last[item.producer] = item;
    items.push_back(item);
  }
}

// Threads end only by the queue's own wake-ups: one that is lost hangs this test, and its time limit fails it.
void RunStorm(size_t capacity, uint32_t seed) {
  Queue queue(capacity);
  Ledger ledger;
  std::set<uint64_t> drained;  // epochs that were closed and then emptied by the consumers
  {
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&queue, &ledger, i] { Produce(queue, i, ledger); });
      threads.emplace_back([&queue, &ledger] { ledger.Received(Consume(queue)); });
    }
    std::mt19937 random(seed);
    for (int i = 0; i < kEpochs; ++i) {
      const uint64_t epoch = queue.epoch();
      for (uint32_t pause = random() % 20; pause > 0; --pause) std::this_thread::yield();
      switch (random() % 5) {
        case 0:
        case 1:
          queue.Close(epoch);
          while (queue.Size() != 0) std::this_thread::yield();
          drained.insert(epoch);
          break;
        case 2:
          queue.Fail(std::make_exception_ptr(std::runtime_error("broken")), epoch);
          break;
        case 3:
          queue.Interrupt();
          break;
        default:
          break;  // reopened in mid-stream
      }
      queue.ReOpen();
    }
    queue.Kill();
  }
  EXPECT_FALSE(drained.empty());
  for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    EXPECT_LE(ledger.delivered(epoch), ledger.sent(epoch)) << "epoch " << epoch;
    if (drained.count(epoch) != 0) {
      EXPECT_EQ(ledger.delivered(epoch), ledger.sent(epoch)) << "items accepted before the close of epoch " << epoch;
    }
  }
}

TEST(BlockingQueueRaceTest, NothingIsLostOrDeliveredTwiceThroughASingleSlot) { RunStorm(1, 1); }
TEST(BlockingQueueRaceTest, NothingIsLostOrDeliveredTwiceThroughAFewSlots) { RunStorm(3, 2); }
TEST(BlockingQueueRaceTest, NothingIsLostOrDeliveredTwiceThroughManySlots) { RunStorm(64, 3); }

// Waits without a time limit on a queue that stays full, or empty, while several threads end the pass and begin
// another.
void EndAtOnce(const std::function<void(Queue&)>& wait) {
  for (int round = 0; round < 8; ++round) {
    Queue queue(1);
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        while (!queue.IsKilled()) wait(queue);
      });
    }
    std::vector<std::jthread> enders;
    for (int i = 0; i < kThreads; ++i) {
      enders.emplace_back([&queue, i] {
        for (int turn = 0; turn < 20; ++turn) {
          (i + turn) % 2 == 0 ? static_cast<void>(queue.Close()) : queue.Interrupt();
          std::this_thread::yield();
          queue.ReOpen();
        }
      });
    }
    enders.clear();
    queue.Kill();
  }
}

TEST(BlockingQueueRaceTest, ManyThatEndAPassAtOnceWakeEverySender) {
  EndAtOnce([](Queue& queue) { queue.Send({}); });
}

TEST(BlockingQueueRaceTest, ManyThatEndAPassAtOnceWakeEveryReceiver) {
  EndAtOnce([](Queue& queue) {
    Item item;
    queue.Receive(&item);
  });
}

}  // namespace
}  // namespace headrace
