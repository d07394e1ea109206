// The readers that shuffle, join, repeat and invent data, and the operators that create them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "reader/batch_reader.h"
#include "reader/buffered_reader.h"
#include "reader/multi_pass_reader.h"
#include "reader/py_reader.h"
#include "reader/random_data_generator.h"
#include "reader/shuffle_reader.h"
#include "reader/threaded_reader.h"
#include "tests/reader/reader_test_util.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;

std::vector<float> Sorted(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<float> Elements(const LoDTensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

TEST(ShuffleReaderTest, YieldsEveryBatchOnceInAnotherOrder) {
  const auto reader = DecoratedReader::Make<ShuffleReader>(std::make_shared<CountingReader>(100), 100, 7);
  const std::vector<float> values = ReadAll(*reader);
  EXPECT_NE(values, Iota(100));
  EXPECT_EQ(Sorted(values), Iota(100));
}

TEST(ShuffleReaderTest, ShufflesWithinItsBuffer) {
  const auto reader = DecoratedReader::Make<ShuffleReader>(std::make_shared<CountingReader>(25), 10, 7);
  const std::vector<float> values = ReadAll(*reader);
  ASSERT_EQ(values.size(), 25u);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(static_cast<size_t>(values[i]) / 10, i / 10);
}

TEST(ShuffleReaderTest, TheSeedDecidesAndPassesDiffer) {
  const auto make = [](uint64_t seed) {
    return DecoratedReader::Make<ShuffleReader>(std::make_shared<CountingReader>(50), 50, seed);
  };
  const auto a = make(1);
  const auto b = make(1);
  const auto c = make(2);
  const std::vector<float> first = ReadAll(*a);
  EXPECT_EQ(ReadAll(*b), first);
  EXPECT_NE(ReadAll(*c), first);
  a->ResetAll();
  b->ResetAll();
  const std::vector<float> second = ReadAll(*a);
  EXPECT_NE(second, first);
  EXPECT_EQ(ReadAll(*b), second);
}

TEST(ShuffleReaderTest, ReadsNothingBeforeItIsRead) {
  const auto source = std::make_shared<CountingReader>(5, [] { throw std::domain_error("bad sample"); });
  const auto reader = DecoratedReader::Make<ShuffleReader>(source, 10, 0);
  EXPECT_EQ(source->reads(), 0);
  LoDTensorArray batch;
  EXPECT_THROW(reader->ReadNext(&batch), std::domain_error);
}

TEST(ShuffleReaderTest, AResetDropsWhatWasBuffered) {
  const auto source = std::make_shared<CountingReader>(20);
  const auto reader = DecoratedReader::Make<ShuffleReader>(source, 8, 0);
  LoDTensorArray batch;
  for (int i = 0; i < 3; ++i) reader->ReadNext(&batch);
  source->ResetAll();
  EXPECT_EQ(Sorted(ReadAll(*reader)), Iota(20));
}

TEST(ShuffleReaderTest, RefusesAnEmptyBuffer) {
  EXPECT_THROW(DecoratedReader::Make<ShuffleReader>(std::make_shared<CountingReader>(1), 0, 0), InvalidArgument);
}

TEST(BatchReaderTest, JoinsAndKeepsASmallerLastBatch) {
  const auto reader = DecoratedReader::Make<BatchReader>(std::make_shared<CountingReader>(7), 3, /*drop_last=*/false);
  LoDTensorArray batch;
  reader->ReadNext(&batch);
  EXPECT_THAT(Elements(batch[0]), ElementsAre(0, 1, 2));
  reader->ReadNext(&batch);
  EXPECT_THAT(Elements(batch[0]), ElementsAre(3, 4, 5));
  reader->ReadNext(&batch);
  EXPECT_THAT(Elements(batch[0]), ElementsAre(6));
  reader->ReadNext(&batch);
  EXPECT_THAT(batch, IsEmpty());
}

TEST(BatchReaderTest, DropLastLeavesASmallerLastBatchAway) {
  const auto reader = DecoratedReader::Make<BatchReader>(std::make_shared<CountingReader>(7), 3, /*drop_last=*/true);
  EXPECT_THAT(ReadAll(*reader), ElementsAre(0, 3));
}

TEST(BatchReaderTest, JoinsLoDAndRows) {
  const auto queue = MakeQueue(4, {{.dims = {-1, 2}, .dtype = DataType::kFloat32, .lod_level = 2}});
  const auto reader = DecoratedReader::Make<BatchReader>(std::make_shared<PyReader>(queue), 2, false);
  queue->Push({MakeTensor<float>({3, 2}, 1, {{0, 1, 2}, {0, 1, 3}})});
  queue->Push({MakeTensor<float>({4, 2}, 2, {{0, 2}, {0, 0, 4}})});
  queue->Close();
  LoDTensorArray batch;
  reader->ReadNext(&batch);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].lod(), (LoD{{0, 1, 2, 4}, {0, 1, 3, 3, 7}}));
  EXPECT_EQ(batch[0].dims(), (DDim{7, 2}));
  EXPECT_THAT(Elements(batch[0]), ElementsAre(1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2));
}

TEST(BatchReaderTest, RefusesBatchesThatDoNotFitTogetherAndGoesOn) {
  const auto queue = MakeQueue(8, {{.dims = {-1, -1}, .dtype = DataType::kFloat32, .lod_level = 0}});
  const auto reader = DecoratedReader::Make<BatchReader>(std::make_shared<PyReader>(queue), 2, false);
  for (const int64_t width : {2, 3, 4, 4}) queue->Push({MakeTensor<float>({1, width}, 0)});
  LoDTensorArray batch;
  const auto error = ErrorOf<InvalidArgument>([&] { reader->ReadNext(&batch); });
  EXPECT_THAT(error.message(), AllOf(HasSubstr("tensor 0"), HasSubstr("[1, 2]"), HasSubstr("[1, 3]")));
  reader->ReadNext(&batch);
  EXPECT_EQ(batch[0].dims(), (DDim{2, 4}));
}

// Reads `source` through `reader`, which has taken a batch from the queue and waits for the next when it is stopped.
void ExpectNothingOfAnInterruptedRead(ReaderBase& reader, LoDTensorBlockingQueue& queue) {
  queue.Push(MakeBatch(0));
  LoDTensorArray batch = MakeBatch(1);
  std::jthread consumer([&] { reader.ReadIfRunning(&batch); });
  while (queue.Size() != 0) GiveOthersTime();
  reader.Shutdown();
  consumer.join();
  EXPECT_THAT(batch, IsEmpty());
  EXPECT_EQ(reader.stats().batches, 0U);
  reader.Start();
  queue.Push(MakeBatch(5));
  queue.Close();
  EXPECT_THAT(ReadAll(reader), ElementsAre(5));
}

TEST(BatchReaderTest, AnInterruptedReadYieldsNothing) {
  const auto queue = MakeQueue(4);
  const auto source = std::make_shared<PyReader>(queue);
  ExpectNothingOfAnInterruptedRead(*DecoratedReader::Make<BatchReader>(source, 3, /*drop_last=*/false), *queue);
}

TEST(ShuffleReaderTest, AnInterruptedReadYieldsNothing) {
  const auto queue = MakeQueue(4);
  const auto source = std::make_shared<PyReader>(queue);
  ExpectNothingOfAnInterruptedRead(*DecoratedReader::Make<ShuffleReader>(source, 3, 0), *queue);
}

// Its batch 4 is not of the form that it declares.
class FourthIsAMatrix : public ReaderBase {
 public:
  FourthIsAMatrix() : ReaderBase({.specs = ScalarSpecs()}) {}

 private:
  void ReadNextImpl(LoDTensorArray* out) override {
    *out = {MakeTensor<float>(batches_++ == 4 ? DDim{1, 1} : DDim{1}, 0)};
  }
  int batches_ = 0;
};

TEST(BatchReaderTest, ErrorsNameTheBatchOfTheReaderBelow) {
  const auto reader = DecoratedReader::Make<BatchReader>(std::make_shared<FourthIsAMatrix>(), 2, /*drop_last=*/false);
  LoDTensorArray batch;
  for (int i = 0; i < 2; ++i) reader->ReadNext(&batch);
  EXPECT_THAT(ErrorOf<InvalidArgument>([&] { reader->ReadNext(&batch); }).message(), HasSubstr("batch 4, "));
}

TEST(BatchReaderTest, RefusesScalarsAndASizeOfZero) {
  const auto scalars = std::make_shared<PyReader>(MakeQueue(1, {{.dims = {}}}));
  EXPECT_THROW(DecoratedReader::Make<BatchReader>(scalars, 2, false), InvalidArgument);
  EXPECT_THROW(DecoratedReader::Make<BatchReader>(std::make_shared<CountingReader>(1), 0, false), InvalidArgument);
}

TEST(MultiPassReaderTest, YieldsTheDataSoManyTimes) {
  const auto source = std::make_shared<CountingReader>(3, std::function<void()>(), /*rewinds=*/true);
  const auto reader = DecoratedReader::Make<MultiPassReader>(source, 3);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_THAT(ReadAll(*reader), ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
    EXPECT_THAT(ReadAll(*reader), IsEmpty());
    reader->ResetAll();
  }
}

TEST(MultiPassReaderTest, WorksThroughAChainOfDecorators) {
  std::shared_ptr<ReaderBase> reader = std::make_shared<CountingReader>(5, std::function<void()>(), /*rewinds=*/true);
  reader = DecoratedReader::Make<BufferedReader>(reader);
  reader = DecoratedReader::Make<BatchReader>(reader, 2, false);
  reader = DecoratedReader::Make<ShuffleReader>(reader, 2, 0);
  reader = DecoratedReader::Make<MultiPassReader>(reader, 2);
  reader = DecoratedReader::Make<BufferedReader>(reader);
  reader = DecoratedReader::Make<MultiPassReader>(reader, 2);
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_THAT(Sorted(ReadAll(*reader)), ElementsAre(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4));
    LoDTensorArray batch;
    reader->ResetAll();
    reader->ReadNext(&batch);
    reader->ResetAll();  // in mid-pass
  }
}

TEST(MultiPassReaderTest, EndsOnEmptyDataAndOnAShutdown) {
  const auto empty = std::make_shared<CountingReader>(0, std::function<void()>(), /*rewinds=*/true);
  EXPECT_THAT(ReadAll(*DecoratedReader::Make<MultiPassReader>(empty, 1000)), IsEmpty());
  const auto endless = DecoratedReader::Make<MultiPassReader>(
      std::make_shared<CountingReader>(1, std::function<void()>(), /*rewinds=*/true), uint64_t{1} << 62);
  std::jthread consumer([&] {
    LoDTensorArray batch;
    while (endless->ReadIfRunning(&batch) && !batch.empty()) {
    }
  });
  GiveOthersTime();
  endless->Shutdown();
}

TEST(MultiPassReaderTest, RefusesDataThatCannotBeReadAgain) {
  const std::shared_ptr<ReaderBase> source = std::make_shared<PyReader>(MakeQueue(1));
  EXPECT_THROW(DecoratedReader::Make<MultiPassReader>(source, 2), FailedPrecondition);
  EXPECT_THROW(DecoratedReader::Make<MultiPassReader>(DecoratedReader::Make<BufferedReader>(source), 2),
               FailedPrecondition);
}

TEST(ThreadedReaderTest, GivesEachBatchToOneOfItsThreads) {
  constexpr size_t kBatches = 500;
  const auto source = std::make_shared<CountingReader>(kBatches, std::function<void()>(), /*rewinds=*/true);
  const auto reader = DecoratedReader::Make<ThreadedReader>(DecoratedReader::Make<BufferedReader>(source));
  for (int pass = 0; pass < 3; ++pass) {
    std::vector<std::vector<float>> read(4);
    {
      std::vector<std::jthread> threads;
      for (std::vector<float>& values : read) {
        threads.emplace_back([&values, &reader] { values = ReadAll(*reader); });
      }
    }
    std::vector<float> all;
    for (const std::vector<float>& values : read) {
      EXPECT_TRUE(std::is_sorted(values.begin(), values.end()));
      all.insert(all.end(), values.begin(), values.end());
    }
    EXPECT_EQ(Sorted(all), Iota(kBatches));
    reader->ResetAll();
  }
}

TEST(ThreadedReaderTest, AResetOrAnErrorReachesEveryThread) {
  const auto endless = DecoratedReader::Make<ThreadedReader>(std::make_shared<CountingReader>(-1));
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        LoDTensorArray batch;
        while (endless->ReadIfRunning(&batch) && !batch.empty()) {
        }
      });
    }
    GiveOthersTime();
    endless->Shutdown();
  }
  endless->Start();
  LoDTensorArray batch;
  endless->ReadNext(&batch);
  EXPECT_EQ(ValueOf(batch), 0);
  const auto failing = DecoratedReader::Make<ThreadedReader>(
      std::make_shared<CountingReader>(0, [] { throw std::domain_error("bad sample"); }));
  EXPECT_THROW(failing->ReadNext(&batch), std::domain_error);
  EXPECT_FALSE(failing->CanRewind());
}

TEST(RandomDataGeneratorTest, YieldsNumbersInTheRange) {
  RandomDataGenerator reader({{100, 10}, {5}}, -2, 3, 1);
  LoDTensorArray batch;
  reader.ReadNext(&batch);
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0].dims(), (DDim{100, 10}));
  EXPECT_EQ(batch[1].dims(), DDim{5});
  double sum = 0;
  for (const float value : Elements(batch[0])) {
    EXPECT_THAT(value, AllOf(Ge(-2), Lt(3)));
    sum += value;
  }
  EXPECT_NEAR(sum / 1000, 0.5, 0.2);  // four standard deviations
}

TEST(RandomDataGeneratorTest, TheSeedDecidesAndBatchesDiffer) {
  RandomDataGenerator a({{4}}, 0, 1, 1);
  RandomDataGenerator b({{4}}, 0, 1, 1);
  RandomDataGenerator c({{4}}, 0, 1, 2);
  LoDTensorArray from_a;
  LoDTensorArray from_b;
  LoDTensorArray from_c;
  a.ReadNext(&from_a);
  b.ReadNext(&from_b);
  c.ReadNext(&from_c);
  EXPECT_EQ(Elements(from_a[0]), Elements(from_b[0]));
  EXPECT_NE(Elements(from_a[0]), Elements(from_c[0]));
  a.ReadNext(&from_a);
  EXPECT_NE(Elements(from_a[0]), Elements(from_b[0]));
}

TEST(RandomDataGeneratorTest, RefusesSenselessRangesAndShapes) {
  EXPECT_THROW(RandomDataGenerator({{2}}, 1, 1, 0), InvalidArgument);
  EXPECT_THROW(RandomDataGenerator({{2}}, 0, INFINITY, 0), InvalidArgument);
  EXPECT_THROW(RandomDataGenerator({{2}}, NAN, 1, 0), InvalidArgument);
  EXPECT_THROW(RandomDataGenerator({{-1, 2}}, 0, 1, 0), InvalidArgument);
  EXPECT_THROW(RandomDataGenerator({}, 0, 1, 0), InvalidArgument);
}

// random data → shuffle → batch → multi-pass → threaded, as a program.
class ReaderChainOpTest : public ::testing::Test {
 protected:
  BlockDesc& block() { return program_.block(0); }
  void Append(const std::string& type, const std::string& below, const std::string& out, AttributeMap attrs) {
    block().Var(out).kind = VarKind::kReader;
    VarNameMap inputs;
    if (!below.empty()) inputs["UnderlyingReader"] = {below};
    block().AppendOp({.type = type, .inputs = inputs, .outputs = {{"Out", {out}}}, .attrs = std::move(attrs)});
  }
  AttributeMap RandomAttrs() const {
    return {{"low", 0.0F},
            {"high", 1.0F},
            {"shape_concat", std::vector<int32_t>{2, 3}},
            {"ranks", std::vector<int32_t>{2}},
            {"dtypes", std::vector<int32_t>{static_cast<int32_t>(DataType::kFloat32)}}};
  }
  void RunAll() {
    for (const VarDesc* var : block().LocalVars()) scope_.Var(var->name);
    for (const auto& op : block().ops()) OpRegistry::Create(*op)->Run(scope_, {});
  }

  ProgramDesc program_;
  Scope scope_;
};

TEST_F(ReaderChainOpTest, CreatesAChainOnceThatReadRuns) {
  Append("create_random_data_generator", "", "random", RandomAttrs());
  Append("create_shuffle_reader", "random", "shuffled", {{"buffer_size", 4}, {"seed", 3}});
  Append("create_batch_reader", "shuffled", "batched", {{"batch_size", 5}});
  Append("create_multi_pass_reader", "batched", "passes", {{"pass_num", 2}});
  Append("create_threaded_reader", "passes", "shared", {});
  block().Var("x");
  block().AppendOp({.type = "read", .inputs = {{"Reader", {"shared"}}}, .outputs = {{"Out", {"x"}}}, .attrs = {}});
  EXPECT_EQ(block().GetVar("shared").reader.at(0).dims, (DDim{-1, 3}));
  RunAll();
  const auto reader = scope_.GetVar("shared").Get<ReaderHolder>().Get();
  RunAll();
  EXPECT_EQ(scope_.GetVar("shared").Get<ReaderHolder>().Get(), reader);
  EXPECT_EQ(scope_.GetVar("x").Get<LoDTensor>().dims(), (DDim{10, 3}));
}

TEST_F(ReaderChainOpTest, RefusesAttributesThatAreNotPositive) {
  Append("create_random_data_generator", "", "random", RandomAttrs());
  EXPECT_THROW(Append("create_shuffle_reader", "random", "r", {{"buffer_size", 0}}), InvalidArgument);
  EXPECT_THROW(Append("create_batch_reader", "random", "r", {{"batch_size", -1}}), InvalidArgument);
  EXPECT_THROW(Append("create_multi_pass_reader", "random", "r", {{"pass_num", 0}}), InvalidArgument);
}

TEST_F(ReaderChainOpTest, RandomDataAreFloats) {
  AttributeMap attrs = RandomAttrs();
  attrs["dtypes"] = std::vector<int32_t>{static_cast<int32_t>(DataType::kInt64)};
  EXPECT_THROW(Append("create_random_data_generator", "", "random", attrs), Unimplemented);
}

}  // namespace
}  // namespace headrace
