#include "reader/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "framework/errors.h"
#include "framework/scope.h"
#include "framework/wait_hook.h"
#include "reader/py_reader.h"
#include "tests/reader/reader_test_util.h"

namespace headrace {
namespace {

using ::testing::IsEmpty;

// Hands batches on.
class PassThroughReader : public DecoratedReader {
 public:
  explicit PassThroughReader(const std::shared_ptr<ReaderBase>& below) : DecoratedReader(below) {}

 private:
  void ReadNextImpl(LoDTensorArray* out) override { underlying()->ReadIfRunning(out); }
};

// Declares more about its batches than they have tensors.
class OverdeclaredReader : public DecoratedReader {
 public:
  explicit OverdeclaredReader(const std::shared_ptr<ReaderBase>& below)
      : DecoratedReader(below, {.specs = below->specs(), .checked = {true, true}}) {}

 private:
  void ReadNextImpl(LoDTensorArray* out) override { underlying()->ReadIfRunning(out); }
};

std::shared_ptr<ReaderBase> PassThrough(const std::shared_ptr<ReaderBase>& below) {
  return DecoratedReader::Make<PassThroughReader>(below);
}

TEST(PyReaderTest, YieldsTheQueuesBatchesThenTheEnd) {
  const auto queue = MakeQueue(4);
  PyReader reader(queue);
  for (int i = 0; i < 3; ++i) queue->Push(MakeBatch(static_cast<float>(i)));
  queue->Close();
  EXPECT_EQ(ReadAll(reader), Iota(3));
  EXPECT_THAT(ReadAll(reader), IsEmpty());
}

TEST(PyReaderTest, NumbersTheBatchesOfAPass) {
  const auto queue = MakeQueue(4);
  PyReader reader(queue);
  LoDTensorArray batch;
  uint64_t number = 9;
  for (int pass = 0; pass < 2; ++pass) {
    for (uint64_t i = 0; i < 3; ++i) {
      queue->Push(MakeBatch(0));
      reader.ReadNext(&batch, &number);
      EXPECT_EQ(number, i);
    }
    reader.ResetAll();
  }
}

TEST(PyReaderTest, AThreadThatWaitsForAnothersReadLooksUp) {
  const auto queue = MakeQueue(1);
  PyReader reader(queue);
  std::atomic<int> stage{0};
  std::thread first([&] {
    LoDTensorArray batch;
    stage = 1;
    reader.ReadNext(&batch);  // waits for data
    stage = 2;
  });
  while (stage == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  LoDTensorArray batch;
  const ScopedWaitHook hook([] { throw std::runtime_error("interrupted"); });
  EXPECT_THROW(reader.ReadNext(&batch), std::runtime_error);
  EXPECT_EQ(stage, 1);
  queue->Push(MakeBatch(1));
  first.join();
  queue->Push(MakeBatch(2));
  reader.ReadNext(&batch);
  EXPECT_EQ(batch[0].data<float>()[0], 2);
}

TEST(PyReaderTest, ShutdownClosesTheQueueAndStartReopensIt) {
  const auto queue = MakeQueue(4);
  PyReader reader(queue);
  const uint64_t epoch = queue->epoch();
  reader.Shutdown();
  EXPECT_TRUE(queue->IsClosed());
  EXPECT_EQ(reader.state(), ReaderBase::State::kStopped);
  reader.Start();
  EXPECT_FALSE(queue->IsClosed());
  EXPECT_GT(queue->epoch(), epoch);
  EXPECT_EQ(reader.state(), ReaderBase::State::kRunning);
}

TEST(PyReaderTest, StartOfARunningReaderLosesNothing) {
  const auto queue = MakeQueue(4);
  PyReader reader(queue);
  queue->Push(MakeBatch(5));
  reader.Start();
  queue->Close();
  EXPECT_EQ(ReadAll(reader), std::vector<float>{5});
}

TEST(PyReaderTest, ShutdownWakesAReaderThatWaits) {
  const auto queue = MakeQueue(4);
  PyReader reader(queue);
  LoDTensorArray batch = MakeBatch(1);
  std::jthread consumer([&] { reader.ReadIfRunning(&batch); });
  GiveOthersTime();
  reader.Shutdown();
  consumer.join();
  EXPECT_THAT(batch, IsEmpty());
}

TEST(PyReaderTest, ThrowsTheOriginalErrorOfAFailedQueueUntilReset) {
  const auto queue = MakeQueue(4);
  PyReader reader(queue);
  queue->Push(MakeBatch(0));
  queue->Fail(std::make_exception_ptr(std::domain_error("bad sample")));
  LoDTensorArray batch;
  reader.ReadNext(&batch);
  EXPECT_THROW(reader.ReadNext(&batch), std::domain_error);
  EXPECT_THROW(reader.ReadNext(&batch), std::domain_error);
  reader.ResetAll();
  queue->Push(MakeBatch(1));
  reader.ReadNext(&batch);
  EXPECT_EQ(ValueOf(batch), 1);
}

TEST(PyReaderTest, AKilledQueueIsNotTheEndOfTheData) {
  const auto queue = MakeQueue(4);
  PyReader reader(queue);
  queue->Kill();
  LoDTensorArray batch;
  EXPECT_THROW(reader.ReadNext(&batch), QueueClosed);
  EXPECT_THROW(reader.ResetAll(), FailedPrecondition);
  EXPECT_EQ(reader.state(), ReaderBase::State::kStopped);
}

TEST(PyReaderTest, NeedsAQueue) { EXPECT_THROW(PyReader(nullptr), InvalidArgument); }

TEST(ReaderTest, ReadingAStoppedReaderIsAFailedPrecondition) {
  CountingReader reader(3);
  reader.Shutdown();
  LoDTensorArray batch;
  EXPECT_THROW(reader.ReadNext(&batch), FailedPrecondition);
  EXPECT_FALSE(reader.ReadIfRunning(&batch));
  reader.Start();
  EXPECT_EQ(ReadAll(reader), Iota(3));
}

TEST(ReaderTest, CountsBatchesAndTheTimeThatConsumersWaited) {
  CountingReader reader(3, [] { GiveOthersTime(); });
  ReadAll(reader);
  EXPECT_EQ(reader.stats().batches, 3u);
  EXPECT_GE(reader.stats().wait_ns, 2'000'000u);
}

TEST(ReaderChainTest, ShutdownAndStartGoDownAChain) {
  const auto source = std::make_shared<CountingReader>(3);
  const auto top = PassThrough(PassThrough(PassThrough(source)));
  top->Shutdown();
  EXPECT_EQ(source->state(), ReaderBase::State::kStopped);
  top->Start();
  EXPECT_EQ(source->state(), ReaderBase::State::kRunning);
  EXPECT_EQ(ReadAll(*top), Iota(3));
}

TEST(ReaderChainTest, ShutdownWakesAConsumerThroughAChain) {
  const auto queue = MakeQueue(1);
  const auto top = PassThrough(PassThrough(std::make_shared<PyReader>(queue)));
  LoDTensorArray batch = MakeBatch(1);
  std::jthread consumer([&] { top->ReadIfRunning(&batch); });
  GiveOthersTime();
  top->Shutdown();
  consumer.join();
  EXPECT_THAT(batch, IsEmpty());
}

TEST(ReaderChainTest, ResetAllOfAnyReaderReachesTheWholeTree) {
  const auto source = std::make_shared<CountingReader>(4);
  const auto middle = PassThrough(source);
  const auto left = PassThrough(middle);
  const auto right = PassThrough(source);
  for (const auto& reader : std::vector<std::shared_ptr<ReaderBase>>{source, middle, left, right}) {
    const int64_t restarts = source->restarts();
    const int64_t shutdowns = source->shutdowns();
    LoDTensorArray batch;
    left->ReadNext(&batch);
    right->ReadNext(&batch);
    EXPECT_EQ(ValueOf(batch), 1);
    reader->ResetAll();
    EXPECT_EQ(source->restarts(), restarts + 1);
    EXPECT_EQ(source->shutdowns(), shutdowns + 1);
    for (const auto& each : {left, right, middle}) EXPECT_EQ(each->state(), ReaderBase::State::kRunning);
  }
}

TEST(ReaderChainTest, ResetAllWorksFromAnyMixtureOfStates) {
  const auto source = std::make_shared<CountingReader>(2);
  const auto top = PassThrough(source);
  source->Shutdown();  // top still runs
  source->ResetAll();
  EXPECT_EQ(ReadAll(*top), Iota(2));
  top->Shutdown();
  source->Start();  // top is stopped
  source->ResetAll();
  EXPECT_EQ(ReadAll(*top), Iota(2));
}

TEST(ReaderChainTest, ADecoratorThatIsGoneIsForgotten) {
  const auto source = std::make_shared<CountingReader>(2);
  PassThrough(source);
  source->ResetAll();
  EXPECT_EQ(ReadAll(*source), Iota(2));
}

TEST(ReaderChainTest, ADecoratorOfAStoppedReaderIsStopped) {
  const auto source = std::make_shared<CountingReader>(2);
  source->Shutdown();
  const auto top = PassThrough(source);
  LoDTensorArray batch;
  EXPECT_THROW(top->ReadNext(&batch), FailedPrecondition);
}

TEST(ReaderChainTest, ADecoratorNeedsAReader) { EXPECT_THROW(PassThrough(nullptr), InvalidArgument); }

TEST(ReaderChainTest, ADecoratorsContractHasToMakeSense) {
  const auto source = std::make_shared<PyReader>(MakeQueue(1));
  EXPECT_THROW(DecoratedReader::Make<OverdeclaredReader>(source), InvalidArgument);
}

TEST(ReaderChainTest, SurvivesResetsFromManyThreads) {
  const auto queue = MakeQueue(2);
  const auto source = std::make_shared<PyReader>(queue);
  const auto top = PassThrough(source);
  const std::jthread producer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) queue->PushFor(MakeBatch(1), std::chrono::milliseconds(1));
  });
  std::jthread consumer([&](const std::stop_token& stop) {
    LoDTensorArray batch;
    while (!stop.stop_requested()) top->ReadIfRunning(&batch);
  });
  std::vector<std::jthread> resetters;
  for (const auto& reader : std::vector<std::shared_ptr<ReaderBase>>{source, top, top}) {
    resetters.emplace_back([reader] {
      for (int i = 0; i < 100; ++i) reader->ResetAll();
    });
  }
  resetters.clear();
  consumer.request_stop();
  top->Shutdown();
  consumer.join();
  EXPECT_EQ(source->state(), ReaderBase::State::kStopped);
}

TEST(ReaderHolderTest, LivesInAScopeVariable) {
  Scope scope;
  auto* holder = scope.Var("reader")->GetMutable<ReaderHolder>();
  EXPECT_EQ(holder->Get(), nullptr);
  holder->Reset(std::make_shared<CountingReader>(1));
  LoDTensorArray batch;
  scope.GetVar("reader").Get<ReaderHolder>().ReadNext(&batch);
  EXPECT_EQ(ValueOf(batch), 0);
}

TEST(ReaderHolderTest, WithoutAReaderEverythingIsAFailedPrecondition) {
  const ReaderHolder holder;
  LoDTensorArray batch;
  EXPECT_THROW(holder.ReadNext(&batch), FailedPrecondition);
  EXPECT_THROW(holder.Shutdown(), FailedPrecondition);
  EXPECT_THROW(holder.Start(), FailedPrecondition);
  EXPECT_THROW(holder.ResetAll(), FailedPrecondition);
}

}  // namespace
}  // namespace headrace
