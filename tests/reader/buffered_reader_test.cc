#include "reader/buffered_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "framework/errors.h"
#include "reader/py_reader.h"
#include "tests/reader/reader_test_util.h"

namespace headrace {
namespace {

using ::testing::IsEmpty;

std::shared_ptr<BufferedReader> Buffer(const std::shared_ptr<ReaderBase>& below) {
  return DecoratedReader::Make<BufferedReader>(below);
}

// Threads of this process. A thread that has been joined may still be listed for a moment.
int64_t CountThreads() {
  // ThreadSanitizer starts a thread of its own with the first one.
  static const bool first_thread_is_over = (std::thread([] {}).join(), true);
  (void)first_thread_is_over;
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// What a feeder does for one pass.
void Feed(LoDTensorBlockingQueue& queue, uint64_t epoch, size_t batches) {
  for (size_t i = 0; i < batches; ++i) {
    if (!queue.Push(MakeBatch(static_cast<float>(i)), epoch)) return;
  }
  queue.Close(epoch);
}

TEST(BufferedReaderTest, YieldsAllBatchesInOrderThenTheEnd) {
  const auto reader = Buffer(std::make_shared<CountingReader>(50));
  EXPECT_EQ(ReadAll(*reader), Iota(50));
  EXPECT_THAT(ReadAll(*reader), IsEmpty());
}

TEST(BufferedReaderTest, ReadsTwoBatchesAheadAndNoMore) {
  const auto source = std::make_shared<CountingReader>(-1);
  const auto reader = Buffer(source);
  LoDTensorArray batch;
  for (int64_t given = 1; given < 20; ++given) {
    reader->ReadNext(&batch);
    EXPECT_TRUE(Eventually([&] { return source->reads() == given + 2; }));
  }
  GiveOthersTime();
  EXPECT_EQ(source->reads(), 21);
}

TEST(BufferedReaderTest, NeverWritesIntoABatchThatWasGivenOut) {
  const auto reader = Buffer(std::make_shared<CountingReader>(100));
  std::vector<LoDTensorArray> kept(100);
  for (auto& batch : kept) reader->ReadNext(&batch);
  std::set<const void*> memory;
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(ValueOf(kept[i]), static_cast<float>(i));
    memory.insert(kept[i][0].raw_data());
  }
  EXPECT_EQ(memory.size(), kept.size());
}

TEST(BufferedReaderTest, MayBeRewoundInMidPass) {
  const auto reader = Buffer(std::make_shared<CountingReader>(50, [] {}, /*rewinds=*/true));
  LoDTensorArray batch;
  for (int pass = 0; pass < 3; ++pass) {
    reader->ReadNext(&batch);
    EXPECT_EQ(ValueOf(batch), 0);
    GiveOthersTime();  // its thread waits for room
    EXPECT_TRUE(reader->Rewind());
  }
  EXPECT_EQ(ReadAll(*reader), Iota(50));
}

TEST(BufferedReaderTest, OfDataThatCannotBeReadAgainARewindIsRefusedAndNothingIsLost) {
  const auto reader = Buffer(std::make_shared<CountingReader>(50));
  LoDTensorArray batch;
  reader->ReadNext(&batch);
  EXPECT_FALSE(reader->Rewind());
  EXPECT_EQ(ReadAll(*reader).size(), 49U);
}

TEST(BufferedReaderTest, KeepsLoD) {
  const auto queue = MakeQueue(2, {{.dims = {-1}, .dtype = DataType::kFloat32, .lod_level = 2}});
  const auto reader = Buffer(std::make_shared<PyReader>(queue));
  const LoD lod{{0, 1, 3}, {0, 2, 3, 6}};
  queue->Push({MakeTensor<float>({6}, 1, lod)});
  queue->Close();
  LoDTensorArray batch;
  reader->ReadNext(&batch);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].lod(), lod);
}

TEST(BufferedReaderTest, HasNoThreadBeforeTheFirstReadAndNoneAfterShutdown) {
  const int64_t before = CountThreads();
  const auto reader = Buffer(std::make_shared<CountingReader>(-1));
  EXPECT_EQ(CountThreads(), before);
  LoDTensorArray batch;
  reader->ReadNext(&batch);
  EXPECT_EQ(CountThreads(), before + 1);
  reader->Shutdown();
  EXPECT_TRUE(Eventually([&] { return CountThreads() == before; }));
  reader->Start();
  EXPECT_EQ(CountThreads(), before);
}

TEST(BufferedReaderTest, ShutdownLetsGoOfWhatWasReadAhead) {
  const auto queue = MakeQueue(4);
  std::vector<std::weak_ptr<Allocation>> memory;
  for (int i = 0; i < 4; ++i) {
    LoDTensorArray batch = MakeBatch(0);
    memory.push_back(batch[0].allocation());
    queue->Push(std::move(batch));
  }
  const auto reader = Buffer(std::make_shared<PyReader>(queue));
  LoDTensorArray batch;
  reader->ReadNext(&batch);
  ASSERT_TRUE(Eventually([&] { return queue->Size() <= 1; }));
  reader->Shutdown();
  EXPECT_FALSE(memory[0].expired());  // the consumer's
  EXPECT_TRUE(memory[1].expired());
  EXPECT_TRUE(memory[2].expired());
}

TEST(BufferedReaderTest, ItsEndJoinsTheThreadWhereverItWaits) {
  const int64_t before = CountThreads();
  const auto queue = MakeQueue(8);
  const auto source = std::make_shared<PyReader>(queue);
  for (const int queued : {1, 4}) {  // waits for the queue; waits for the consumer
    for (int i = 0; i < queued; ++i) queue->Push(MakeBatch(0));
    auto reader = Buffer(source);
    LoDTensorArray batch;
    reader->ReadNext(&batch);
    GiveOthersTime();
    reader.reset();
    EXPECT_TRUE(Eventually([&] { return CountThreads() == before; }));
    source->ResetAll();
  }
}

TEST(BufferedReaderTest, OneThatWasNeverReadLeavesTheReaderBelowAlone) {
  const auto source = std::make_shared<CountingReader>(2);
  Buffer(source);
  EXPECT_EQ(source->state(), ReaderBase::State::kRunning);
}

TEST(BufferedReaderTest, OneThatEndsInMidPassLeavesTheReaderBelowStopped) {
  const auto source = std::make_shared<CountingReader>(-1);
  LoDTensorArray batch;
  Buffer(source)->ReadNext(&batch);
  EXPECT_THROW(source->ReadNext(&batch), FailedPrecondition);  // rather than going on with two batches missing
}

TEST(BufferedReaderTest, AnErrorComesAfterTheBatchesBeforeItAndStays) {
  const auto reader = Buffer(std::make_shared<CountingReader>(5, [] { throw std::domain_error("bad sample"); }));
  LoDTensorArray batch;
  for (int i = 0; i < 5; ++i) {
    reader->ReadNext(&batch);
    EXPECT_EQ(ValueOf(batch), static_cast<float>(i));
  }
  EXPECT_THROW(reader->ReadNext(&batch), std::domain_error);
  EXPECT_THROW(reader->ReadNext(&batch), std::domain_error);
}

TEST(BufferedReaderTest, AFailedQueueIsAnErrorThroughTheBufferAndAResetBringsTheNextPass) {
  const auto queue = MakeQueue(4);
  const auto reader = Buffer(std::make_shared<PyReader>(queue));
  queue->Push(MakeBatch(0));
  queue->Fail(std::make_exception_ptr(std::domain_error("bad sample")));
  queue->Close();  // an error wins over the end of the data
  LoDTensorArray batch;
  reader->ReadNext(&batch);
  EXPECT_THROW(reader->ReadNext(&batch), std::domain_error);
  reader->ResetAll();
  const std::jthread feeder([&] { Feed(*queue, queue->epoch(), 6); });
  EXPECT_EQ(ReadAll(*reader), Iota(6));
}

TEST(BufferedReaderTest, ShutdownWakesAConsumerThatWaits) {
  const auto reader = Buffer(std::make_shared<PyReader>(MakeQueue(1)));
  const int64_t before = CountThreads();
  LoDTensorArray batch;
  bool was_inside = false;
  std::jthread consumer([&] { was_inside = reader->ReadIfRunning(&batch); });
  // The consumer's read has begun: it starts the reader's thread.
  ASSERT_TRUE(Eventually([&] { return CountThreads() == before + 2; }));
  reader->Shutdown();
  consumer.join();
  EXPECT_TRUE(was_inside);
  EXPECT_THAT(batch, IsEmpty());
  EXPECT_TRUE(Eventually([&] { return CountThreads() == before; }));
}

TEST(BufferedReaderTest, AForkedChildMayDropOneThatReadsAhead) {
  SKIP_WITHOUT_FORK();
  const auto queue = MakeQueue(8);
  for (const int queued : {1, 4}) {  // its thread waits for the queue; for the consumer
    for (int i = 0; i < queued; ++i) queue->Push(MakeBatch(0));
    auto reader = Buffer(std::make_shared<PyReader>(queue));
    LoDTensorArray batch;
    reader->ReadNext(&batch);
    GiveOthersTime();
    ASSERT_TRUE(EndsInAForkedChild([&] { reader.reset(); }));
    // One is in a read, which has the reader's lock.
    std::jthread consumer([&] {
      LoDTensorArray read;
      while (reader->ReadIfRunning(&read) && !read.empty()) {
      }
    });
    GiveOthersTime();
    ASSERT_TRUE(EndsInAForkedChild([&] { reader.reset(); }));
    reader->Shutdown();
    consumer.join();
    queue->ReOpen();
  }
}

TEST(BufferedReaderTest, ShutdownOfTheReaderBelowEndsThePass) {
  const auto source = std::make_shared<PyReader>(MakeQueue(1));
  const auto reader = Buffer(source);
  LoDTensorArray batch = MakeBatch(0);
  std::jthread consumer([&] { reader->ReadNext(&batch); });
  GiveOthersTime();
  source->Shutdown();
  consumer.join();
  EXPECT_THAT(batch, IsEmpty());
}

TEST(BufferedReaderTest, ShutdownTwiceAndStartTwiceAreHarmless) {
  const auto reader = Buffer(std::make_shared<CountingReader>(3));
  reader->Shutdown();
  reader->Shutdown();
  reader->Start();
  reader->Start();
  EXPECT_EQ(ReadAll(*reader), Iota(3));
}

TEST(BufferedReaderTest, AHundredPassesEachHaveAllBatches) {
  constexpr size_t kBatches = 7;
  const auto queue = MakeQueue(3);
  const auto source = std::make_shared<PyReader>(queue);
  const auto reader = Buffer(source);
  for (int pass = 0; pass < 100; ++pass) {
    const std::jthread feeder([&queue, epoch = queue->epoch()] { Feed(*queue, epoch, kBatches); });
    ASSERT_EQ(ReadAll(*reader), Iota(kBatches)) << "pass " << pass;
    source->ResetAll();
  }
}

TEST(BufferedReaderTest, ResetsInTheMiddleOfAnEndlessReaderLeakNothingIntoTheNextPass) {
  const auto queue = MakeQueue(3);
  const auto source = std::make_shared<PyReader>(queue);
  const auto reader = Buffer(source);
  std::vector<std::jthread> feeders;  // an old feeder is not waited for: the epoch alone has to keep it out
  for (int pass = 0; pass < 10; ++pass) {
    feeders.emplace_back([&queue, pass, epoch = queue->epoch()] {
      while (queue->Push(MakeBatch(static_cast<float>(pass)), epoch)) {
      }
    });
    LoDTensorArray batch;
    for (int i = 0; i < 5 + pass; ++i) {
      reader->ReadNext(&batch);
      ASSERT_EQ(ValueOf(batch), static_cast<float>(pass));
    }
    source->ResetAll();
  }
}

TEST(BufferedReaderTest, ResetInAnyStateLosesNothingOfTheNextPass) {
  const auto queue = MakeQueue(3);
  const auto source = std::make_shared<PyReader>(queue);
  const auto reader = Buffer(source);
  LoDTensorArray batch;
  for (size_t reads : {0, 0, 1, 4, 5, 6}) {  // before anything, in the middle, after the end
    source->ResetAll();
    const std::jthread feeder([&queue, epoch = queue->epoch()] { Feed(*queue, epoch, 5); });
    for (size_t i = 0; i < reads; ++i) {
      reader->ReadNext(&batch);
      ASSERT_EQ(batch.empty(), i >= 5);
    }
    source->ResetAll();
    const std::jthread next([&queue, epoch = queue->epoch()] { Feed(*queue, epoch, 5); });
    ASSERT_EQ(ReadAll(*reader), Iota(5)) << "after a reset that followed " << reads << " reads";
  }
}

TEST(BufferedReaderTest, AChainOfBuffersPassesEverythingAndShutsDown) {
  const auto queue = MakeQueue(2);
  const auto source = std::make_shared<PyReader>(queue);
  const auto reader = Buffer(Buffer(Buffer(source)));
  for (int pass = 0; pass < 5; ++pass) {
    const std::jthread feeder([&queue, epoch = queue->epoch()] { Feed(*queue, epoch, 20); });
    if (pass % 2 == 0) {
      ASSERT_EQ(ReadAll(*reader), Iota(20));
    } else {
      LoDTensorArray batch;
      reader->ReadNext(&batch);
    }
    reader->ResetAll();
  }
}

TEST(BufferedReaderTest, TwoBuffersOverOneReaderShareItsBatches) {
  const auto queue = MakeQueue(4);
  const auto source = std::make_shared<PyReader>(queue);
  const auto left = Buffer(source);
  const auto right = Buffer(source);
  for (int pass = 0; pass < 5; ++pass) {
    const std::jthread feeder([&queue, epoch = queue->epoch()] { Feed(*queue, epoch, 40); });
    std::vector<float> from_left;
    std::jthread reading_left([&] { from_left = ReadAll(*left); });
    std::vector<float> all = ReadAll(*right);
    reading_left.join();
    all.insert(all.end(), from_left.begin(), from_left.end());
    std::sort(all.begin(), all.end());
    ASSERT_EQ(all, Iota(40));
    source->ResetAll();
  }
}

TEST(BufferedReaderTest, ManyConsumersShareItsBatches) {
  const auto reader = Buffer(std::make_shared<CountingReader>(200));
  std::vector<std::vector<float>> parts(4);
  {
    std::vector<std::jthread> consumers;
    for (auto& part : parts) consumers.emplace_back([&] { part = ReadAll(*reader); });
  }
  std::vector<float> all;
  for (const auto& part : parts) {
    EXPECT_TRUE(std::is_sorted(part.begin(), part.end()));
    all.insert(all.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, Iota(200));
}

TEST(BufferedReaderTest, ResetsWhileAConsumerReadsNeitherHangNorMixPasses) {
  const auto queue = MakeQueue(2);
  const auto source = std::make_shared<PyReader>(queue);
  const auto reader = Buffer(source);
  const std::jthread feeder([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const uint64_t epoch = queue->epoch();
      while (queue->PushFor(MakeBatch(static_cast<float>(epoch)), std::chrono::milliseconds(1), epoch) ==
                 SendResult::kTaken &&
             !stop.stop_requested()) {
      }
    }
  });
  std::jthread consumer([&](const std::stop_token& stop) {
    LoDTensorArray batch;
    float last = 0;
    while (!stop.stop_requested()) {
      reader->ReadIfRunning(&batch);
      if (batch.empty()) continue;
      EXPECT_GE(ValueOf(batch), last);
      last = ValueOf(batch);
    }
  });
  for (int i = 0; i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    source->ResetAll();
  }
  consumer.request_stop();
  reader->Shutdown();
}

}  // namespace
}  // namespace headrace
