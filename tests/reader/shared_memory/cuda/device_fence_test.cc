// Slots that are not used again before the device has read them.
#include "reader/shared_memory/cuda/device_fence.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_test_util.h"
#include "gtest/gtest.h"
#include "tests/reader/shared_memory/transport_test_util.h"

namespace headrace::shared_memory {
namespace {

constexpr int kCapturing = 900;
constexpr uint32_t kWords = 16;

SchedulerOptions FencePinning(uint64_t batches, uint32_t slots) {
  SchedulerOptions options = SmallOptions(batches, 1);
  options.pin_memory = true;
  options.arena.slot_count = slots;
  options.prefetch = 2;
  return options;
}

// A consumer that submits a copy of each batch and drops the batch at once.
class Device {
 public:
  Device(CudaStub* stub, size_t batches) : stub_(stub), memory_(batches, std::vector<uint64_t>(kWords)) {}

  void Copy(const ReadyBatch& batch) {
    const size_t number = copied_++;
    const std::byte* leaf = batch.slot + batch.layout().leaf(0).offset;
    if (batch.last_slots) {  // a consumer is given a copy, which the driver reads before the call returns
      std::memcpy(memory_[number].data(), leaf, kWords * sizeof(uint64_t));
      return;
    }
    // On one of three streams, none of which the loader has heard of.
    stub_->copy_async(memory_[number].data(), leaf, kWords * sizeof(uint64_t), static_cast<uint32_t>(number % 3));
  }
  // The copies of which the content is another than that of the batch.
  size_t wrong() const {
    size_t wrong = 0;
    for (size_t number = 0; number < copied_; ++number) {
      for (uint32_t word = 0; word < kWords; ++word) {
        if (memory_[number][word] != SampleWord(0, number, word)) {
          ++wrong;
          break;
        }
      }
    }
    return wrong;
  }

 private:
  CudaStub* const stub_;
  std::vector<std::vector<uint64_t>> memory_;
  size_t copied_ = 0;
};

class DeviceFenceTest : public CudaTest {
 protected:
  // Makes and takes so many batches, each of which is copied and dropped at once.
  static void CopyNext(int count, BatchScheduler* scheduler, BatchProducer* producer, Device* device) {
    for (int i = 0; i < count; ++i) {
      MakeAll(*producer, {.words = kWords});
      ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kBatch);
      device->Copy(scheduler->Take());
    }
  }
  // Takes `batches` batches, each of which is copied and dropped at once; as many of the newest as `kept` live longer.
  size_t Consume(uint64_t batches, uint32_t slots, size_t kept = 0, bool fence = true) {
    Device device(stub_, batches);
    {
      SchedulerOptions options = FencePinning(batches, slots);
      options.fence_device = fence;
      const auto scheduler = BatchScheduler::Create(options);
      BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
      scheduler->StartEpoch(0);
      std::deque<ReadyBatch> in_hand;
      for (uint64_t number = 0; number < batches; ++number) {
        MakeAll(producer, {.words = kWords});
        while (scheduler->Wait(0) != WaitOutcome::kBatch) {
          MakeAll(producer, {.words = kWords});
        }
        in_hand.push_back(scheduler->Take());
        device.Copy(in_hand.back());
        if (in_hand.size() > kept) {
          in_hand.pop_front();
        }
      }
      stub_->finish();
    }
    return device.wrong();
  }
};

TEST_F(DeviceFenceTest, EveryCopyHasTheContentOfItsBatch) {
  EXPECT_EQ(Consume(60, 8), 0U);
  EXPECT_EQ(stub_->synchronizations, 0);
}

TEST_F(DeviceFenceTest, WithoutTheFenceCopiesAreWrong) {
  EXPECT_GT(Consume(60, 8, 0, /*fence=*/false), 0U);  // or the test before means nothing
}

TEST_F(DeviceFenceTest, BatchesThatAreKeptForAWhileAreCopiedRightly) { EXPECT_EQ(Consume(60, 12, 3), 0U); }

TEST_F(DeviceFenceTest, TheLoaderWaitsForTheDeviceWhenNoSlotIsLeft) {
  Device device(stub_, 8);
  const auto scheduler = BatchScheduler::Create(FencePinning(8, 4));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  stub_->busy = true;
  ASSERT_NO_FATAL_FAILURE(CopyNext(4, scheduler.get(), &producer, &device));
  MakeAll(producer, {.words = kWords});
  EXPECT_EQ(scheduler->Wait(5 * kMillisecond), WaitOutcome::kTimedOut);
  EXPECT_EQ(scheduler->stats().held_slots, 4U);
  // The device goes on while the consumer waits.
  std::jthread producing([&] {
    std::atomic_ref(stub_->busy).store(false);
    while (std::optional<Claim> claim = producer.WaitForClaim()) {
      MakeRows(producer, *claim, {.words = kWords});
    }
  });
  for (int number = 4; number < 8; ++number) {
    ASSERT_EQ(scheduler->Wait(kPatience), WaitOutcome::kBatch);
    device.Copy(scheduler->Take());
  }
  EXPECT_EQ(scheduler->Wait(kPatience), WaitOutcome::kEndOfEpoch);
  scheduler->Shutdown();
  producing.join();
  stub_->busy = true;  // and is waited for, also if nothing of the kind is asked for any more
}

TEST_F(DeviceFenceTest, TheEndOfALoaderWaitsForTheDevice) {
  Device device(stub_, 3);
  {
    const auto scheduler = BatchScheduler::Create(FencePinning(3, 8));
    BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
    scheduler->StartEpoch(0);
    stub_->busy = true;
    for (int number = 0; number < 3; ++number) {
      MakeAll(producer, {.words = kWords});
      device.Copy(scheduler->Take());
    }
  }
  EXPECT_EQ(device.wrong(), 0U);
}

// The consumer had let go of them before, so the child has none of them.
TEST_F(DeviceFenceTest, AForkDoesNotKeepWhatADeviceStillReads) {
  SKIP_WITHOUT_FORK();
  Device device(stub_, 5);
  const auto scheduler = BatchScheduler::Create(FencePinning(5, 4));
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  stub_->busy = true;
  ASSERT_NO_FATAL_FAILURE(CopyNext(4, scheduler.get(), &producer, &device));
  WaitingChild child([] { return true; });
  stub_->busy = false;
  EXPECT_EQ(scheduler->Wait(5 * kMillisecond), WaitOutcome::kTimedOut);
  ASSERT_NO_FATAL_FAILURE(CopyNext(1, scheduler.get(), &producer, &device));
  stub_->finish();
  EXPECT_EQ(device.wrong(), 0U);
}

TEST_F(DeviceFenceTest, AChildKeepsWhatADeviceReadsAtTheEndOfALoader) {
  SKIP_WITHOUT_FORK();
  Device device(stub_, 1);
  auto scheduler = BatchScheduler::Create(FencePinning(1, 8));
  std::optional<BatchProducer> producer(std::in_place, scheduler->arena(), 0U, scheduler->completion_fd());
  scheduler->StartEpoch(0);
  MakeAll(*producer, {.words = kWords});
  ReadyBatch batch = scheduler->Take();
  WaitingChild child([&] {
    const std::byte* leaf = batch.slot + batch.layout().leaf(0).offset;
    uint64_t word = 0;
    std::memcpy(&word, leaf, sizeof(word));
    return word == SampleWord(0, 0, 0);
  });
  stub_->busy = true;
  device.Copy(batch);
  batch = ReadyBatch();
  EXPECT_EQ(scheduler->stats().held_slots, 0U);
  producer.reset();
  scheduler.reset();
  EXPECT_TRUE(child.Holds());
}

TEST_F(DeviceFenceTest, WorkIsMarkedLaterWhereAStreamIsBeingCaptured) {
  UseDevice();
  DeviceFence fence;
  stub_->record_result = kCapturing;
  fence.Hold(3);
  EXPECT_TRUE(fence.TakeEnded(/*urgent=*/true).empty());
  stub_->record_result = 0;
  EXPECT_EQ(fence.TakeEnded(false), std::vector<uint32_t>{3});
  EXPECT_EQ(stub_->synchronizations, 0);
}

TEST_F(DeviceFenceTest, EventsAreUsedAgain) {
  UseDevice();
  DeviceFence fence;
  for (int i = 0; i < 10; ++i) {
    fence.Hold(1);
    EXPECT_EQ(fence.TakeEnded(false).size(), 1U);
  }
  EXPECT_EQ(stub_->events, 1);
}

TEST_F(DeviceFenceTest, SlotsComeBackInTheOrderOfTheirRelease) {
  UseDevice();
  DeviceFence fence;
  stub_->busy = true;
  for (uint32_t slot : {5, 2, 9}) fence.Hold(slot);
  EXPECT_TRUE(fence.TakeEnded(false).empty());
  EXPECT_EQ(fence.held(), 3U);
  stub_->busy = false;
  EXPECT_EQ(fence.TakeEnded(false), (std::vector<uint32_t>{5, 2, 9}));
  EXPECT_EQ(fence.held(), 0U);
}

// The program copies to two devices, and the context that is current when it drops the batch is that of the first.
TEST_F(DeviceFenceTest, ASlotIsHeldUntilEachDeviceHasFinished) {
  UseDevice();
  stub_->devices = 2;
  for (const bool first_is_slow : {false, true}) {
    DeviceFence fence;
    const uint64_t source = 7;
    uint64_t copied[2] = {0, 0};
    stub_->copy_async(&copied[0], &source, sizeof(source), 0);
    stub_->copy_async(&copied[1], &source, sizeof(source), CudaStub::kSecondDevice);
    stub_->busy = first_is_slow;
    stub_->second_busy = !first_is_slow;
    fence.Hold(3);
    EXPECT_TRUE(fence.TakeEnded(/*urgent=*/true).empty());
    stub_->busy = stub_->second_busy = false;
    EXPECT_EQ(fence.TakeEnded(false), std::vector<uint32_t>{3});
    EXPECT_EQ(copied[0], source);
    EXPECT_EQ(copied[1], source);
  }
}

TEST_F(DeviceFenceTest, ItsEndWaitsForEachDevice) {
  UseDevice();
  stub_->devices = 2;
  const uint64_t source = 7;
  uint64_t copied[2] = {0, 0};
  {
    DeviceFence fence;
    stub_->copy_async(&copied[0], &source, sizeof(source), 0);
    stub_->copy_async(&copied[1], &source, sizeof(source), CudaStub::kSecondDevice);
    stub_->busy = stub_->second_busy = true;
    fence.Hold(3);
  }
  EXPECT_EQ(copied[0], source);
  EXPECT_EQ(copied[1], source);
}

TEST_F(DeviceFenceTest, WithoutADriverNothingIsHeldBack) {
  DeviceFence fence("libthere-is-no-such-driver.so.1");
  fence.Hold(1);
  EXPECT_EQ(fence.TakeEnded(false), std::vector<uint32_t>{1});
}

TEST_F(DeviceFenceTest, AForkedChildLeavesTheDeviceAlone) {
  SKIP_WITHOUT_FORK();
  UseDevice();
  auto fence = std::make_unique<DeviceFence>();
  stub_->busy = true;
  fence->Hold(1);
  ChildProcess child([&] {
    fence.reset();
    _exit(stub_->synchronizations);
  });
  EXPECT_EQ(child.Join(), 0);
}

// A driver without cuCtxRecordEvent.
class OldDriverTest : public CudaTest {
 protected:
  OldDriverTest() : CudaTest(OLD_CUDA_STUB) {}
};

TEST_F(OldDriverTest, TheDeviceIsWaitedForOnceForSeveralSlots) {
  UseDevice();
  DeviceFence fence(OLD_CUDA_STUB);
  for (uint32_t slot = 0; slot + 1 < DeviceFence::kSynchronizeAt; ++slot) {
    fence.Hold(slot);
    EXPECT_TRUE(fence.TakeEnded(false).empty());
  }
  EXPECT_EQ(stub_->synchronizations, 0);
  fence.Hold(DeviceFence::kSynchronizeAt - 1);
  EXPECT_EQ(fence.TakeEnded(false).size(), DeviceFence::kSynchronizeAt);
  EXPECT_EQ(stub_->synchronizations, 1);
}

TEST_F(OldDriverTest, EachDeviceIsWaitedFor) {
  UseDevice();
  stub_->devices = 2;
  DeviceFence fence(OLD_CUDA_STUB);
  const uint64_t source = 7;
  uint64_t copied = 0;
  stub_->copy_async(&copied, &source, sizeof(source), CudaStub::kSecondDevice);
  fence.Hold(7);
  EXPECT_EQ(fence.TakeEnded(/*urgent=*/true), std::vector<uint32_t>{7});
  EXPECT_EQ(copied, source);
}

TEST_F(OldDriverTest, TheDeviceIsWaitedForAtOnceIfNothingGoesOnOtherwise) {
  UseDevice();
  DeviceFence fence(OLD_CUDA_STUB);
  fence.Hold(7);
  stub_->synchronize_result = kCapturing;
  EXPECT_TRUE(fence.TakeEnded(/*urgent=*/true).empty());
  stub_->synchronize_result = 0;
  EXPECT_EQ(fence.TakeEnded(/*urgent=*/true), std::vector<uint32_t>{7});
}

}  // namespace
}  // namespace headrace::shared_memory
