#include "reader/queue_feeder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <utility>

#include "framework/errors.h"
#include "reader/lod_tensor_blocking_queue.h"
#include "reader/shared_memory/batch_scheduler.h"
#include "tests/reader/reader_test_util.h"

namespace headrace {
namespace {

using shared_memory::BatchScheduler;
using shared_memory::SchedulerOptions;

// A scheduler whose first batch waits for indices, so that a feeder calls needs_indices as soon as it starts.
std::shared_ptr<BatchScheduler> SchedulerWithoutIndices() {
  SchedulerOptions options;
  options.arena.order = shared_memory::IndexOrder::kExplicit;
  options.arena.dataset_length = 8;
  options.arena.slot_count = 4;
  options.arena.slot_bytes = size_t{1} << 20;
  auto scheduler = BatchScheduler::Create(options);
  scheduler->StartEpoch(0);
  return scheduler;
}

FeederHooks HooksWith(std::function<void()> needs_indices) {
  FeederHooks hooks;
  hooks.producer_died = [] {};
  hooks.needs_indices = std::move(needs_indices);
  return hooks;
}

TEST(QueueFeederTest, AHookMayDropTheLastReferenceToTheFeeder) {
  const auto queue = MakeQueue(2);
  std::shared_ptr<QueueFeeder> feeder;
  std::promise<void> made;
  std::promise<void> dropped;
  feeder =
      std::make_shared<QueueFeeder>(SchedulerWithoutIndices(), queue, HooksWith([&, ready = made.get_future().share()] {
                                      ready.wait();
                                      feeder->Stop("nobody feeds the queue any more");
                                      feeder.reset();
                                      dropped.set_value();
                                    }));
  made.set_value();
  dropped.get_future().wait();
  EXPECT_THROW(queue->Pop(), FailedPrecondition);
}

TEST(QueueFeederTest, AFeederThatAHookDropsLeavesTheSchedulerAlone) {
  const auto scheduler = SchedulerWithoutIndices();
  const auto queue = MakeQueue(2);
  std::shared_ptr<QueueFeeder> feeder;
  std::promise<void> made;
  std::promise<void> dropped;
  std::atomic<int> asked{0};
  feeder = std::make_shared<QueueFeeder>(scheduler, queue, HooksWith([&, ready = made.get_future().share()] {
                                           ready.wait();
                                           if (++asked == 1) {
                                             feeder.reset();
                                             dropped.set_value();
                                           }
                                         }));
  made.set_value();
  dropped.get_future().wait();
  // Its thread lets go of the scheduler without asking it for anything else.
  EXPECT_TRUE(Eventually([&] { return scheduler.use_count() == 1; }));
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(queue->Size(), 0U);
}

TEST(QueueFeederTest, AHookMayStopTheFeederWhileAnotherThreadJoinsIt) {
  const auto queue = MakeQueue(2);
  std::shared_ptr<QueueFeeder> feeder;
  std::promise<void> made;
  std::atomic<bool> joining{false};
  feeder =
      std::make_shared<QueueFeeder>(SchedulerWithoutIndices(), queue, HooksWith([&, ready = made.get_future().share()] {
                                      ready.wait();
                                      Eventually([&] { return joining.load(); });
                                      GiveOthersTime();
                                      feeder->Stop();
                                    }));
  made.set_value();
  joining = true;
  feeder->Stop();  // returns: the hook does not wait for this thread
  EXPECT_FALSE(queue->IsClosed());
}

TEST(QueueFeederTest, WhatAHookThrowsFailsTheQueue) {
  const auto queue = MakeQueue(2);
  QueueFeeder feeder(SchedulerWithoutIndices(), queue, HooksWith([] { throw std::domain_error("no indices"); }));
  EXPECT_THROW(queue->Pop(), std::domain_error);
}

}  // namespace
}  // namespace headrace
