// Whole programs, run by the executor, that read what threads push into a queue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "framework/errors.h"
#include "framework/executor.h"
#include "framework/op_registry.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "framework/wait_hook.h"
#include "reader/lod_tensor_blocking_queue.h"
#include "reader/reader.h"
#include "tests/reader/reader_test_util.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Adds one to a counter, so that a test sees whether an operator ran.
class CountRunsOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    auto* counter = scope.GetVar(Output("Out")).GetMutable<LoDTensor>();
    if (!counter->initialized()) *counter = MakeTensor<int64_t>({1}, 0);
    ++*static_cast<int64_t*>(counter->raw_mutable_data());
  }
};

HEADRACE_REGISTER_OP(count_runs).Comment("For tests.").Output("Out", "int64 [1]").Operator<CountRunsOp>();

// A program that counts its runs and reads one tensor [-1, 3] with LoD, through a double buffer or not.
class FeedingTest : public ::testing::TestWithParam<bool> {
 protected:
  FeedingTest() {
    scope_.Var("queue")->GetMutable<LoDTensorBlockingQueueHolder>()->InitOnce(
        4, std::vector<TensorSpec>{{.dims = {-1, 3}, .dtype = DataType::kFloat32, .lod_level = 1}},
        {.name = "queue", .tensor_names = {"x"}});
    for (ProgramDesc* program : {&startup_, &main_}) {
      VarDesc& source = program->block(0).Var("source");
      source.kind = VarKind::kReader;
      source.persistable = true;
    }
    VarDesc& queue = startup_.block(0).Var("queue");
    queue.kind = VarKind::kRaw;
    queue.persistable = true;
    startup_.block(0).AppendOp({.type = "create_py_reader",
                                .inputs = {{"blocking_queue", {"queue"}}},
                                .outputs = {{"Out", {"source"}}},
                                .attrs = {{"shape_concat", std::vector<int32_t>{-1, 3}},
                                          {"ranks", std::vector<int32_t>{2}},
                                          {"dtypes", std::vector<int32_t>{static_cast<int32_t>(DataType::kFloat32)}},
                                          {"lod_levels", std::vector<int32_t>{1}}}});
    BlockDesc& block = main_.block(0);
    block.MutableVar("source").reader = startup_.block(0).GetVar("source").reader;
    block.Var("x");
    VarDesc& runs = block.Var("runs");
    runs.persistable = true;
    runs.tensor = {.dims = {1}, .dtype = DataType::kInt64};
    // Before `read` in the program: the executor has to put `read` first all the same.
    block.AppendOp({.type = "count_runs", .inputs = {}, .outputs = {{"Out", {"runs"}}}, .attrs = {}});
    std::string reader = "source";
    if (GetParam()) {
      reader = "buffered";
      block.Var(reader).kind = VarKind::kReader;
      block.AppendOp({.type = "create_double_buffer_reader",
                      .inputs = {{"UnderlyingReader", {"source"}}},
                      .outputs = {{"Out", {reader}}},
                      .attrs = {}});
    }
    block.AppendOp({.type = "read", .inputs = {{"Reader", {reader}}}, .outputs = {{"Out", {"x"}}}, .attrs = {}});
    executor_.Run(startup_, &scope_);
    prepared_ = executor_.Prepare(main_, {"x"});
  }

  LoDTensorBlockingQueue& queue() { return *scope_.GetVar("queue").Get<LoDTensorBlockingQueueHolder>().GetQueue(); }
  void Reset() { scope_.GetVar("source").Get<ReaderHolder>().ResetAll(); }
  int64_t runs() { return scope_.GetVar("runs").Get<LoDTensor>().data<int64_t>()[0]; }

  // One sequence.
  static LoDTensorArray Batch(int64_t rows, float value) {
    return {MakeTensor<float>({rows, 3}, value, LoD{{0, static_cast<size_t>(rows)}})};
  }
  LoDTensor Next() {
    std::vector<LoDTensor> fetched;
    executor_.Run(*prepared_, &scope_, {}, &fetched);
    return fetched.at(0);
  }
  // What the program reads until the end of the data: first elements.
  std::vector<float> RunAll() {
    std::vector<float> values;
    try {
      for (;;) values.push_back(Next().data<float>()[0]);
    } catch (const EndOfData&) {
      return values;
    }
  }
  // A thread that feeds one pass of `n` batches of various sizes.
  std::jthread Feeder(size_t n) {
    return std::jthread([this, n, epoch = queue().epoch()] {
      for (size_t i = 0; i < n; ++i) {
        if (!queue().Push(Batch(static_cast<int64_t>(1 + i % 3), static_cast<float>(i)), epoch)) return;
      }
      queue().Close(epoch);
    });
  }

  Scope scope_;
  ProgramDesc startup_;
  ProgramDesc main_;
  Executor executor_;
  std::unique_ptr<PreparedProgram> prepared_;
};

INSTANTIATE_TEST_SUITE_P(, FeedingTest, ::testing::Bool(),
                         [](const auto& instance) { return instance.param ? "DoubleBuffered" : "Direct"; });

TEST_P(FeedingTest, ReadsWhatWasPushedBeforehand) {
  for (int i = 0; i < 4; ++i) queue().Push(Batch(2, static_cast<float>(i)));
  queue().Close();
  EXPECT_EQ(RunAll(), Iota(4));
}

TEST_P(FeedingTest, ReadsWhatAThreadPushesAndEqualsItExactly) {
  const std::jthread feeder = Feeder(50);
  for (size_t i = 0; i < 50; ++i) {
    const LoDTensor x = Next();
    const LoDTensor expected = Batch(static_cast<int64_t>(1 + i % 3), static_cast<float>(i))[0];
    ASSERT_EQ(x.dims(), expected.dims());
    ASSERT_EQ(x.lod(), expected.lod());
    ASSERT_TRUE(std::equal(x.data<float>(), x.data<float>() + x.numel(), expected.data<float>()));
  }
  EXPECT_THROW(Next(), EndOfData);
}

TEST_P(FeedingTest, SeveralProducersFeedOnePass) {
  constexpr int kProducers = 4;
  std::atomic<int> producing{kProducers};
  std::vector<std::jthread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p, epoch = queue().epoch()] {
      for (int i = 0; i < 10; ++i) queue().Push(Batch(1, static_cast<float>(p * 10 + i)), epoch);
      if (--producing == 0) queue().Close(epoch);
    });
  }
  std::vector<float> values = RunAll();
  std::sort(values.begin(), values.end());
  EXPECT_EQ(values, Iota(40));
}

TEST_P(FeedingTest, AHundredPassesEachHaveAllBatches) {
  for (int pass = 0; pass < 100; ++pass) {
    const std::jthread feeder = Feeder(6);
    ASSERT_EQ(RunAll(), Iota(6)) << "pass " << pass;
    Reset();
  }
}

TEST_P(FeedingTest, TenResetsBeforeTheEndOfAnEndlessReader) {
  for (int pass = 0; pass < 10; ++pass) {
    const std::jthread feeder([this, pass, epoch = queue().epoch()] {
      while (queue().Push(Batch(1, static_cast<float>(pass)), epoch)) {
      }
    });
    for (int i = 0; i < 5; ++i) ASSERT_EQ(Next().data<float>()[0], static_cast<float>(pass));
    Reset();
  }
}

TEST_P(FeedingTest, TheEndOfTheDataLeavesStateUntouched) {
  queue().Push(Batch(1, 0));
  queue().Close();
  Next();
  EXPECT_EQ(runs(), 1);
  EXPECT_THROW(Next(), EndOfData);
  EXPECT_THROW(Next(), EndOfData);
  EXPECT_EQ(runs(), 1);
}

TEST_P(FeedingTest, AnErrorOfTheFeederComesOutOfRunWithItsTypeAndTheNextPassWorks) {
  queue().Push(Batch(1, 0));
  queue().Fail(std::make_exception_ptr(std::domain_error("bad sample")));
  Next();
  EXPECT_STREQ(ErrorOf<std::domain_error>([&] { Next(); }).what(), "bad sample");
  EXPECT_EQ(runs(), 1);
  Reset();
  const std::jthread feeder = Feeder(3);
  EXPECT_EQ(RunAll(), Iota(3));
}

TEST_P(FeedingTest, ABadBatchIsRefusedWhenItIsPushedAndThePassGoesOn) {
  queue().Push(Batch(1, 0));
  const auto error = ErrorOf<InvalidArgument>([&] { queue().Push({MakeTensor<float>({1, 4}, 0, {{0, 1}})}); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("'x'"), HasSubstr("[-1, 3]"), HasSubstr("[1, 4]"), HasSubstr("batch 1")));
  queue().Push(Batch(1, 1));
  queue().Close();
  EXPECT_EQ(RunAll(), Iota(2));
}

TEST_P(FeedingTest, AKilledQueueIsAnErrorThatSaysSo) {
  std::jthread killer([&] {
    GiveOthersTime();
    queue().Kill();
  });
  EXPECT_THAT(ErrorOf<QueueClosed>([&] { Next(); }).what(), HasSubstr("'queue' was killed"));
}

TEST_P(FeedingTest, RunningTheStartupProgramAgainLosesNothing) {
  const std::jthread feeder = Feeder(6);
  EXPECT_EQ(Next().data<float>()[0], 0);
  executor_.Run(startup_, &scope_);
  EXPECT_EQ(RunAll(), (std::vector<float>{1, 2, 3, 4, 5}));
}

TEST_P(FeedingTest, APreparedProgramMayBePreparedAgainInMidPass) {
  const std::jthread feeder = Feeder(6);
  EXPECT_EQ(Next().data<float>()[0], 0);
  prepared_ = executor_.Prepare(main_, {"x"});
  EXPECT_EQ(RunAll(), (std::vector<float>{1, 2, 3, 4, 5}));
}

TEST_P(FeedingTest, ASerialisedProgramReadsTheSame) {
  const auto parsed = ProgramDesc::Parse(main_.Serialize());
  prepared_ = executor_.Prepare(*parsed, {"x"});
  const std::jthread feeder = Feeder(5);
  EXPECT_EQ(RunAll(), Iota(5));
}

TEST_P(FeedingTest, AWaitHookInterruptsARunThatWaitsForDataAndTheNextRunGoesOn) {
  {
    const ScopedWaitHook hook([] { throw std::out_of_range("interrupted"); });
    EXPECT_THROW(Next(), std::out_of_range);
  }
  const std::jthread feeder = Feeder(2);
  EXPECT_EQ(RunAll(), Iota(2));
}

TEST_P(FeedingTest, TheScopeMayGoInTheMiddleOfAPass) {
  auto kept = scope_.GetVar("queue").Get<LoDTensorBlockingQueueHolder>().GetQueue();
  const std::weak_ptr<LoDTensorBlockingQueue> queue = kept;
  std::jthread feeder([&kept] {
    while (kept->Push(Batch(1, 7))) {
    }
  });
  const LoDTensor batch = Next();
  prepared_.reset();
  scope_.EraseVars({"buffered", "source", "queue"});
  kept->Kill();
  feeder.join();
  // Neither a reader nor its thread is left, and what was read stays.
  EXPECT_EQ(kept.use_count(), 1);
  kept.reset();
  EXPECT_TRUE(queue.expired());
  EXPECT_EQ(batch.data<float>()[0], 7);
}

}  // namespace
}  // namespace headrace
